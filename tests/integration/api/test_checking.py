"""Checks in children: misfits are named, and a check that takes too long ends by its limits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from subprocess import Popen
from typing import Any

import orjson
import psutil
import pytest
import pytest_asyncio
import uvloop

from services.api.app.checking import children as children_module
from services.api.app.checking.children import Checkers
from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.child_start import start_child
from tests.support.probe import until

EMAIL = r"^[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,63}$"
CODES = {"enum": list(range(500))}
# Large inputs, and schemas that look expensive.
HONEST: dict[str, tuple[Any, Any]] = {
    "a set of tags beside samples": (
        {"properties": {"tags": {"uniqueItems": True}, "samples": {"items": {"type": "number"}}}},
        {"tags": ["a"], "samples": [1.5] * 12_000},
    ),
    "a code beside samples": ({"properties": {"code": CODES}}, {"code": 7, "samples": [1.5] * 12_000}),
    "a country beside a line of points": (
        {"properties": {"country": {"enum": [*(f"C{number}" for number in range(249)), None]}}},
        {"country": "C7", "line": [[10.123456789, 20.123456789]] * 8_000},
    ),
    "an address beside a text": (
        {"properties": {"email": {"pattern": EMAIL}}},
        {"email": "a@b.example", "data": "x" * 250_000},
    ),
    "a tree": ({"properties": {"children": {"items": {"$ref": "#"}}}}, {"children": [{"children": [{}]}]}),
    "names": ({"items": {"pattern": r"^[\p{L}\p{N} .'-]{1,200}$"}}, ["Élodie"] * 1_000),
    "300 alternatives": (
        {"oneOf": [{"properties": {"kind": {"const": f"k{number}"}}} for number in range(300)]},
        {"kind": "k7"},
    ),
}


def doubling(keyword: str, last: bool) -> dict[str, Any]:
    """A schema of thirty levels, each of which asks the next one twice, so not even an empty object can be checked."""
    steps = {f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(30)}
    return {"$defs": {**steps, "d30": last}, "$ref": "#/$defs/d0"}


HOSTILE = {"items": {"not": {"enum": list(range(5_000))}}}
SLOW = [-1.5] * 60_000


@pytest_asyncio.fixture
async def checkers() -> AsyncIterator[Checkers]:
    checkers = Checkers(2)
    yield checkers
    await checkers.close()


async def found(
    checkers: Checkers, schema: Any, document: Any, *, most: int = 50, workspace: str = "team"
) -> list[tuple[str, str]]:
    violations = await checkers.violations(workspace, orjson.dumps(schema), orjson.dumps(document), most)
    return [(each.field, each.reason) for each in violations]


@pytest.mark.parametrize("name", HONEST)
async def test_input_that_fits_is_taken(checkers: Checkers, name: str) -> None:
    schema, document = HONEST[name]
    assert await checkers.fault("team", orjson.dumps(schema)) is None
    assert await found(checkers, schema, document) == []


async def test_all_misfits_are_told_or_as_many_as_are_wanted(checkers: Checkers) -> None:
    document = {"code": 500, "list": ["x"] * 300}
    schema = {"properties": {"code": CODES, "list": {"items": {"type": "integer"}}}}
    assert await found(checkers, schema, document, most=2) == [("input.code", "ENUM"), ("input.list[0]", "TYPE")]
    assert len(await found(checkers, schema, document)) == 50
    assert len(await found(checkers, schema, document, most=1)) == 1


async def test_first_misfit_is_told_where_all_are_too_many_to_find(checkers: Checkers) -> None:
    schema = {"items": {"required": [f"p{number}" for number in range(1_000)]}}
    assert await found(checkers, schema, [{}] * 60_000) == [("input[0]", "REQUIRED")]
    assert await found(checkers, {"type": "object"}, []) == [("input", "TYPE")]


async def test_input_that_takes_too_long_is_refused_and_another_child_goes_on(checkers: Checkers) -> None:
    assert await found(checkers, HOSTILE, SLOW) == [("input", "TOO_LARGE")]
    assert await found(checkers, *HONEST["a code beside samples"]) == []


async def test_check_that_needs_all_memory_ends_by_its_limit(
    checkers: Checkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    patterns = {"allOf": [{"pattern": f"^\\p{{L}}{{{number},100}}$"} for number in range(2_000)]}
    message = await checkers.fault("team", orjson.dumps(patterns))
    assert message is not None
    assert "takes too long to compile" in message
    assert await found(checkers, {"type": "object"}, {}) == []


@pytest.mark.parametrize("schema", [doubling("anyOf", False), doubling("allOf", True)])
async def test_schema_that_no_input_could_be_checked_against_is_a_fault(checkers: Checkers, schema: Any) -> None:
    message = await checkers.fault("team", orjson.dumps(schema))
    assert message == "takes too long to compile, or to check even an empty input"


async def test_value_that_is_no_schema_is_a_fault(checkers: Checkers) -> None:
    assert await checkers.fault("team", b'{"type":"nope"}') is not None
    assert await checkers.fault("team", b"3") == "a JSON Schema is an object"


async def test_one_workspace_floods_and_the_checks_of_another_get_through(checkers: Checkers) -> None:
    """The order of the answers shows it: those of the quiet workspace all come before the second one of the flood."""
    answered: list[str] = []

    async def ask(name: str, schema: Any, document: Any) -> None:
        await found(checkers, schema, document, workspace=name)
        answered.append(name)

    honest = HONEST["a code beside samples"]
    await found(checkers, *honest, workspace="quiet")
    flood = [asyncio.create_task(ask("flood", HOSTILE, SLOW)) for _ in range(20)]
    for _ in range(5):
        await ask("quiet", *honest)
    assert answered.count("quiet") == 5
    assert answered.count("flood") <= 1
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)


async def test_caller_that_waits_too_long_for_a_turn_is_asked_to_come_again(
    checkers: Checkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children_module, "TURN_SECONDS_MAX", 0.0)
    first = asyncio.create_task(found(checkers, HOSTILE, SLOW))
    await asyncio.sleep(0)
    with pytest.raises(DependencyUnavailable):
        await found(checkers, {}, {})
    assert await first == [("input", "TOO_LARGE")]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Popen[bytes]]:
    """The children that were started since the test began."""
    found: list[Popen[bytes]] = []

    def noted(*given: Any) -> Popen[bytes]:
        found.append(start_child(*given))
        return found[-1]

    monkeypatch.setattr(children_module, "start_child", noted)
    return found


async def test_caller_who_goes_takes_the_child_along(checkers: Checkers, started: list[Popen[bytes]]) -> None:
    caller = asyncio.create_task(found(checkers, HOSTILE, SLOW))
    await until(lambda: started, 5.0, "the child")
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert started[0].returncode is not None


async def test_child_that_somebody_ends_while_it_waits_is_replaced(
    checkers: Checkers, started: list[Popen[bytes]]
) -> None:
    assert await found(checkers, {}, {}) == []
    psutil.Process(started[0].pid).kill()
    await until(lambda: psutil.Process(started[0].pid).status() == psutil.STATUS_ZOMBIE, 5.0, "its end")
    assert await found(checkers, {}, {}) == []
    assert len(started) == 2


def test_start_of_a_child_copies_nothing_of_the_service() -> None:
    """An event loop like that of the service would fork it. The longer that takes, the larger the service is."""
    forks = []
    os.register_at_fork(before=lambda: forks.append(1))

    async def check() -> None:
        checkers = Checkers(1)
        assert await found(checkers, {}, {}) == []
        await checkers.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(check())
    assert not forks


async def test_stored_schema_that_is_none_is_no_fault_of_the_input(checkers: Checkers) -> None:
    with pytest.raises(RuntimeError, match="a stored schema is invalid"):
        await found(checkers, 3, {})
