"""A collector of traces in its own process: an OTLP/gRPC server that decodes and counts spans, and drops them.

`python -m benchmarks.collector` prints its port, and at each SIGUSR1 the number of spans so far. Without an endpoint
the services would record no spans, and the benchmark would measure no tracing.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from benchmarks.peers.environment import running
from deploy.local.launch import tell


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Counts the spans that arrive."""

    spans = 0

    async def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: Any
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self.spans += sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)
        return trace_service_pb2.ExportTraceServiceResponse()


@dataclass(frozen=True)
class Collector:
    """A collector that runs."""

    pid: int
    endpoint: str
    _output: asyncio.StreamReader

    async def spans(self) -> int:
        """The number of spans that have arrived so far."""
        tell(self.pid, signal.SIGUSR1)
        return int(await self._output.readline())


@contextlib.asynccontextmanager
async def collector(log: Path) -> AsyncIterator[Collector]:
    command = (sys.executable, "-m", "benchmarks.collector")
    async with running(*command, log=log, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None, "a pipe was asked for"
        port = int(await process.stdout.readline())
        yield Collector(process.pid, f"http://127.0.0.1:{port}", process.stdout)


async def serve() -> None:
    receiver, server = Receiver(), grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: print(receiver.spans, flush=True))
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve())
