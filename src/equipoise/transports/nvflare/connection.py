"""Connection of a party to its server, tried before FLARE starts and retries without end."""

from __future__ import annotations

import errno
import socket
import ssl

from equipoise.experiment import ConfigurationError
from equipoise.transports.nvflare.kits import Kit

ANSWER_DEADLINE = 10.0  # seconds
# The first bytes of a client of HTTP/2, on which gRPC is built, and an empty SETTINGS frame. A
# server that refuses a certificate under TLS 1.3 says so only now.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def check_server(kit: Kit, seconds: float = ANSWER_DEADLINE) -> None:
    """Check that the server of a network answers, and that both sides accept each other.

    Args:
        kit: The kit of a site or a person.
        seconds: The time in which the server must answer.

    Raises:
        ConfigurationError: If it does not answer, is another server, or refuses the certificate.
    """
    host, port = kit.server
    try:
        with socket.create_connection((host, port), timeout=seconds) as connection:
            connection.settimeout(seconds)
            _greet(kit, connection)
    except ssl.SSLCertVerificationError as error:
        raise ConfigurationError(
            f"the server at {host}:{port} is not the one of the network {kit.network}: "
            f"{error.verify_message}; ask the consortium for the address, and check the clock"
        ) from None
    except (ssl.SSLError, ConnectionResetError, EOFError) as error:
        reason = getattr(error, "reason", None) or "it closed the connection"
        raise ConfigurationError(
            f"the server at {host}:{port} did not accept the certificate of {kit.name} ({reason}); "
            "is it the server of this network, and does this kit belong to it?"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        if isinstance(error, TimeoutError):
            reason = f"no answer within {seconds:g} s"
        raise ConfigurationError(
            f"the server of {kit.network} at {host}:{port} cannot be reached ({reason}); start it "
            "with `equipoise server start`, or open the port to it in the firewall"
        ) from None


def _greet(kit: Kit, connection: socket.socket) -> None:
    folder = kit.startup / "startup"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(folder / "rootCA.pem")
    context.load_cert_chain(folder / "client.crt", folder / "client.key")
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(connection, server_hostname=kit.server[0]) as secure:
        secure.sendall(_GREETING)
        if not secure.recv(1):
            raise EOFError


def check_port(kit: Kit) -> None:
    """Check that a server can listen on the port of its network.

    Args:
        kit: The kit of the server.

    Raises:
        ConfigurationError: If another process listens there, or the host is not this machine.
    """
    host, port = kit.server
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in addresses:
            with socket.socket(family, kind, protocol) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
    except OSError as error:
        raise ConfigurationError(_why_not_bound(host, port, error)) from None


def _why_not_bound(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use by another process; end it, or make a network with "
            "another port"
        )
    if error.errno == errno.EACCES:
        return f"port {port} of {host} needs rights that this user has not; use one above 1023"
    return (
        f"{host}:{port} cannot be listened on ({error.strerror or error}); the server must run on "
        "the machine that this name leads to"
    )
