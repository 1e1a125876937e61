"""An execution that was exported is kept as a copy in another workspace, where it can be read and not changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf import json_format
from typer.testing import CliRunner, Result

from tests.chaos.verify import verify
from tests.support.api import Client, new_workspace, output_of
from tests.support.probe import eventually
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import exports_pb2, resources_pb2
from windlass.api.v1.exports_pb2_grpc import ExportServiceStub
from windlass.cli.app import app
from windlass.cli.export_text import part_of
from windlass.journal.v1.export_pb2 import ExportPart

NODES: list[dict[str, Any]] = [
    {"id": "double", "module": "transform@1", "inputs": {"x": "{{ input.n * 2 }}"}},
    {"id": "each", "module": "for_each@1", "config": {"items": "{{ input.list }}", "body": {"module": "noop@1"}}},
    {"id": "large", "module": "transform@1", "inputs": {"text": "{{ 'x' * 300000 }}"}},
]
TABLES = ("coordinator.executions", "coordinator.journal", "coordinator.runs", "coordinator.approvals")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def elsewhere(shared_stack: Stack) -> Client:
    return await new_workspace(shared_stack, "import-elsewhere", executions_max=5)


async def typed(stack: Stack, key: str, *arguments: object) -> Result:
    """What the command line answers, in this process because that is faster."""
    line = [*map(str, arguments), "--home", str(stack.options.home)]
    if key:
        file = stack.options.home / "elsewhere.key"
        file.write_text(key)
        line += ["--key-file", str(file)]
    return await asyncio.to_thread(lambda: CliRunner().invoke(app, line, catch_exceptions=False))


async def exported(stack: Stack, key: str, execution_id: str, file: Path, *options: str) -> list[dict[str, Any]]:
    told = await typed(stack, key, "export", execution_id, *options)
    assert told.exit_code == 0, told.stderr
    write(file, parts := [json.loads(line) for line in told.stdout.splitlines()])
    return parts


def write(file: Path, parts: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(part) + "\n" for part in parts))


async def imported(stack: Stack, key: str, file: Path, *options: str) -> str:
    told = await typed(stack, key, "import", file, *options)
    assert told.exit_code == 0, told.stderr
    return told.stdout.strip()


async def test_a_copy_in_another_workspace_can_be_read_like_the_execution(
    shared_stack: Stack, elsewhere: Client, tmp_path: Path
) -> None:
    client, file = Client(shared_stack), tmp_path / "execution.jsonl"
    await client.apply("imported", NODES)
    ended = await client.run("imported", input={"n": 1, "list": [1, 2, 3]})
    assert ended.state == resources_pb2.Execution.SUCCESS
    await exported(shared_stack, "", ended.id, file)
    copy_id = await imported(shared_stack, elsewhere.key, file)
    copy = await elsewhere.get(copy_id)
    assert (copy.id, copy.imported_execution_id) == (copy_id, ended.id)
    assert (copy.state, copy.input) == (ended.state, ended.input)
    output, output_before = (json_format.MessageToDict(each.output) for each in (copy, ended))
    key, key_before = output["large"].pop("$ref"), output_before["large"].pop("$ref")
    assert output == output_before
    assert copy.summary == ended.summary
    runs, before = await elsewhere.runs_of(copy_id), await client.runs_of(ended.id)
    assert [(run.node, run.state) for run in runs] == [(run.node, run.state) for run in before]
    (large,) = [run for run in runs if run.node == "large"]
    assert len((await output_of(elsewhere, large.id))["text"]) == 300_000
    assert key == large.output_ref.key != key_before
    shown = await typed(shared_stack, elsewhere.key, "inputs", f"{copy_id}.1")
    assert '"x": 2' in shown.stdout, shown.stdout + shown.stderr
    replayed = await typed(shared_stack, elsewhere.key, "replay", copy_id, "--json")
    assert replayed.exit_code == 0, replayed.stdout + replayed.stderr
    found, of_origin = json.loads(replayed.stdout), await typed(shared_stack, "", "replay", ended.id, "--json")
    assert found["recordedHash"] == found["replayedHash"]
    assert (found["events"], found["redecided"]) == tuple(
        json.loads(of_origin.stdout)[name] for name in ("events", "redecided")
    )
    for verb in ("events", "runs", "explain", "get"):
        told = await typed(shared_stack, elsewhere.key, verb, copy_id)
        assert told.exit_code == 0, (verb, told.stderr)
    listed = await typed(shared_stack, elsewhere.key, "list", "--filter", f"imported_execution_id = {ended.id}")
    assert copy_id in listed.stdout
    unknown = await typed(shared_stack, "", "get", copy_id)
    assert "EXECUTION_NOT_FOUND" in unknown.stderr


async def test_executions_with_relatives_and_failures_are_imported_too(
    shared_stack: Stack, elsewhere: Client, tmp_path: Path
) -> None:
    """A parent, its child, one that failed and was undone, and a fork of that one."""
    client, file = Client(shared_stack), tmp_path / "execution.jsonl"
    await client.apply("imported-child", NODES[:1])
    call = {"module": "sub_workflow@1", "config": {"workflow": "imported-child"}, "inputs": {"n": 4}}
    await client.apply("imported-parent", [{"id": "call", **call}])
    undone = {"id": "done", "module": "noop@1", "compensate": {"module": "noop@1"}}
    fails = {"id": "fails", "module": "fail@1", "config": {"type": "PERMANENT"}}
    await client.apply("imported-failed", [undone, fails], edges=[{"from": "done", "to": "fails"}])
    parent, failed = await client.run("imported-parent"), await client.run("imported-failed")
    assert parent.state == resources_pb2.Execution.SUCCESS, parent
    assert failed.state == resources_pb2.Execution.FAILED, failed
    child = await typed(shared_stack, "", "list", "--filter", f"parent_execution_id = {parent.id}", "--json")
    fork = await typed(shared_stack, "", "fork", failed.id, "--json")
    ids = [parent.id, json.loads(child.stdout)["executions"][0]["id"], failed.id]
    ids.append(json.loads(fork.stdout)["id"])
    await client.end_of(ids[-1])
    for id_ in ids:
        await exported(shared_stack, "", id_, file)
        copy_id = await imported(shared_stack, elsewhere.key, file)
        replayed = await typed(shared_stack, elsewhere.key, "replay", copy_id)
        assert replayed.exit_code == 0, replayed.stdout + replayed.stderr
        before, after = await client.get(id_), await elsewhere.get(copy_id)
        assert (after.state, after.summary, after.error) == (before.state, before.summary, before.error)
    letters = await typed(shared_stack, elsewhere.key, "dead-letters", "list", "--json")
    assert (letters.exit_code, json.loads(letters.stdout)) == (0, {}), letters.stdout


async def test_an_execution_that_was_done_again_after_its_end_is_imported(
    shared_stack: Stack, elsewhere: Client, tmp_path: Path
) -> None:
    client, file = Client(shared_stack), tmp_path / "execution.jsonl"
    await client.apply("imported-again", [{"id": "fails", "module": "fail@1", "config": {"type": "PERMANENT"}}])
    ended = await client.run("imported-again")
    await typed(shared_stack, "", "dead-letters", "requeue", f"{ended.id}.1")

    async def has_failed_again() -> bool:
        now = await client.get(ended.id)
        return (now.state, now.metrics.runs) == (resources_pb2.Execution.FAILED, 2)

    await eventually(has_failed_again, 20.0, "the second failure")
    await exported(shared_stack, "", ended.id, file)
    copy = await elsewhere.get(await imported(shared_stack, elsewhere.key, file))
    assert (copy.state, copy.metrics.runs) == (resources_pb2.Execution.FAILED, 2)


async def test_a_copy_can_be_exported_and_imported_again(
    shared_stack: Stack, elsewhere: Client, tmp_path: Path
) -> None:
    client, first, second = Client(shared_stack), tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    await client.apply("imported-twice", NODES)
    ended = await client.run("imported-twice", input={"n": 1, "list": [1]})
    before = await exported(shared_stack, "", ended.id, first)
    copy_id = await imported(shared_stack, elsewhere.key, first)
    after = await exported(shared_stack, elsewhere.key, copy_id, second)
    assert [next(iter(part)) for part in after] == [next(iter(part)) for part in before]
    assert after[0]["header"]["definition"] == before[0]["header"]["definition"]
    again = await imported(shared_stack, "", second)
    assert (await client.get(again)).imported_execution_id == copy_id


COMMANDS: dict[str, tuple[str, ...]] = {
    "cancel": (),
    "pause": (),
    "resume": (),
    "retry": (),
    "fork": (),
    "signal": ("go",),
}


async def test_an_execution_that_goes_on_is_imported_as_it_stands_and_takes_no_command(
    shared_stack: Stack, elsewhere: Client, tmp_path: Path
) -> None:
    client, file = Client(shared_stack), tmp_path / "execution.jsonl"
    config = {"title": "Go on?", "timeout": "1h", "assignees": ["anybody"]}
    await client.apply("imported-asleep", [{"id": "ask", "module": "approval@1", "config": config}])
    started = await client.start("imported-asleep")

    async def waits() -> bool:
        return (await client.get(started.id)).state == resources_pb2.Execution.WAITING

    await eventually(waits, 10, "the execution to wait")
    await exported(shared_stack, "", started.id, file)
    copy_id = await imported(shared_stack, elsewhere.key, file)
    state = (await elsewhere.get(copy_id)).state
    for verb, more in COMMANDS.items():
        told = await typed(shared_stack, elsewhere.key, verb, copy_id, *more)
        assert (told.exit_code, "EXECUTION_IMPORTED" in told.stderr) == (1, True), (verb, told.stdout, told.stderr)
    assert (await elsewhere.get(copy_id)).state == state
    asked, asked_there = [await typed(shared_stack, key, "approvals", "list") for key in ("", elsewhere.key)]
    assert (asked.exit_code, started.id in asked.stdout) == (0, True), asked.stdout
    assert (asked_there.exit_code, copy_id in asked_there.stdout) == (0, False), asked_there.stdout
    decided = await typed(shared_stack, elsewhere.key, "approvals", "decide", f"{copy_id}.1", "APPROVE")
    assert "EXECUTION_IMPORTED" in decided.stderr, decided.stderr
    watched = await typed(shared_stack, elsewhere.key, "watch", copy_id)
    assert "ApprovalRequested" in watched.stdout, watched.stderr
    await client.cancel(started.id)
    assert (await elsewhere.get(copy_id)).state == state


async def test_commands_for_a_filter_leave_copies_out_and_say_so(
    shared_stack: Stack, elsewhere: Client, tmp_path: Path
) -> None:
    """A copy that matches is no failure of the command: nobody can do anything about it."""
    file = tmp_path / "execution.jsonl"
    fails = [{"id": "fails", "module": "fail@1", "config": {"type": "PERMANENT"}}]
    await elsewhere.apply("imported-among", fails)
    own = await elsewhere.run("imported-among")
    await exported(shared_stack, elsewhere.key, own.id, file)
    await imported(shared_stack, elsewhere.key, file)
    of_both = ("--filter", 'workflow = "imported-among"')
    retried = await typed(shared_stack, elsewhere.key, "retry", *of_both)
    assert retried.exit_code == 0, (retried.stdout, retried.stderr)
    assert "done     1\n" in retried.stdout
    assert "left out 1 imported copy, which nothing changes\n" in retried.stdout
    assert "EXECUTION_IMPORTED" not in retried.stdout
    forked = await typed(shared_stack, elsewhere.key, "fork", *of_both)
    assert (forked.exit_code, forked.stdout.count("fork of")) == (0, 1), (forked.stdout, forked.stderr)
    assert forked.stderr == "left out: 1 imported copy, which nothing changes\n"


async def test_an_import_is_repeated_by_its_request_id_and_no_other_file_may_use_it(
    shared_stack: Stack, elsewhere: Client, tmp_path: Path
) -> None:
    client, file, other = Client(shared_stack), tmp_path / "execution.jsonl", tmp_path / "other.jsonl"
    await client.apply("imported-again", NODES[:1])
    await exported(shared_stack, "", (await client.run("imported-again", input={"n": 1})).id, file)
    await exported(shared_stack, "", (await client.run("imported-again", input={"n": 2})).id, other)
    parts = [part_of(line, ExportPart()) for line in file.read_bytes().splitlines()]
    request = exports_pb2.ImportExecutionRequest(request_id="same", parts=parts)
    stub: Any = ExportServiceStub(shared_stack.channel())
    answers = await asyncio.gather(
        *(stub.ImportExecution(iter([request]), metadata=elsewhere.metadata, timeout=20.0) for _ in range(4))
    )
    assert sorted(answer.existing for answer in answers) == [False, True, True, True]
    copies = {answer.execution.id for answer in answers}
    assert copies == {await imported(shared_stack, elsewhere.key, file, "--request-id", "same")}
    refused = await typed(shared_stack, elsewhere.key, "import", other, "--request-id", "same")
    assert (refused.exit_code, "REQUEST_ID_REUSED" in refused.stderr) == (1, True), refused.stderr


def _changed(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[list[Any]], list[Any]]:
    return lambda parts: [{name: change(part[name])} if name in part else part for part in parts]


def _output_of_run(text: str) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    def change(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        copied: list[dict[str, Any]] = json.loads(json.dumps(parts))
        for part in copied:
            succeeded = part.get("event", {}).get("event", {}).get("run_succeeded", {})
            if "json" in succeeded.get("output", {}):
                part["event"]["event"]["run_succeeded"]["output"] = {"json": text}
        return copied

    return change


def _caller(text: str) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    def change(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        copied: list[dict[str, Any]] = json.loads(json.dumps(parts))
        copied[1]["event"]["event"]["execution_started"]["origin"]["caller"] = text
        return copied

    return change


def _without_rows(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    end = {name: value for name, value in parts[-1]["end"].items() if name not in ("rows", "recorded_hash")}
    return [*(part for part in parts[:-1] if "row" not in part), {"end": end}]


# Each entry changes a whole file, and has a part of the refusal that follows.
HARM: dict[str, tuple[Callable[[list[dict[str, Any]]], list[dict[str, Any]]], str]] = {
    "an event was changed": (_output_of_run('{"x":3}'), "(RunSucceeded) does not add up"),
    "an output is no JSON": (_output_of_run("{"), "is no JSON"),
    "a text is longer than any that comes here": (_caller("c" * 2_000), "caller has 2000 characters"),
    "an event is missing": (lambda parts: [*parts[:2], *parts[3:]], "after event 1 comes 3"),
    "a row was changed": (
        _changed("row", lambda row: row | {"columns": row["columns"].replace("SUCCESS", "FAILED")}),
        "does not add up",
    ),
    "the rows were taken out": (_without_rows, "has rows if the execution has ended"),
    "the hash is another": (_changed("end", lambda end: end | {"recorded_hash": "0" * 64}), "has the hash of"),
    "an output was changed": (
        _changed("output", lambda output: output | {"data": output["data"].replace("harm", "haul")}),
        "is not the one that its event names",
    ),
    "an output is too long": (
        _changed("output", lambda output: output | {"data": output["data"] + "x"}),
        "is larger than its event says",
    ),
    "an output has another name": (
        _changed("output", lambda output: output | {"key": output["key"][::-1]}),
        "is named by no event",
    ),
    "the lease is another": (
        _changed("event", lambda event: event | {"epoch": event["epoch"] + (event["seq"] > 2)}),
        "was granted",
    ),
    "the version is another": (
        _changed("header", lambda header: header | {"version": header["version"] + 1}),
        "different versions",
    ),
    "the header has no id": (_changed("header", lambda header: header | {"execution_id": "x"}), "no id"),
    "the end is missing": (lambda parts: parts[:-1], "not whole"),
}


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """The parts of one export, once they are known."""
    return {}


# These are found when the outputs have come.
FOUND_LATE = {"the hash is another", "the end is missing"}


def stored_files(stack: Stack) -> set[Path]:
    return {file for file in (stack.options.home / "outputs").rglob("*") if file.is_file()}


@pytest.mark.parametrize("harm", HARM)
async def test_a_damaged_file_is_refused_with_its_fault_and_nobody_can_read_anything_of_it(
    shared_stack: Stack, elsewhere: Client, tmp_path: Path, whole: dict[str, Any], harm: str
) -> None:
    file = tmp_path / "execution.jsonl"
    if not whole:
        client = Client(shared_stack)
        large = NODES[2] | {"inputs": {"text": "{{ 'harm' * 80000 }}"}}
        await client.apply("import-harmed", [NODES[0], large])
        ended = await client.run("import-harmed", input={"n": 1})
        whole["parts"] = await exported(shared_stack, "", ended.id, file)
    change, message = HARM[harm]
    write(file, change(whole["parts"]))
    before, files_before = await shared_stack.counts(*TABLES), stored_files(shared_stack)
    assert files_before
    told = await typed(shared_stack, elsewhere.key, "import", file)
    assert (told.exit_code, told.stdout) == (1, ""), told.stdout
    assert "INVALID_EXPORT" in told.stderr
    assert message in told.stderr.replace("\n", " ")
    assert await shared_stack.counts(*TABLES) == before
    if harm not in FOUND_LATE:
        assert stored_files(shared_stack) == files_before


async def test_a_file_without_outputs_is_imported_without_them(
    shared_stack: Stack, elsewhere: Client, tmp_path: Path
) -> None:
    client, file = Client(shared_stack), tmp_path / "execution.jsonl"
    await client.apply("imported-lean", [NODES[2] | {"inputs": {"text": "{{ 'lean' * 90000 }}"}}])
    ended = await client.run("imported-lean")
    await exported(shared_stack, "", ended.id, file, "--without-outputs")
    copy_id = await imported(shared_stack, elsewhere.key, file)
    (run,) = [run for run in await elsewhere.runs_of(copy_id) if run.node == "large"]
    assert run.output_ref.size_bytes > 300_000
    told = await typed(shared_stack, elsewhere.key, "replay", copy_id)
    assert told.exit_code == 0, told.stdout


async def test_no_promise_of_the_stack_is_broken_by_copies(tmp_path: Path) -> None:
    """One copy is in another workspace, and one in that of its execution."""
    file = tmp_path / "execution.jsonl"
    async with running_stack() as stack:
        client, other = Client(stack), await new_workspace(stack, "beside", executions_max=5)
        await client.apply("imported-beside", NODES)
        ended = await client.run("imported-beside", input={"n": 1, "list": [1, 2]})
        await exported(stack, "", ended.id, file)
        await imported(stack, other.key, file)
        await imported(stack, "", file)
        await verify(stack, set())


@pytest.mark.parametrize("verb", ["import", "replay"])
@pytest.mark.parametrize(
    ("rows", "message"), [(40, "is not in its place"), (80, "EXPORT_TOO_LARGE")], ids=["a large file", "one too large"]
)
async def test_a_fault_in_a_large_file_is_told_while_it_is_still_sent(
    shared_stack: Stack, tmp_path: Path, verb: str, rows: int, message: str
) -> None:
    client, file = Client(shared_stack), tmp_path / "execution.jsonl"
    await client.apply("imported-large", NODES[:1])
    parts = await exported(shared_stack, "", (await client.run("imported-large", input={"n": 1})).id, file)
    (place,) = [place for place, part in enumerate(parts) if part.get("row", {}).get("table") == "executions"]
    columns = json.dumps({"node": "x" * 900_000})
    numbers = range(1, rows + 1) if message == "EXPORT_TOO_LARGE" else [1] * rows
    more = [{"row": {"table": "runs", "number": number, "columns": columns}} for number in numbers]
    write(file, [*parts[: place + 1], *more, parts[-1]])
    told = await typed(shared_stack, "", verb, file)
    assert (told.exit_code, told.stdout) == (1, "")
    assert message in told.stderr, told.stderr
