"""The addresses of the peers: a list, a file that may change, or a DNS name with several addresses.

`host:port,host:port` is a list. `@/path/to/file` names a file, with addresses between commas or white space and with
`#` comments, which is read twice a second. `dns:name:port` makes each address of the name a peer, as with a
headless service in Kubernetes.

While a source cannot be read (the file is being replaced, the resolver is down), its last answer stays: a peer is
dropped only when it is known to be gone.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from services.chassis.telemetry.logs import logger

log = logger(__name__)

_DNS_PREFIX = "dns:"
_RESOLVE_EVERY_SECONDS = 5.0


def split_address(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"{address!r} is not host:port")
    return host.strip("[]") or "0.0.0.0", int(port)  # ":port" means all interfaces


class AddressBook:
    def __init__(self, source: str, *, poll_seconds: float = 0.5) -> None:
        self._source = source.strip()
        self._present: frozenset[str] = frozenset()
        # A file that cannot be read is logged once.
        self._is_readable = False
        if self._source.startswith(_DNS_PREFIX):
            self._pause_seconds = _RESOLVE_EVERY_SECONDS
        elif self._source.startswith("@"):
            self._pause_seconds = poll_seconds
        else:
            self._present = _listed(self._source)
            self._pause_seconds = math.inf  # a list never changes

    async def read(self) -> frozenset[str]:
        """The present set."""
        if self._source.startswith("@"):
            self._read_file(Path(self._source[1:]))
        elif self._source.startswith(_DNS_PREFIX):
            await self._resolve(self._source.removeprefix(_DNS_PREFIX))
        return self._present

    async def changes(self) -> AsyncIterator[frozenset[str]]:
        """The present set, and then for ever each new set."""
        known: frozenset[str] | None = None
        while True:
            if (present := await self.read()) != known:
                known = present
                yield present
            await asyncio.sleep(self._pause_seconds)

    def _read_file(self, path: Path) -> None:
        try:
            self._present = _listed(path.read_text(encoding="utf-8"))
            self._is_readable = True
        except (OSError, ValueError) as failure:
            if self._is_readable:
                log.warning("cannot read the list of peers, keeping the last", path=str(path), error=str(failure))
            self._is_readable = False

    async def _resolve(self, name_and_port: str) -> None:
        host, port = split_address(name_and_port)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as failure:
            log.warning("cannot resolve a peer's name, keeping its last addresses", name=host, error=str(failure))
            return
        self._present = frozenset(_join(each[4][0], port) for each in found)


def _join(host: str | int, port: int) -> str:
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def _listed(text: str) -> frozenset[str]:
    addresses: set[str] = set()
    for line in text.splitlines():
        addresses.update(line.partition("#")[0].replace(",", " ").split())
    for address in addresses:
        split_address(address)
    return frozenset(addresses)
