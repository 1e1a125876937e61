"""TCP proxies before a gRPC server. `cable` is a connection that a test cuts and mends.

`answer_lost` loses one answer: the request is carried out, and its caller never hears of it.

    async with answer_lost(address) as door:
        channel = grpc.aio.insecure_channel(door.address)
        ...                      # fails UNAVAILABLE, and door.swallowed says that there was an answer

The server sends the first HEADERS frame of a unary call when its handler has returned, hence after every commit. The
proxy keeps that frame and cuts both sides.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tests.support.probe import some

_FRAME_HEAD = 9
_HEADERS = 1
_CHUNK = 65_536


@dataclass
class Door:
    """The address at which a client reaches the server for one call."""

    address: str
    swallowed: int = 0


class Cable:
    """While it is cut, every connection through it is broken, and so is every new one."""

    def __init__(self) -> None:
        self.address = ""
        self.is_cut = False
        self.writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        self.is_cut = True
        for writer in self.writers:
            writer.transport.abort()

    def mend(self) -> None:
        self.is_cut = False


@contextlib.asynccontextmanager
async def cable(server: str, source: str = "127.0.0.1") -> AsyncIterator[Cable]:
    """The server sees `source` as the address of the client."""
    host, _, port = server.rpartition(":")
    made = Cable()

    async def connected(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if made.is_cut:
            to_client.transport.abort()
            return
        from_server, to_server = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
        ends = {to_client, to_server}
        made.writers |= ends
        try:
            passing = [_pass(from_client, to_server), _pass(from_server, to_client)]
            await asyncio.wait([asyncio.create_task(each) for each in passing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            made.writers -= ends
            for writer in ends:
                writer.transport.abort()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    made.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        listener.close()
        made.cut()


@contextlib.asynccontextmanager
async def answer_lost(server: str) -> AsyncIterator[Door]:
    host, _, port = server.rpartition(":")
    links: set[asyncio.Task[None]] = set()

    async def connected(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = some(asyncio.current_task())
        links.add(task)
        from_server, to_server = await asyncio.open_connection(host, int(port))
        forth = asyncio.create_task(_pass(from_client, to_server))
        try:
            await _pass_until_answer(from_server, to_client)
            door.swallowed += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client or the server has gone first
        finally:
            forth.cancel()
            to_server.transport.abort()
            to_client.transport.abort()
            links.discard(task)

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    door = Door(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    try:
        yield door
    finally:
        listener.close()
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()


async def _pass_until_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on whole HTTP/2 frames, up to the first one of an answer."""
    while True:
        head = await reader.readexactly(_FRAME_HEAD)
        if head[3] == _HEADERS:
            return
        writer.write(head + await reader.readexactly(int.from_bytes(head[:3], "big")))
        await writer.drain()
