"""http.request@1 meets a server that fails in every way, and gives the right class, type and time to wait."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from ipaddress import ip_network
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from services.runner.core.egress import Egress
from services.runner.core.failures import Failure, FailureClass
from services.runner.core.job import Stopped
from tests.support.postgres import free_port
from tests.support.runner_bench import Bench, a_job

# The server's clock is far behind ours. Only the difference of its two times counts.
DATE = {"Date": "Sun, 06 Nov 1994 08:49:37 GMT"}
DATED = DATE | {"Retry-After": "Sun, 06 Nov 1994 08:51:07 GMT"}


class Server:
    """Answers each request with the answer that a test has given last."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.headers: dict[str, str] = {}
        self.is_closing = False
        self.holds: asyncio.Event | None = None

    async def answer(self, request: web.Request) -> web.Response:
        if self.is_closing:
            assert request.transport is not None
            request.transport.close()
        if self.holds is not None:
            await self.holds.wait()
        return web.Response(status=self.status, headers=self.headers, text="no")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    application = web.Application()
    application.router.add_route("*", "/", made.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    made.url = f"http://{host}:{port}/"
    yield made
    if made.holds is not None:
        made.holds.set()
    await runner.cleanup()


async def failure(tmp_path: Any, url: str, *, timeout_seconds: float = 0.0, **config: Any) -> Failure:
    job = a_job("http.request@1", config={"url": url} | config, timeout_seconds=timeout_seconds)
    outcome = await Bench(tmp_path).outcome(job)
    assert isinstance(outcome, Failure), outcome
    return outcome


async def test_refusal_is_permanent_whatever_it_says_of_later(tmp_path: Any, server: Server) -> None:
    server.status, server.headers = 403, {"Retry-After": "7"}
    found = await failure(tmp_path, server.url)
    assert found == Failure(FailureClass.PERMANENT, "HTTP_403", "127.0.0.1 answered HTTP 403: no")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({}, None), ({"Retry-After": "7"}, 7.0), (DATED, 90.0), ({"Retry-After": "soon"}, None)],
    ids=["unsaid", "seconds", "date", "senseless"],
)
async def test_trouble_is_transient_and_says_when_to_come_back(
    tmp_path: Any, server: Server, headers: dict[str, str], seconds: float | None
) -> None:
    server.status, server.headers = 503, headers
    found = await failure(tmp_path, server.url)
    assert found == Failure(FailureClass.TRANSIENT, "HTTP_503", "127.0.0.1 answered HTTP 503: no", seconds)


async def test_connection_that_is_closed_without_an_answer_is_transient(tmp_path: Any, server: Server) -> None:
    server.is_closing = True
    found = await failure(tmp_path, server.url)
    assert (found.failure_class, found.type) == (FailureClass.TRANSIENT, "HTTP_NETWORK")


async def test_answer_that_breaks_off_is_transient(tmp_path: Any) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbut")
            await writer.drain()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        found = await failure(tmp_path, f"http://{host}:{port}/")
    assert (found.failure_class, found.type) == (FailureClass.TRANSIENT, "HTTP_NETWORK")


async def test_server_that_is_not_there_is_transient(tmp_path: Any) -> None:
    found = await failure(tmp_path, f"http://127.0.0.1:{free_port()}/")
    assert (found.failure_class, found.type) == (FailureClass.TRANSIENT, "HTTP_NETWORK")


@pytest.mark.parametrize(
    ("limits", "type_"), [({"timeout": "50ms"}, "HTTP_TIMEOUT"), ({"timeout_seconds": 0.05}, "NODE_TIMEOUT")]
)
async def test_answer_that_does_not_come_in_time_is_a_timeout(
    tmp_path: Any, server: Server, limits: dict[str, Any], type_: str
) -> None:
    server.holds = asyncio.Event()
    found = await failure(tmp_path, server.url, **limits)
    assert (found.failure_class, found.type) == (FailureClass.TIMEOUT, type_)
    assert found.retry_after_seconds is None


