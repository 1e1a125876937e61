"""A collector of traces in its own process: an OTLP/gRPC server that decodes and counts spans, and drops them.

`python -m benchmarks.collector` prints its port. Without an endpoint the services would record no spans, and the
benchmark would measure no tracing.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from benchmarks.peers.environment import running

SERVICE = "benchmarks.Collector"


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Counts the spans that arrive, and answers with the count."""

    def __init__(self) -> None:
        self._spans = 0

    async def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: Any
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self._spans += sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    async def count(self, _request: bytes, _context: Any) -> bytes:
        return str(self._spans).encode()


@dataclass(frozen=True)
class Collector:
    """A collector that runs."""

    pid: int
    endpoint: str
    _channel: grpc.aio.Channel

    async def spans(self) -> int:
        """The number of spans that have arrived so far."""
        call: Any = self._channel.unary_unary(f"/{SERVICE}/Count")  # bytes in and out
        return int(await call(b""))


@contextlib.asynccontextmanager
async def collector(log: Path) -> AsyncIterator[Collector]:
    command = (sys.executable, "-m", "benchmarks.collector")
    async with running(*command, log=log, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None, "a pipe was asked for"
        address = f"127.0.0.1:{int(await process.stdout.readline())}"
        async with grpc.aio.insecure_channel(address) as channel:
            yield Collector(process.pid, f"http://{address}", channel)


async def serve() -> None:
    receiver = Receiver()
    count: Any = grpc.unary_unary_rpc_method_handler(receiver.count)
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Count": count}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve())
