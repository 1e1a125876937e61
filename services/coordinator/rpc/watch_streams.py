"""WatchService: many executions followed on one stream from each api replica."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc

from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter
from services.coordinator.rpc.watch import WatchHub, WatchStream
from windlass.coordinator.v1 import reads_pb2 as pb
from windlass.coordinator.v1.reads_pb2_grpc import WatchServiceServicer

log = logger(__name__)

_UPDATES_PER_MESSAGE: Final = 500
_MESSAGE_BYTES_MAX: Final = 3 * 1024 * 1024

_cut = counter("coordinator_watch_streams_cut_total", "Watch streams cut because they were not read.")


class WatchServicer(WatchServiceServicer):
    def __init__(self, hub: WatchHub) -> None:
        self._hub = hub

    async def Watch(  # type: ignore[override] # reads and writes by the context
        self, request_iterator: Any, context: Any
    ) -> None:
        stream = WatchStream()
        writer = asyncio.create_task(self._write(stream, context))
        reader = asyncio.create_task(self._read(stream, context))
        try:
            await asyncio.wait({writer, reader}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._hub.leave(stream)
            for task in (writer, reader):
                task.cancel()
            ended = await asyncio.gather(writer, reader, return_exceptions=True)
        for failure in ended:
            if isinstance(failure, Exception) and not isinstance(failure, grpc.aio.BaseError | grpc.RpcError):
                # A bug here, not the end of the call. The guard logs it.
                raise failure

    async def _read(self, stream: WatchStream, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            if request.watcher:
                self._hub.name(stream, request.watcher)
            for execution_id in request.cancelled:
                self._hub.cancel(stream, execution_id)
            for wanted in request.subscriptions:
                self._hub.subscribe(stream, wanted)

    async def _write(self, stream: WatchStream, context: Any) -> None:
        while not stream.is_cut:
            await stream.level.wait()
            if stream.owes_answer:
                stream.owes_answer = False
                await context.write(pb.WatchResponse(knows_watcher=True))
            while stream.updates and not stream.is_cut:
                count = min(_UPDATES_PER_MESSAGE, len(stream.updates))
                batch = _fitting([stream.updates[place] for place in range(count)])
                for _ in batch:
                    stream.updates.popleft()
                await context.write(pb.WatchResponse(updates=batch))
            while stream.followed and not stream.is_cut:
                told = stream.followed[-_UPDATES_PER_MESSAGE:]
                del stream.followed[-_UPDATES_PER_MESSAGE:]
                await context.write(pb.WatchResponse(followed=told))
        _cut.inc()
        log.warning("a watch stream is not read and was cut", subscriptions=len(stream.by_execution))


def _fitting(updates: Sequence[pb.Update]) -> list[pb.Update]:
    """As many updates as fit into one message, at least one."""
    fitting: list[pb.Update] = []
    room = _MESSAGE_BYTES_MAX
    for update in updates:
        room -= update.ByteSize()
        if fitting and room < 0:
            break
        fitting.append(update)
    return fitting
