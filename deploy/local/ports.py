"""Whether a port is free, asked before anything is started, so that the answer can name who needed it.

Hazard: a port is free until somebody takes it; the answer is for people and for picking, not a reservation.
"""

import socket


class PortTaken(Exception):
    """Something else listens where one of our processes must."""


def require_free(host: str, port: int, role: str) -> None:
    if not is_free(host, port):
        raise PortTaken(
            f"port {port}, which {role} needs, is in use; end what listens there, or pass --port-offset"
        )


def is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Connections that are merely winding down do not count as a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
