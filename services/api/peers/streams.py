"""A bidirectional stream to one replica that is opened again whenever it ends.

The reader is one task without a timeout around its reads, because a cancelled read leaks memory in grpc.aio. It ends
with the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import grpc

from services.chassis.grpc.client import Channel
from services.chassis.process.backoff import Backoff
from services.chassis.telemetry.logs import logger

log = logger(__name__)
Stream = TypeVar("Stream")


class Streams(Protocol[Stream]):
    """The streams to all replicas of a service."""

    def opened(self) -> Stream:
        """A new stream. `lost` follows."""
        ...

    async def write(self, stream: Stream, call: Any) -> None:
        """Runs while the call lives."""
        ...

    def heard(self, stream: Stream, message: Any) -> None: ...

    def lost(self, stream: Stream) -> None: ...


async def keep_open(streams: Streams[Stream], channel: Channel, open_call: Callable[[], Any], name: str) -> None:
    backoff = Backoff(first=0.02, cap=1.0)
    while True:
        await channel.channel_ready()
        call = open_call()
        stream = streams.opened()
        reading = asyncio.ensure_future(_read(streams, stream, call, backoff))
        writing = asyncio.ensure_future(streams.write(stream, call))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            call.cancel()
            writing.cancel()
            results = await asyncio.gather(reading, writing, return_exceptions=True)
            streams.lost(stream)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, grpc.RpcError | asyncio.InvalidStateError):
                log.error("a stream broke", stream=name, exc_info=result)
        log.info("stream ended", stream=name)
        await asyncio.sleep(backoff.next())


async def _read(streams: Streams[Stream], stream: Stream, call: Any, backoff: Backoff) -> None:
    while True:
        message = await call.read()
        if message is grpc.aio.EOF:
            return
        backoff.reset()
        streams.heard(stream, message)
