"""http.request@1 meets a server that answers with the request."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
from aiohttp import web

from services.rendering.bodies import SMALL_BYTES_MAX
from services.runner.app import attempt
from services.runner.app.modules import http_request
from services.runner.core.job import Succeeded
from tests.support.runner_bench import Bench, a_job
from windlass.sdk.encoding import encoded

TOLD = {"type": "Content-Type", "traceparent": "traceparent"}


async def told(request: web.Request) -> web.Response:
    said = {name: request.headers.get(header, "") for name, header in TOLD.items()}
    said["body"] = (await request.read()).decode()
    return web.json_response(said)


@pytest_asyncio.fixture
async def url() -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_route("*", "/", told)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    yield f"http://{host}:{port}/"
    await runner.cleanup()


JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("config", "type_", "body"),
    [
        ({"body": {"z": 1, "a": ["é"]}}, JSON, '{"z":1,"a":["é"]}'),
        ({"body": [1, None]}, JSON, "[1,null]"),
        ({"body": False}, JSON, "false"),
        ({"body": {"z": 1}, "headers": {"content-type": "application/ld+json"}}, "application/ld+json", '{"z":1}'),
        ({"body": {"z": 1, "a": "b c"}, "headers": {"content-type": FORM}}, FORM, "z=1&a=b+c"),
        ({"body": "z=1", "headers": {"Content-Type": FORM}}, FORM, "z=1"),
        ({"body": "é"}, "text/plain; charset=utf-8", "é"),
        ({"json": "text"}, JSON, '"text"'),
        ({}, "", ""),
    ],
)
async def test_a_body_is_sent_as_what_it_is(
    tmp_path: Any, url: str, config: dict[str, Any], type_: str, body: str
) -> None:
    method = "POST" if config else "GET"
    outcome = await Bench(tmp_path).outcome(a_job("http.request@1", config={"url": url, "method": method} | config))
    assert isinstance(outcome, Succeeded), outcome
    assert isinstance(outcome.output, bytes)
    answer = orjson.loads(outcome.output)
    assert answer["body"] == {"type": type_, "traceparent": "", "body": body}


@pytest.mark.parametrize(("url_ends", "error"), [("", ""), ("nowhere", "PermanentError")])
async def test_a_request_has_a_span_that_the_server_is_told(
    tmp_path: Any, url: str, url_ends: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans: list[Any] = []
    monkeypatch.setattr(http_request, "emit_span", lambda name, span, **more: spans.append((name, span, more)))
    job = a_job("http.request@1", config={"url": url + url_ends}, traceparent=f"00-{7:032x}-{8:016x}-01")
    outcome = await Bench(tmp_path).outcome(job)
    ((name, span, more),) = spans
    assert (name, more["kind"], more["error"], span.trace_id) == ("http GET", "client", error, 7)
    status = 404 if error else 200
    told = {"http.request.method": "GET", "server.address": "127.0.0.1", "http.response.status_code": status}
    assert more["attributes"] == told
    if not error:
        assert orjson.loads(outcome.output)["body"]["traceparent"] == span.header()


async def test_a_header_that_is_no_text_does_not_cost_the_answer(tmp_path: Any) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Odd: caf\xe9\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        outcome = await Bench(tmp_path).outcome(a_job("http.request@1", config={"url": f"http://{host}:{port}/"}))
    assert isinstance(outcome, Succeeded), outcome
    assert isinstance(outcome.output, bytes)
    assert orjson.loads(outcome.output)["headers"]["x-odd"] == "caf?"


def test_runner_loads_no_http_client_before_its_first_request() -> None:
    program = "import sys, services.runner.wiring; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(("copies", "times"), [(1, 1), (SMALL_BYTES_MAX, 0)])
async def test_what_the_child_has_checked_is_not_searched_again(
    tmp_path: Any, copies: int, times: int, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[Any] = []

    def noted(value: Any, name: str, error_type: str) -> bytes:
        searched.append(value)
        return encoded(value, name, error_type)

    monkeypatch.setattr(attempt, "encoded", noted)
    text = "[null" * copies
    bench = Bench(tmp_path)
    outcome = await bench.outcome(a_job("http.request@1", config={"url": url, "method": "POST", "body": text}))
    bench.close()
    assert isinstance(outcome, Succeeded), outcome
    output = outcome.output
    raw = output if isinstance(output, bytes) else await bench.outputs.get(output)
    assert orjson.loads(raw)["body"]["body"] == text
    assert len(searched) == times
