"""Prometheus metrics, which are declared at module level, and a small HTTP endpoint that shows them.

The endpoint answers only GET /metrics, and asks for no credential. It has an address of its own, which only the
scraper needs to reach. So no label of a metric may hold an id of a customer or a secret.

The endpoint runs on the event loop of the process on purpose: a scrape that hangs shows that the loop hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, generate_latest

from services.chassis.grpc.addresses import split_address
from services.chassis.process.lifecycle import Process

LATENCY_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
COUNT_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
_REQUEST_SECONDS: Final = 5.0
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# The kinds of metrics. The registry refuses a name that is declared twice.
counter: Final = Counter
gauge: Final = Gauge


def histogram(
    name: str, help_text: str, labels: Sequence[str] = (), buckets: Sequence[float] = LATENCY_BUCKETS
) -> Histogram:
    return Histogram(name, help_text, labels, buckets=buckets)


_loop_lag = gauge("event_loop_lag_seconds", "How late the event loop ran a due timer.")


async def serve_metrics(process: Process, address: str) -> None:
    """Measure the event loop of the process, and show all metrics at this address until the process closes. With the
    address "" they are shown nowhere.
    """
    process.loop("loop lag", measure_loop_lag)
    if address:
        server = await open_page(address)

        async def close() -> None:
            server.close()

        process.on_close("metrics", close)


async def measure_loop_lag(every_seconds: float = 0.5) -> None:
    """Measure again and again how late a due timer runs: this is the first sign of an overloaded or blocked process."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + every_seconds
        await asyncio.sleep(every_seconds)
        _loop_lag.set(max(0.0, loop.time() - due))


async def open_page(address: str) -> asyncio.Server:
    host, port = split_address(address)
    return await asyncio.start_server(_serve, host, port, limit=8_192)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_REQUEST_SECONDS):
            request = await reader.readuntil(b"\r\n\r\n")
            writer.write(_answer(request.split(b"\r\n", 1)[0]))
            await writer.drain()
    writer.close()


def _answer(request_line: bytes) -> bytes:
    words = request_line.split(b" ")
    if len(words) != 3 or words[0] != b"GET":
        return _response("405 Method Not Allowed", b"")
    if words[1].split(b"?", 1)[0] != b"/metrics":
        return _response("404 Not Found", b"")
    return _response("200 OK", generate_latest(REGISTRY))


def _response(status: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {_CONTENT_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
