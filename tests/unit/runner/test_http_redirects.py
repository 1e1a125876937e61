"""Where a redirect leads, and what goes along: nothing secret to another origin, nor back from there."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from services.runner.core.job import Succeeded
from tests.support.runner_bench import Bench, a_job

SECRETS = {"Authorization": "Bearer canary-1", "X-Api-Key": "canary-2", "Cookie": "session=canary-3"}


class Origin:
    """A server that redirects `/go` to where it was told, and keeps the headers of what it is asked."""

    def __init__(self) -> None:
        self.base = ""
        self.leads_to = ""
        self.status = 302
        self.heard: list[tuple[str, dict[str, str], str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = (await request.read()).decode()
        self.heard.append((f"{request.method} {request.path}", dict(request.headers), body))
        left = request.path.removeprefix("/left/")
        if left.isdecimal():
            return web.Response(status=302, headers={"Location": f"/left/{int(left) - 1}" if left > "1" else "/there"})
        if request.path == "/go":
            return web.Response(status=self.status, headers={"Location": self.leads_to})
        return web.Response(text="there")


async def origin() -> tuple[Origin, web.AppRunner]:
    made, application = Origin(), web.Application()
    application.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    made.base = f"http://{host}:{port}"
    return made, runner


@pytest_asyncio.fixture
async def origins() -> AsyncIterator[tuple[Origin, Origin]]:
    (home, home_runner), (abroad, abroad_runner) = await origin(), await origin()
    yield home, abroad
    await home_runner.cleanup()
    await abroad_runner.cleanup()


async def request(tmp_path: Any, url: str, **config: Any) -> None:
    config = {"url": url, "headers": SECRETS} | config
    outcome = await Bench(tmp_path).outcome(a_job("http.request@1", config=config, effect_key="canary-4"))
    assert isinstance(outcome, Succeeded), outcome


async def test_within_its_origin_a_redirect_gets_what_was_sent(tmp_path: Any, origins: tuple[Origin, Origin]) -> None:
    home, _ = origins
    home.leads_to = "/there"
    await request(tmp_path, f"{home.base}/go")
    (_, first, _), (line, second, _) = home.heard
    assert line == "GET /there"
    for name in (*SECRETS, "Idempotency-Key"):
        assert second[name] == first[name]


@pytest.mark.parametrize("user", ["", "canary-5:canary-6@"])
async def test_another_origin_gets_no_credentials_and_no_effect_key(
    tmp_path: Any, origins: tuple[Origin, Origin], user: str
) -> None:
    home, abroad = origins
    home.leads_to = f"{abroad.base}/there"
    headers = {} if user else SECRETS
    await request(tmp_path, f"{home.base.replace('//', f'//{user}')}/go", headers={**headers, "Accept": "text/plain"})
    assert "Idempotency-Key" in home.heard[0][1]
    ((line, heard, _),) = abroad.heard
    assert line == "GET /there"
    assert "canary" not in str(heard)
    assert {"Authorization", "Cookie", "Idempotency-Key"}.isdisjoint(heard)
    assert heard["Accept"] == "text/plain"


async def test_on_the_way_back_they_stay_away(tmp_path: Any, origins: tuple[Origin, Origin]) -> None:
    """Otherwise another origin could choose what is done here with the credentials."""
    home, abroad = origins
    home.leads_to, abroad.leads_to = f"{abroad.base}/go", f"{home.base}/there"
    await request(tmp_path, f"{home.base}/go")
    line, heard, _ = home.heard[-1]
    assert line == "GET /there"
    assert "canary" not in str(heard)


@pytest.mark.parametrize(("status", "line", "body"), [(303, "GET /there", ""), (307, "PUT /there", "text")])
async def test_method_and_body_follow_the_status(
    tmp_path: Any, origins: tuple[Origin, Origin], status: int, line: str, body: str
) -> None:
    home, abroad = origins
    home.leads_to, home.status = f"{abroad.base}/there", status
    await request(tmp_path, f"{home.base}/go", method="PUT", body="text")
    ((heard_line, _, heard_body),) = abroad.heard
    assert (heard_line, heard_body) == (line, body)


async def test_five_redirects_are_followed_and_a_sixth_is_not(tmp_path: Any, origins: tuple[Origin, Origin]) -> None:
    home, _ = origins
    await request(tmp_path, f"{home.base}/left/5")
    outcome = await Bench(tmp_path).outcome(a_job("http.request@1", config={"url": f"{home.base}/left/6"}))
    assert outcome.type == "HTTP_INVALID"
