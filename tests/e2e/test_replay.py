"""An execution leaves its stack as a file, and its journal still adds up to what was recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.support.api import Client, new_workspace
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import resources_pb2
from windlass.cli.app import app

NODES: list[dict[str, Any]] = [
    {"id": "double", "module": "transform@1", "inputs": {"x": "{{ input.n * 2 }}"}},
    {"id": "each", "module": "for_each@1", "config": {"items": "{{ input.list }}", "body": {"module": "noop@1"}}},
    {"id": "large", "module": "transform@1", "inputs": {"text": "{{ 'x' * 300000 }}"}},
]


async def typed(stack: Stack, *arguments: object) -> Result:
    """What the command line answers, in this process because that is faster."""
    line = [*map(str, arguments), "--home", str(stack.options.home)]
    return await asyncio.to_thread(lambda: CliRunner().invoke(app, line, catch_exceptions=False))


async def exported(stack: Stack, execution_id: str, file: Path, *options: str) -> list[dict[str, Any]]:
    """The parts of the file."""
    told = await typed(stack, "export", execution_id, *options)
    assert told.exit_code == 0, told.stderr
    write(file, parts := [json.loads(line) for line in told.stdout.splitlines()])
    return parts


def write(file: Path, parts: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(part) + "\n" for part in parts))


async def test_an_execution_and_its_file_add_up_to_what_was_recorded(shared_stack: Stack, tmp_path: Path) -> None:
    client = Client(shared_stack)
    await client.apply("replayed", NODES)
    ended = await client.run("replayed", input={"n": 1, "list": [1, 2, 3]})
    assert ended.state == resources_pb2.Execution.SUCCESS
    by_id = await typed(shared_stack, "replay", ended.id, "--json")
    assert by_id.exit_code == 0, by_id.stdout + by_id.stderr
    file = tmp_path / "execution.jsonl"
    parts = await exported(shared_stack, ended.id, file)
    assert [next(iter(part)) for part in parts if "event" not in part][:2] == ["header", "row"]
    assert sum(len(part["output"]["data"]) for part in parts if "output" in part) > 300_000
    by_file = await typed(shared_stack, "replay", file, "--json")
    assert by_file.exit_code == 0, by_file.stdout + by_file.stderr
    assert json.loads(by_file.stdout) == json.loads(by_id.stdout)
    found = json.loads(by_id.stdout)
    assert found["recordedHash"] == found["replayedHash"] == parts[-1]["end"]["recorded_hash"]
    assert "instance_id" in file.read_text()
    live = [row[0] for row in await shared_stack.rows("SELECT instance_id FROM coordinator.runner_sessions")]
    assert [instance for instance in live if instance in file.read_text()] == []


async def test_a_changed_file_names_its_first_difference(shared_stack: Stack, tmp_path: Path) -> None:
    client = Client(shared_stack)
    await client.apply("changed", NODES[:1])
    ended = await client.run("changed", input={"n": 1})
    file = tmp_path / "execution.jsonl"
    parts = await exported(shared_stack, ended.id, file, "--without-outputs")
    (place,) = [place for place, part in enumerate(parts) if "run_succeeded" in part.get("event", {}).get("event", {})]
    parts[place]["event"]["event"]["run_succeeded"]["output"]["json"] = '{"x":3}'
    write(file, parts)
    told = await typed(shared_stack, "replay", file)
    assert told.exit_code == 1, told.stderr
    assert f"event {parts[place]['event']['seq']} (RunSucceeded)" in told.stdout
    assert "runs.1.output" in told.stdout


def _without(name: str) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda parts: [part for part in parts if name not in part]


# What is done to a whole file, and what is said of it then.
HARM: dict[str, tuple[Callable[[list[dict[str, Any]]], list[dict[str, Any]]], str]] = {
    "without its header": (_without("header"), "the first part of an export is its header"),
    "without its end": (_without("end"), "not whole"),
    "without its rows": (_without("row"), "its end says"),
    "without an event": (lambda parts: [*parts[:2], *parts[3:]], "after event 1 comes 3"),
    "with an event twice": (lambda parts: [*parts[:3], *parts[2:]], "after event 2 comes 2"),
    "with rows before events": (
        lambda parts: [parts[0], *parts[-3:-1], *parts[1:-3], parts[-1]],
        "comes after the rows",
    ),
    "with two ends": (lambda parts: [*parts, parts[-1]], "a part follows the end"),
    "with two headers": (lambda parts: [parts[0], *parts], "is not in its place"),
    "of another format": (lambda parts: [{"header": parts[0]["header"] | {"format": 2}}, *parts[1:]], "format 2"),
    "without a definition": (
        lambda parts: [{"header": parts[0]["header"] | {"definition": ""}}, *parts[1:]],
        "has no definition",
    ),
    "with a faulty definition": (
        lambda parts: [{"header": parts[0]["header"] | {"definition": '{"name":"UPPER"}'}}, *parts[1:]],
        "INVALID_DEFINITION",
    ),
    "with an unknown event": (
        lambda parts: [parts[0], {"event": parts[1]["event"] | {"event": {}}}, *parts[2:]],
        "of no known kind",
    ),
    "with a newer event": (
        lambda parts: [parts[0], {"event": parts[1]["event"] | {"schema_version": 99}}, *parts[2:]],
        "newer version",
    ),
    "with a row that is no JSON": (
        lambda parts: [{"row": part["row"] | {"columns": "{"}} if "row" in part else part for part in parts],
        "is no JSON",
    ),
    "with a row that is a list": (
        lambda parts: [{"row": part["row"] | {"columns": "[]"}} if "row" in part else part for part in parts],
        "no JSON object",
    ),
    "with a row of no table": (
        lambda parts: [{"row": part["row"] | {"table": "people"}} if "row" in part else part for part in parts],
        "no table 'people'",
    ),
    "with what is no part": (lambda parts: [parts[0], {"people": {}}, *parts[1:]], "line 2"),
}


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """The parts of one export, once they are known."""
    return {}


@pytest.mark.parametrize("harm", HARM)
async def test_what_is_no_whole_export_is_refused_with_its_place(
    shared_stack: Stack, tmp_path: Path, whole: dict[str, Any], harm: str
) -> None:
    file = tmp_path / "execution.jsonl"
    if not whole:
        client = Client(shared_stack)
        await client.apply("harmed", NODES[:1])
        ended = await client.run("harmed", input={"n": 1})
        whole["parts"] = await exported(shared_stack, ended.id, file)
    change, message = HARM[harm]
    write(file, change(whole["parts"]))
    told = await typed(shared_stack, "replay", file)
    assert (told.exit_code, told.stdout) == (1, ""), told.stdout
    assert message in told.stderr


async def test_an_execution_of_another_workspace_is_neither_exported_nor_replayed(shared_stack: Stack) -> None:
    rival = await new_workspace(shared_stack, "replay-rival", executions_max=5)
    await rival.apply("theirs-alone", NODES[:1])
    theirs = await rival.run("theirs-alone", input={"n": 1})
    for verb in ("export", "replay"):
        told = await typed(shared_stack, verb, theirs.id)
        assert told.exit_code == 1
        assert "EXECUTION_NOT_FOUND" in told.stderr


async def test_an_execution_that_goes_on_is_compared_as_it_stands_and_its_file_has_no_rows(
    shared_stack: Stack, tmp_path: Path
) -> None:
    client = Client(shared_stack)
    await client.apply("asleep", [{"id": "rest", "module": "sleep@1", "config": {"duration": "1h"}}])
    started = await client.start("asleep")

    async def waits() -> bool:
        return (await client.get(started.id)).state == resources_pb2.Execution.WAITING

    await eventually(waits, 10, "the execution to wait")
    by_id = json.loads((await typed(shared_stack, "replay", started.id, "--json")).stdout)
    assert by_id["recordedHash"] == by_id["replayedHash"]
    file = tmp_path / "execution.jsonl"
    parts = await exported(shared_stack, started.id, file)
    assert [part for part in parts if "row" in part] == []
    by_file = await typed(shared_stack, "replay", file)
    assert (by_file.exit_code, "Nothing was recorded" in by_file.stdout) == (0, True)
    await client.cancel(started.id)
