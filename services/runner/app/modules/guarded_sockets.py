"""Sockets that reach only what the runner may call. Every module that opens connections makes its sockets here.

The address is checked when the socket for it is made, after the name was resolved and after every redirect. So it is
the address that is really connected to, and a name that resolves to another address the next time gains nothing.
"""

from __future__ import annotations

import socket
from typing import Any

from services.runner.core.egress import Egress


class AddressDenied(OSError):
    """The runner may not call this address. The text does not name it: whoever chose a name need not learn what it
    resolves to inside our network."""

    def __init__(self, address: str) -> None:
        super().__init__("the address is not public")
        self.address = address


class GuardedSockets:
    """A socket factory, as aiohttp takes it."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress

    def __call__(self, info: Any) -> socket.socket:
        """`info` is an entry of `getaddrinfo`. Raises AddressDenied."""
        family, kind, protocol, _, address = info
        if not self._egress.permits(address[0]):
            raise AddressDenied(address[0])
        return socket.socket(family=family, type=kind, proto=protocol)
