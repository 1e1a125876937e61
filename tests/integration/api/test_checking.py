"""Inputs whose check might take long, in a child of their own: what fits is taken, what does not is told, and what does
take long ends by its limits."""

import asyncio
from typing import Any

import orjson
import pytest

from services.api.app.checking import checker_process as aside_module
from services.api.app.checking.checker_process import CheckerProcess
from services.api.app.schema_reader import InputCheck
from services.chassis.grpc.errors import DependencyUnavailable
from tests.support.probe import until

EMAIL = r"^[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,63}$"
CODES = {"enum": list(range(500))}
# Each looks dear by its dearest property and all of its values together, and is checked in a moment.
HONEST: dict[str, tuple[Any, Any]] = {
    "a set of tags beside samples": (
        {"tags": {"uniqueItems": True}, "samples": {"items": {"type": "number"}}},
        {"tags": ["a"], "samples": [1.5] * 12_000},
    ),
    "a code beside samples": ({"code": CODES}, {"code": 7, "samples": [1.5] * 12_000}),
    "a country beside a line of points": (
        {"country": {"enum": [*(f"C{number}" for number in range(249)), None]}},
        {"country": "C7", "line": [[10.123456789, 20.123456789]] * 8_000},
    ),
    "an address beside a text": (
        {"email": {"pattern": EMAIL}},
        {"email": "a@b.example", "data": "x" * 250_000},
    ),
}
HOSTILE = {"items": {"not": {"enum": list(range(5_000))}}}


def asked(schema: Any, document: Any) -> tuple[bytes, bytes]:
    check, content = InputCheck(schema), orjson.dumps(document)
    assert check.may_take_long(document, len(content))
    return check.source, content


@pytest.mark.parametrize("name", HONEST)
async def test_large_input_that_fits_is_taken(name: str) -> None:
    properties, document = HONEST[name]
    assert await CheckerProcess().violations(*asked({"properties": properties}, document)) == []


async def test_large_input_that_does_not_fit_is_told_where() -> None:
    schema = {"properties": {"code": CODES}}
    found = await CheckerProcess().violations(*asked(schema, {"code": 500, "samples": [1.5] * 12_000}))
    assert [(each.field, each.reason) for each in found] == [("input.code", "ENUM")]


async def test_input_that_takes_too_long_is_refused_and_its_turn_is_over() -> None:
    aside = CheckerProcess()
    hostile = asked(HOSTILE, [-1.5] * 60_000)
    (violation,) = await aside.violations(*hostile)
    assert (violation.field, violation.reason) == ("input", "TOO_LARGE")
    assert (
        await aside.violations(*asked({"properties": {"code": CODES}}, HONEST["a code beside samples"][1]))
        == []
    )


async def test_who_waits_too_long_for_the_child_is_asked_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aside_module, "TURN_SECONDS_MAX", 0.0)
    aside, given = CheckerProcess(), (b"{}", b"{}")
    first = asyncio.create_task(aside.violations(*given))
    await asyncio.sleep(0)
    with pytest.raises(DependencyUnavailable):
        await aside.violations(*given)
    assert await first == []


async def test_caller_who_goes_takes_the_child_along(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def noted(*given: Any, **how: Any) -> asyncio.subprocess.Process:
        started.append(await start(*given, **how))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    aside = CheckerProcess()
    hostile = asked(HOSTILE, [-1.5] * 60_000)
    caller = asyncio.create_task(aside.violations(*hostile))
    await until(lambda: started, 5.0, "the child")
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert started[0].returncode is not None


async def test_what_a_broken_child_says_is_told_and_is_no_line_of_the_log(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(RuntimeError, match=r"ended with 1: .*JSONDecodeError"):
        await CheckerProcess().violations(b"no schema", b"{}")
    assert capfd.readouterr().err == ""
