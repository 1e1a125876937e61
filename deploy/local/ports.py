"""Whether a port is free, asked before anything is started, so that the answer can name who needed it."""

import socket


class PortTaken(Exception):
    """Something else listens where one of our processes must."""


def require_free(host: str, port: int, role: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Connections that are merely winding down do not count as a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortTaken(
                f"port {port}, which {role} needs, is in use ({error.strerror}); "
                "end what listens there, or pass --port-offset"
            ) from error
