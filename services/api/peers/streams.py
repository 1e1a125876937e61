"""A bidirectional stream to one replica that is opened again whenever it ends.

The reader is one task without a timeout around its reads, because a cancelled read leaks memory in grpc.aio. It ends
with the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from services.chassis.grpc.client import Channel
from services.chassis.process.backoff import Backoff
from services.chassis.telemetry.logs import logger

log = logger(__name__)


async def keep_open(
    channel: Channel,
    open_call: Callable[[], Any],
    *,
    write: Callable[[Any], Awaitable[None]],
    heard: Callable[[Any], None],
    opened: Callable[[], None],
    lost: Callable[[], None],
    name: str,
) -> None:
    """`write` runs while a call lives, `heard` gets each message, and `lost` follows each `opened`."""
    backoff = Backoff(first=0.02, cap=1.0)
    while True:
        await channel.channel_ready()
        call = open_call()
        opened()
        reading = asyncio.ensure_future(_read(call, heard, backoff))
        writing = asyncio.ensure_future(write(call))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            call.cancel()
            writing.cancel()
            results = await asyncio.gather(reading, writing, return_exceptions=True)
            lost()
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, grpc.RpcError | asyncio.InvalidStateError):
                log.error("a stream broke", stream=name, exc_info=result)
        log.info("stream ended", stream=name)
        await asyncio.sleep(backoff.next())


async def _read(call: Any, heard: Callable[[Any], None], backoff: Backoff) -> None:
    while True:
        message = await call.read()
        if message is grpc.aio.EOF:
            return
        backoff.reset()
        heard(message)
