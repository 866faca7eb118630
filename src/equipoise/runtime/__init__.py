"""Client runtime: executes a client's step and evaluates its models, whatever transport brings the request."""