@pytest.mark.parametrize(
    ("url", "type_"),
    [
        ("ftp://127.0.0.1/", "INVALID_CONFIG"),
        ("http://[::1/", "HTTP_INVALID"),
        ("http://2130706433/", "HTTP_INVALID"),
        ("http://169.254.169.254/", "ADDRESS_DENIED"),
    ],
)
async def test_address_that_cannot_be_called_is_permanent(tmp_path: Any, url: str, type_: str) -> None:
    found = await failure(tmp_path, url)
    assert (found.failure_class, found.type) == (FailureClass.PERMANENT, type_)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:7f00:1]", "0.0.0.0", "[::]"])
async def test_this_machine_may_not_be_called_unless_the_operator_allows_it(
    tmp_path: Any, server: Server, host: str
) -> None:
    url = server.url.replace("127.0.0.1", host)
    job = a_job("http.request@1", config={"url": url})
    found = await Bench(tmp_path, egress=Egress()).outcome(job)
    assert isinstance(found, Failure), found
    assert (found.failure_class, found.type) == (FailureClass.PERMANENT, "ADDRESS_DENIED")
    assert "--allow-net" in found.message
    assert "WINDLASS_RUNNER_ALLOW_NET" in found.message
    assert host.strip("[]") in found.message
    if host == "localhost":
        assert "127.0.0.1" not in found.message, "it tells what names resolve to inside"


async def test_the_operator_is_told_which_address_was_refused(
    tmp_path: Any, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    job = a_job("http.request@1", config={"url": server.url.replace("127.0.0.1", "localhost")})
    await Bench(tmp_path, egress=Egress()).outcome(job)
    assert "127.0.0.1" in capsys.readouterr().out


async def test_a_redirect_leads_to_no_address_that_may_not_be_called(tmp_path: Any, server: Server) -> None:
    server.status, server.headers = 302, {"Location": server.url.replace("127.0.0.1", "127.0.0.2")}
    egress = Egress((ip_network("127.0.0.1/32"),))
    found = await Bench(tmp_path, egress=egress).outcome(a_job("http.request@1", config={"url": server.url}))
    assert isinstance(found, Failure), found
    assert found.type == "ADDRESS_DENIED"


async def test_a_name_that_resolves_to_another_address_the_next_time_gains_nothing(
    tmp_path: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first answer is one that may be called, where nobody listens; the next leads here."""
    port, asked = int(server.url.rstrip("/").rpartition(":")[2]), []

    def resolve(host: str, *_: object, **__: object) -> Any:
        asked.append(host)
        address = "127.0.0.2" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    bench = Bench(tmp_path, egress=Egress((ip_network("127.0.0.2/32"),)))
    job = a_job("http.request@1", config={"url": f"http://rebinding.example:{port}/"})
    types = [(await bench.outcome(job)).type for _ in range(2)]
    assert types == ["HTTP_NETWORK", "ADDRESS_DENIED"]
    assert asked == ["rebinding.example"] * 2


async def test_a_run_that_is_stopped_closes_its_connection(tmp_path: Any) -> None:
    begun, closed = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            begun.set()
            await reader.read()
            closed.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        bench = Bench(tmp_path)
        bench.worker.take([a_job("http.request@1", config={"url": f"http://{host}:{port}/"})])
        await begun.wait()
        bench.worker.stop(["e.1"])
        await closed.wait()
        assert [each.outcome for each in await bench.desk.until(1)] == [Stopped()]


async def test_requests_have_a_thread_of_their_own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends single bytes as chunks would otherwise keep the event loop of the runner at work."""
    threads: list[str] = []
    permits = Egress.permits

    def noted(egress: Egress, address: str) -> bool:
        threads.append(threading.current_thread().name)
        return permits(egress, address)

    monkeypatch.setattr(Egress, "permits", noted)
    await failure(tmp_path, f"http://127.0.0.1:{free_port()}/")
    assert threads == ["requests"]
