"""Where the peers are: a list, a file that somebody rewrites, or a name with several addresses behind it.

`host:port,host:port` | `@/path/to/file` (separated by commas or white space, `#` comments; read again when it
changes) | `dns:name:port` (each address the name resolves to is a peer: a headless service in Kubernetes).
A source that cannot be read right now (file being replaced, resolver down) keeps its last answer: peers are
dropped when they are known to be gone, not when we fail to look.
"""

from __future__ import annotations

import asyncio
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
    return host.strip("[]") or "0.0.0.0", int(port)  # ":port" means all, as everywhere


class AddressBook:
    def __init__(self, source: str, *, poll_seconds: float = 0.5) -> None:
        self._source = source.strip()
        self._poll_seconds = poll_seconds
        self._present: frozenset[str] = frozenset()
        self._stamp: tuple[int, int, int] | None = None
        if not self._source.startswith(("@", _DNS_PREFIX)):
            self._present = _listed(self._source)

    async def read(self) -> frozenset[str]:
        """The present set."""
        if self._source.startswith("@"):
            self._read_file(Path(self._source[1:]))
        elif self._source.startswith(_DNS_PREFIX):
            await self._resolve(self._source.removeprefix(_DNS_PREFIX))
        return self._present

    async def changes(self) -> AsyncIterator[frozenset[str]]:
        """The present set at once, then each other set that follows it; never ends."""
        known = await self.read()
        yield known
        pause = _RESOLVE_EVERY_SECONDS if self._source.startswith(_DNS_PREFIX) else self._poll_seconds
        is_fixed = not self._source.startswith(("@", _DNS_PREFIX))
        while True:
            if is_fixed:
                await asyncio.get_running_loop().create_future()  # nothing will ever change
            await asyncio.sleep(pause)
            present = await self.read()
            if present != known:
                known = present
                yield known

    def _read_file(self, path: Path) -> None:
        try:
            status = path.stat()
            # Size and inode too: two writes within one tick of the file system's clock.
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return
            self._present = _listed(path.read_text(encoding="utf-8"))
            self._stamp = stamp
        except (OSError, ValueError) as failure:
            if self._stamp is not None:
                log.warning(
                    "cannot read the list of peers, keeping the last", path=str(path), error=str(failure)
                )
                self._stamp = None

    async def _resolve(self, name_and_port: str) -> None:
        host, port = split_address(name_and_port)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as failure:
            log.warning(
                "cannot resolve a peer's name, keeping its last addresses", name=host, error=str(failure)
            )
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
