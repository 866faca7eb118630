"""Client runtime: executes steps and evaluates models, for any transport."""
