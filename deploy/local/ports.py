"""Checks that a port is free before anything is started, so that the error can name the process that needs it.

Hazard: this reserves nothing. Another process may take the port in the next moment.
"""

import socket


class PortTaken(Exception):
    """Something else listens where one of our processes must."""


def require_free(host: str, port: int, role: str) -> None:
    if not is_free(host, port):
        mend = "end what listens there, or pass another --port-offset"
        raise PortTaken(f"port {port}, which {role} needs, is in use; {mend}")


def is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Without this option, closing connections would count as a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
