"""However a request fails: its error, its spans and the log name the host, and nothing that may be a secret."""

import base64
import logging
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from services.runner.app import run_reports
from services.runner.app.modules import http_request
from services.runner.core.egress import Egress
from services.runner.core.failures import Failure
from tests.support.careless_server import careless_server
from tests.support.postgres import free_port
from tests.support.runner_bench import INPUT, TO_THIS_MACHINE, Bench, a_job

USER, WORD = "canary-user", "canary wörd"
SECRETS: dict[str, Any] = {
    "headers": {"X-Api-Key": "canary-header", "X-Session": "Token canary-token", "X-Note": 'canary "quoted"'},
    "query": {"key": "canary=query", "next": "canary/é"},
    "timeout": "300ms",
}
WHERE = f"//{USER}:canary%20w%C3%B6rd@127.0.0.1"
QUERY = "?sig=canary-signature&canary-flag"


@pytest_asyncio.fixture
async def port() -> AsyncIterator[int]:
    async with careless_server() as made:
        yield made


@pytest.mark.parametrize(
    ("url", "more", "type_"),
    [
        (f"http:{WHERE}:PORT/403{QUERY}", {}, "HTTP_403"),
        (f"http:{WHERE}:PORT/403{QUERY}&as=json", {}, "HTTP_403"),
        (f"http:{WHERE}:PORT/503{QUERY}", {}, "HTTP_503"),
        (f"http:{WHERE}:PORT/odd/hangs{QUERY}", {}, "HTTP_TIMEOUT"),
        (f"http:{WHERE}:PORT/odd/closes{QUERY}", {}, "HTTP_NETWORK"),
        (f"http:{WHERE}:PORT/odd/circles{QUERY}", {}, "HTTP_INVALID"),
        (f"http:{WHERE}:PORT/odd/elsewhere{QUERY}", {}, "HTTP_INVALID"),
        (f"http:{WHERE}:PORT/odd/cookies{QUERY}", {}, "HTTP_500"),
        (f"http:{WHERE}:FREE/{QUERY}", {}, "HTTP_NETWORK"),
        (f"https:{WHERE}:PORT/{QUERY}", {}, "HTTP_NETWORK"),
        (f"http:{WHERE}:PORT/{QUERY}", {"egress": Egress()}, "ADDRESS_DENIED"),
        (f"http:{WHERE}:PORT/{QUERY}", {"headers": {"X-Api-Key": "canary\r\nX: canary"}}, "HTTP_INVALID"),
        (f"http:{WHERE}:PORT/{QUERY}", {"method": "canary canary"}, "HTTP_INVALID"),
        (f"http:{WHERE}:PORT/{QUERY}", {"headers": {"Authorization": "Basic canary"}}, "HTTP_INVALID"),
    ],
)
async def test_a_failure_tells_no_secret(
    tmp_path: Any,
    port: int,
    url: str,
    more: dict[str, Any],
    type_: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spans: list[Any] = []
    for module in (http_request, run_reports):
        monkeypatch.setattr(module, "emit_span", lambda *named, **more: spans.append((named, more)))
    caplog.set_level(logging.WARNING)  # as in a runner
    bench = Bench(tmp_path, egress=more.pop("egress", TO_THIS_MACHINE))
    config = {"url": url.replace("PORT", str(port)).replace("FREE", str(free_port()))} | SECRETS | more
    outcome = await bench.outcome(a_job("http.request@1", config=config, traceparent=f"00-{7:032x}-{8:016x}-01"))
    assert isinstance(outcome, Failure), outcome
    assert outcome.type == type_, outcome
    assert "127.0.0.1" in outcome.message
    assert len(spans) == 2
    for told in (outcome, spans, caplog.text, capsys.readouterr()):
        assert "canary" not in str(told)
        assert base64.b64encode(f"{USER}:{WORD}".encode("latin-1")).decode() not in str(told)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"http:{WHERE}:PORT/403{QUERY}", "http://[withheld]@127.0.0.1:PORT/403?[withheld]"),
        ("http://127.0.0.1:PORT/404#canary", "http://127.0.0.1:PORT/404"),
        ("http://canary-user:canary/word@127.0.0.1/", "[withheld]"),
        ("http://[canary]/?canary", "[withheld]"),
    ],
)
async def test_what_was_rendered_is_reported_without_secrets(tmp_path: Any, port: int, url: str, shown: str) -> None:
    bench, own = Bench(tmp_path, egress=TO_THIS_MACHINE), {"url": url.replace("PORT", str(port))}
    headers = {**SECRETS["headers"], "Accept": "text/plain"}
    config = {**SECRETS, **own, "headers": headers, "body": "{{ input }}"}
    await bench.outcome(a_job("http.request@1", config=config, has_templates=True))
    told = orjson.loads(bench.desk.ended[-1].rendered)
    assert told["config"] == {
        "url": shown.replace("PORT", str(port)),
        "headers": {**dict.fromkeys(SECRETS["headers"], "[withheld]"), "Accept": "text/plain"},
        "query": dict.fromkeys(SECRETS["query"], "[withheld]"),
        "timeout": SECRETS["timeout"],
        "body": orjson.loads(INPUT),
    }


@pytest.mark.parametrize(
    "url", ["http://canary-user:canary/word@127.0.0.1/", "http://[canary]/?canary", "ftp://canary@h/"]
)
async def test_an_address_that_is_none_is_not_repeated(tmp_path: Any, url: str) -> None:
    outcome = await Bench(tmp_path).outcome(a_job("http.request@1", config={"url": url}))
    assert isinstance(outcome, Failure), outcome
    assert outcome.type in {"HTTP_INVALID", "INVALID_CONFIG"}
    assert "canary" not in outcome.message


async def test_what_a_server_says_is_shown_without_what_it_was_sent(tmp_path: Any, port: int) -> None:
    config = {"url": f"http://127.0.0.1:{port}/404?id=4711&n=1", "headers": {"Accept": "text/plain"}}
    outcome = await Bench(tmp_path).outcome(a_job("http.request@1", config=config))
    assert outcome.message.startswith("127.0.0.1 answered HTTP 404: GET /404?id=[withheld]&n=1")
    assert "Accept: text/plain" in outcome.message
