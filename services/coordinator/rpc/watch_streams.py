"""WatchService: many executions followed on one stream from each api replica."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter
from services.coordinator.rpc.watch import WatchHub, WatchStream
from windlass.coordinator.v1.reads_pb2_grpc import WatchServiceServicer

log = logger(__name__)

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
                # This is a bug here and not the end of the call. The guard logs it.
                raise failure

    async def _read(self, stream: WatchStream, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            if request.watcher:
                self._hub.name_watcher(stream, request.watcher)
            for execution_id in request.cancelled:
                self._hub.cancel(stream, execution_id)
            for wanted in request.subscriptions:
                self._hub.subscribe(stream, wanted)

    async def _write(self, stream: WatchStream, context: Any) -> None:
        while not stream.is_cut:
            await stream.level.wait()
            while (message := stream.take()) is not None:
                await context.write(message)
        _cut.inc()
        log.warning("a watch stream is not read and was cut", subscriptions=len(stream.by_execution))
