"""Metrics, and the one page that shows them."""

import asyncio

from prometheus_client import REGISTRY

from services.chassis.telemetry.metrics import counter, histogram, measure_loop_lag, open_page
from tests.support.probe import until


async def fetched(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def test_the_page_shows_what_was_counted_and_nothing_else_is_served() -> None:
    counter("shoes_sold", "Pairs sold.", ["shoe"]).labels("clog").inc(3)
    histogram("shoe_size", "Sizes.", buckets=(40, 45)).observe(42)
    server = await open_page("127.0.0.1:0")
    port = server.sockets[0].getsockname()[1]
    page = await fetched(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert page.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain")
    assert b'shoes_sold_total{shoe="clog"} 3.0' in page
    assert b'shoe_size_bucket{le="45.0"} 1.0' in page
    assert (await fetched(port, b"GET /secrets HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404")
    assert (await fetched(port, b"POST /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405")
    assert await fetched(port, b"no request\r\n\r\n") == await fetched(port, b"POST / HTTP/1.1\r\n\r\n")
    assert await fetched(port, b"x" * 9_000) == b""  # this is longer than any honest request
    server.close()


async def test_a_loop_that_is_blocked_shows_as_lag() -> None:
    measuring = asyncio.create_task(measure_loop_lag(every_seconds=0))
    await until(lambda: REGISTRY.get_sample_value("event_loop_lag_seconds"), 10.0, "a lag")
    measuring.cancel()
    await asyncio.gather(measuring, return_exceptions=True)
