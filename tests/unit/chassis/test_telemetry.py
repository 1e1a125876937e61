"""Trace contexts and the sampler, and spans that arrive at a real OTLP server."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from services.chassis.telemetry.otlp import encoded, readable
from services.chassis.telemetry.tracing import (
    FinishedSpan,
    Sampler,
    TraceContext,
    flush_tracing,
    may_be_sampled,
    new_trace,
    parse_traceparent,
)
from tests.support.probe import some

HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_traceparent_is_read_and_written() -> None:
    context = parse_traceparent(HEADER)
    assert context == TraceContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True)
    assert context.header() == HEADER
    assert context.trace_id_hex == "0af7651916cd43dd8448eb211c80319c"
    unsampled = some(parse_traceparent(HEADER[:-2] + "00"))
    assert not unsampled.sampled
    assert unsampled.header().endswith("-00")


@pytest.mark.parametrize("sampled", [True, False])
def test_sampled_headers_can_be_told_without_parsing(sampled: bool) -> None:
    assert may_be_sampled(new_trace(sampled).header()) is sampled
    assert not may_be_sampled("")


@pytest.mark.parametrize(
    "wrong",
    ["", "00", HEADER.upper(), "ff" + HEADER[2:], HEADER[:-1], HEADER.replace("-b7", "-0g"),
     f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-{'1' * 32}-{'0' * 16}-01"],
)  # fmt: skip
def test_a_text_that_is_no_traceparent_is_no_context(wrong: str) -> None:
    assert parse_traceparent(wrong) is None


def test_a_later_version_with_more_fields_is_read() -> None:
    assert parse_traceparent("01" + HEADER[2:] + "-extra") is not None


def test_a_child_is_in_the_trace_under_an_id_of_its_own() -> None:
    parent = new_trace(True)
    child = parent.child()
    assert (child.trace_id, child.sampled) == (parent.trace_id, True)
    assert child.span_id != parent.span_id


def test_the_sampler_admits_its_rate_and_saves_up_one_second() -> None:
    now = 0.0
    sampler = Sampler(20, monotonic=lambda: now)
    assert [sampler.take() for _ in range(25)] == [True] * 20 + [False] * 5
    now = 0.5
    assert [sampler.take() for _ in range(12)] == [True] * 10 + [False] * 2
    now = 1_000.0
    assert sum(sampler.take() for _ in range(100)) == 20
    assert not Sampler(0).take()


def test_without_an_endpoint_opentelemetry_is_not_loaded() -> None:
    program = (
        "import sys; from services.chassis.telemetry.tracing import *; "
        "setup_tracing(service='s', version='1', instance='i', endpoint=''); "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()

    async def Export(self, request: Any, context: Any) -> Any:
        await self.requests.put(request)
        return trace_service_pb2.ExportTraceServiceResponse()


PROGRAM = """
import asyncio, sys
from services.chassis.telemetry.tracing import *
setup_tracing(service="shop", version="7", instance="shop-0", endpoint=sys.argv[1])
parent = new_trace(True)
child = parent.child()
emit_span("sale", child, parent=parent, start_ns=1_000, end_ns=2_000, kind="server",
          attributes={"pairs": 2, "shoe": "clog"}, error="no change", links=[new_trace(True)])
emit_span("unseen", new_trace(False), parent=None, start_ns=1, end_ns=2)
emit_span("backwards", parent, parent=None, start_ns=9_000, end_ns=1)
print(parent.header(), child.header(), asyncio.run(flush_tracing(5)))
"""


async def test_spans_arrive_at_a_collector_under_the_ids_that_were_chosen() -> None:
    collector, server = Collector(), grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, f"http://127.0.0.1:{port}", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    parent_header, child_header, flushed = output.decode().split()
    assert flushed == "True"
    (resource_spans,) = collector.requests.get_nowait().resource_spans
    resource = {each.key: each.value.string_value for each in resource_spans.resource.attributes}
    assert resource == {
        "service.namespace": "windlass", "service.name": "shop", "service.version": "7",
        "service.instance.id": "shop-0",
    }  # fmt: skip
    spans = {span.name: span for scope in resource_spans.scope_spans for span in scope.spans}
    assert spans.keys() == {"sale", "backwards"}
    sale = spans["sale"]
    assert f"00-{sale.trace_id.hex()}-{sale.span_id.hex()}-01" == child_header
    assert sale.parent_span_id.hex() == parent_header.split("-")[2]
    assert (sale.start_time_unix_nano, sale.end_time_unix_nano, sale.kind) == (1_000, 2_000, 2)
    assert (sale.status.code, sale.status.message, len(sale.links)) == (2, "no change", 1)
    assert spans["backwards"].end_time_unix_nano == 9_000
    await server.stop(0)


def test_spans_are_encoded_as_opentelemetry_encodes_them() -> None:
    context, resource, scope = new_trace(True), Resource({"service.name": "shop"}), InstrumentationScope("shop", "1")
    plain = FinishedSpan("sell", context, None, 10**18, 10**18 + 1, {}, "", (), "internal")
    kinds = ("internal", "server", "client", "producer", "consumer")
    told = [
        *(plain._replace(kind=kind) for kind in kinds),
        plain._replace(parent=context.child(), error="SoldOut: none is left"),
        plain._replace(links=(context.child(), context.child())),
        plain._replace(
            attributes={"text": "ä", "empty": "", "yes": True, "no": False, "many": 2**40, "less": -1, "half": 0.5}
        ),
    ]
    spans = [readable(each, resource, scope) for each in told]
    assert encoded(spans).SerializeToString() == encode_spans(spans).SerializeToString()
    assert not encoded([]).resource_spans


async def test_a_collector_that_is_down_keeps_nobody_waiting() -> None:
    program = PROGRAM.replace("flush_tracing(5)", "flush_tracing(0.2)")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, "http://127.0.0.1:1", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 30)
    assert output.decode().split()[2] == "False"
    assert process.returncode == 0


@pytest.mark.usefixtures("spans")
async def test_flushing_needs_no_thread_that_others_may_hold() -> None:
    loop, may_return = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    held = loop.run_in_executor(None, may_return.wait)
    try:
        async with asyncio.timeout(10):
            assert await flush_tracing(5)
    finally:
        may_return.set()
        await held
