"""The collector of the benchmarks is a real OTLP server, which counts what arrives."""

from pathlib import Path

import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from benchmarks.collector import collector
from tests.support.stack import is_alive


async def test_spans_are_counted_in_a_process_of_its_own(tmp_path: Path) -> None:
    async with collector(tmp_path / "log") as receiver:
        request = trace_service_pb2.ExportTraceServiceRequest()
        scope = request.resource_spans.add().scope_spans.add()
        for name in ("one", "two"):
            scope.spans.add(name=name)
        assert await receiver.spans() == 0
        async with grpc.aio.insecure_channel(receiver.endpoint.removeprefix("http://")) as channel:
            await trace_service_pb2_grpc.TraceServiceStub(channel).Export(request)
        assert await receiver.spans() == 2
        assert is_alive(receiver.pid)
    assert not is_alive(receiver.pid)
