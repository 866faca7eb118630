"""How the server reaches clients: one interface, several roads."""

from equipoise.transports.exchange import ClientError, Reply, Request, Transport, perform

__all__ = ["ClientError", "Reply", "Request", "Transport", "perform"]
