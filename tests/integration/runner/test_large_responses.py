"""Responses that are not small are read in the child: their senders can take neither our time nor our memory."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from aiohttp import web

from services.rendering.bodies import SMALL_BYTES_MAX, codec_of
from services.runner.app.modules.http_request import ANSWER_BYTES_MAX
from services.runner.core.failures import Failure, FailureClass
from services.runner.core.job import StoredOutput, Succeeded
from tests.support.runner_bench import Bench, a_job


class Server:
    def __init__(self) -> None:
        self.url = ""
        self.body = b""
        self.content_type = "application/json"

    async def answer(self, _request: web.Request) -> web.Response:
        return web.Response(body=self.body, headers={"Content-Type": self.content_type})


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[Server]:
    made, application = Server(), web.Application()
    application.router.add_route("*", "/", made.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    made.url = f"http://{host}:{port}/"
    yield made
    await runner.cleanup()


@pytest_asyncio.fixture(loop_scope="session")
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    await asyncio.to_thread(made.close)


async def outcome(bench: Bench, server: Server) -> Any:
    return await bench.outcome(a_job("http.request@1", config={"url": server.url}))


async def body(bench: Bench, server: Server) -> Any:
    found = await outcome(bench, server)
    assert isinstance(found, Succeeded), found
    data = await bench.outputs.get(found.output) if isinstance(found.output, StoredOutput) else found.output
    return orjson.loads(data)["body"]


@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/problem+json; charset=utf-8"])
async def test_a_response_over_the_limit_is_read_in_the_child_and_means_the_same(
    bench: Bench, server: Server, excess: int, content_type: str
) -> None:
    server.content_type = content_type
    server.body = b'{"a":[1.5,null,"'.ljust(SMALL_BYTES_MAX + excess - 3, b"x") + b'"]}'
    read = server.body.decode() if content_type == "text/plain" else orjson.loads(server.body)
    assert await body(bench, server) == read
    assert (bench.rendering.reader_process.pid is not None) == (excess == 1)
    assert bench.rendering.children.pids == [], "templates would wait for it"


@pytest.mark.parametrize("copies", [1, 200_000])
@pytest.mark.parametrize(
    ("charset", "raw", "text"),
    [
        ("utf-8", "é-b".encode(), "é-b"),
        ("Windows-1252", b"\xe9-\x80", "é-€"),
        ("shift_jis", b"\x83\x65", "テ"),
        ("utf-16", "é".encode("utf-16"), None),
        # A decoder whose time grows with the square, two that are none of texts, and one that is not there.
        ("punycode", b"ab-cde", "ab-cde"),
        ("unicode_escape", b"\\x41", "\\x41"),
        ("zlib", b"x-y", "x-y"),
        ("../../punycode", b"ab-cde", "ab-cde"),
    ],
)
async def test_text_is_read_in_the_charsets_of_texts_and_else_as_utf_8(
    bench: Bench, server: Server, charset: str, raw: bytes, text: str | None, copies: int
) -> None:
    server.content_type, server.body = f'text/plain; charset="{charset}"', raw * copies
    assert await body(bench, server) == (server.body.decode(charset) if text is None else text * copies)


async def test_json_that_is_none_is_text(bench: Bench, server: Server) -> None:
    server.body = b"[1," * SMALL_BYTES_MAX
    assert await body(bench, server) == server.body.decode()


@pytest.mark.parametrize("value", [b"1", b"[]", b"{}", b'"\xc3\xa9"'])
async def test_the_costliest_responses_are_outputs_like_any_other(bench: Bench, server: Server, value: bytes) -> None:
    """Parsed, each of them has many times its size."""
    count = (ANSWER_BYTES_MAX - 2) // (len(value) + 1)
    server.body = b"[" + b",".join([value] * count) + b"]"
    assert await body(bench, server) == [orjson.loads(value)] * count


async def test_a_response_that_is_nested_too_deep_is_a_failure(bench: Bench, server: Server) -> None:
    server.body = b"[" * 40 + b"1," * SMALL_BYTES_MAX + b"1" + b"]" * 40
    found = await outcome(bench, server)
    assert isinstance(found, Failure), found
    assert (found.failure_class, found.type) == (FailureClass.PERMANENT, "HTTP_ANSWER_TOO_LARGE")


@pytest.mark.parametrize(
    "parameter", ['"' * 8_000, ";" * 8_000, "(" * 8_000, "charset=" * 1_000, "charset=" + "a" * 8_000]
)
def test_a_content_type_of_any_length_has_a_codec(parameter: str) -> None:
    assert codec_of(f"text/plain; {parameter}") == "utf_8"
