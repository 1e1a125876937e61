"""Verbs of the command line against a stack: runs and their outputs, events, many starts, and signals to many."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest_asyncio
import yaml
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from tests.support.api import Client
from tests.support.command_line import windlass
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import resources_pb2
from windlass.cli.events import INTERRUPTED

Execution = resources_pb2.Execution
SECONDS = 30.0
WAITS = {"id": "wait", "module": "wait_signal@1", "config": {"signal": "go", "timeout": "1h"}}


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


class Typed:
    """The words that somebody types for the stack."""

    def __init__(self, stack: Stack) -> None:
        self._home = stack.options.home

    async def __call__(self, *words: object, given: str | None = None) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(windlass, *words, "--home", self._home, given=given)

    async def done(self, *words: object, given: str | None = None) -> str:
        """What it prints. It must have ended with 0."""
        answer = await self(*words, given=given)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(shared_stack: Stack) -> Client:
    made = Client(shared_stack)
    first = {"id": "first", "module": "transform@1", "inputs": {"text": "{{ input.text | default('ü') }}"}}
    await made.apply("typed", [first, {"id": "last", "module": "noop@1"}], edges=[{"from": "first", "to": "last"}])
    await made.apply("typed-wait", [WAITS])
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def typed(shared_stack: Stack) -> Typed:
    return Typed(shared_stack)


async def test_a_redrive_says_how_many_were_cancelled_and_ends_with_1(client: Client, typed: Typed) -> None:
    await client.apply("typed-endless", [{"id": "wait", "module": "test.waits@1"}])
    execution = await client.start("typed-endless")

    async def runs() -> int:
        return len(await client.runs_of(execution.id))

    async def second_run() -> bool:
        return await runs() == 2

    await eventually(runs, SECONDS, "the run")
    await typed.done("dead-letters", "quarantine", f"{execution.id}.1")
    await client.end_of(execution.id)
    redrive = asyncio.create_task(typed("dead-letters", "redrive", "--filter", 'workflow = "typed-endless"'))
    await eventually(second_run, SECONDS, "the work to be done again")
    await typed.done("cancel", execution.id)
    told = await redrive
    assert told.returncode == 1, told.stderr
    assert told.stdout.splitlines()[-1].startswith(
        "1 of 1 requeued, 0 succeeded, 0 failed again, 1 cancelled or timed out: too many"
    )


async def test_a_run_is_shown_and_its_output_printed_whole(client: Client, typed: Typed, tmp_path: Path) -> None:
    words = Struct()
    words.update({"text": "ü" * 1_000})
    ended = await client.run("typed", input=words)
    (run_id,) = (await typed.done("runs", ended.id, "--node", "first", "-o", "name")).split()
    shown = await typed.done("run", "get", run_id)
    assert "first" in shown
    assert "SUCCESS" in shown
    assert json.loads(await typed.done("run", "get", run_id, "-o", "json"))["executionId"] == ended.id
    printed = await typed.done("run", "output", run_id)
    assert (json.loads(printed), printed.count("\n"), printed[-1]) == ({"text": "ü" * 1_000}, 1, "\n")
    assert await typed.done("run", "output", run_id, "-o", "json") == printed
    assert yaml.safe_load(await typed.done("run", "output", run_id, "-o", "yaml")) == {"text": "ü" * 1_000}
    for form in ("name", "yaml"):
        assert (await typed("run", "output", run_id, "--output", tmp_path / "none", "-o", form)).returncode == 2
    file = tmp_path / "output.json"
    assert await typed.done("run", "output", run_id, "--output", file) == ""
    assert json.loads(file.read_text()) == {"text": "ü" * 1_000}
    link = tmp_path / "link"
    link.symlink_to(file)
    assert await typed.done("run", "output", run_id, "--output", link) == ""
    assert link.is_symlink()
    assert contents(tmp_path).keys() == {"output.json", "link"}
    # A device or a pipe is written to, not replaced.
    assert json.loads(await typed.done("run", "output", run_id, "--output", "/dev/stdout")) == {"text": "ü" * 1_000}


async def test_who_names_no_run_is_told_where_the_ids_are(client: Client, typed: Typed) -> None:
    ended = await client.run("typed")
    for given, listed in (("1", "runs -o name"), (ended.id, f"runs {ended.id} -o name"), (f"{ended.id}.99", "runs ")):
        refused = await typed("inputs", given)
        (hint,) = [line for line in refused.stderr.splitlines() if line.startswith("try: ")]
        assert (refused.returncode, f" {listed}" in hint) == (1, True), hint
        words = shlex.split(hint.removeprefix("try: "))
        answer = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, check=True)
        assert ended.id in answer.stdout or given.endswith(".99")


async def test_a_faulty_field_is_told_once_and_without_the_describing_of_requests(typed: Typed) -> None:
    refused = await typed("list", "--filter", "state = FALED")
    message, reason = refused.stderr.splitlines()
    assert message.startswith("filter: at character 9: 'FALED' is not a state; use one of ")
    assert (refused.returncode, reason) == (1, "reason: INVALID_REQUEST")


async def test_a_number_beyond_the_newest_event_is_noticed(client: Client, typed: Typed) -> None:
    ended = await client.run("typed")
    notice = f"the newest event is number {ended.last_seq}\n"
    for verb in ("events", "get"):
        beyond = await typed(verb, ended.id, "--as-of-seq", ended.last_seq + 1)
        assert (beyond.returncode, beyond.stderr) == (0, notice)
        assert (await typed(verb, ended.id, "--as-of-seq", ended.last_seq)).stderr == ""
    assert (await typed("events", ended.id, "--after-seq", ended.last_seq)).stderr == notice


async def test_a_command_in_an_explanation_works_as_it_is_printed(client: Client, typed: Typed) -> None:
    execution = await client.start("typed-wait")

    async def hinted() -> list[str]:
        return [line for line in (await typed.done("explain", execution.id)).splitlines() if "try: " in line]

    (hint,) = await eventually(hinted, SECONDS, "the wait for the signal")
    words = shlex.split(hint.partition("try: ")[2])
    await asyncio.to_thread(subprocess.run, words, capture_output=True, check=True)
    assert (await client.end_of(execution.id)).state == Execution.SUCCESS
    nameless = await typed("explain", execution.id, "-o", "name")
    assert (nameless.returncode, nameless.stdout) == (2, "")


async def test_a_file_stays_as_it_was_when_there_is_no_output(typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "output.json"
    file.write_text("before")
    refused = await typed("run", "output", "01990000-0000-7000-8000-000000000000.1", "--output", file)
    assert (refused.returncode, contents(tmp_path)) == (1, {"output.json": "before"})
    assert "RUN_NOT_FOUND" in refused.stderr


async def test_runs_of_the_workspace_are_listed_in_pages_by_state(client: Client, typed: Typed) -> None:
    await client.run("typed")
    page = await typed("runs", "--state", "SUCCESS", "--node", "last", "--limit", "1", "-o", "json")
    answer = json.loads(page.stdout)
    assert [run["node"] for run in answer["runs"]] == ["last"]
    assert answer["nextPageToken"]
    await client.run("typed")
    first = await typed("runs", "--state", "SUCCESS", "--limit", "1")
    assert "there are more: --page-token " in first.stderr
    token = first.stderr.split()[-1]
    following = await typed("runs", "--state", "SUCCESS", "--limit", "1", "--page-token", token, "-o", "json")
    assert len(json.loads(following.stdout)["runs"]) == 1


async def test_events_are_told_from_one_to_another_in_each_form(client: Client, typed: Typed) -> None:
    ended = await client.run("typed")
    part = ("events", ended.id, "--after-seq", 2, "--as-of-seq", 4)
    assert (await typed.done(*part, "-o", "name")).split() == ["3", "4"]
    lines = (await typed.done(*part, "--json")).splitlines()
    documents = list(yaml.safe_load_all(await typed.done(*part, "-o", "yaml")))
    assert [json.loads(line) for line in lines] == documents
    assert len((await typed.done("events", ended.id)).splitlines()) == ended.last_seq


async def test_each_line_of_a_file_is_a_start_and_a_refused_one_harms_no_other(client: Client, typed: Typed) -> None:
    requests: list[dict[str, Any]] = [
        {"workflow": "typed", "requestId": "line-1", "labels": {"from": "lines"}},
        {"workflow": "no-such"},
        {"input": {"text": "x"}},
    ]
    text = "\n\n".join(map(json.dumps, requests)) + "\n\n"
    answer = await typed("start-many", "-", "--workflow", "typed", "-o", "name", given=text)
    assert answer.returncode == 1
    assert "line 3: " in answer.stderr
    assert "WORKFLOW_NOT_FOUND" in answer.stderr
    first, third = answer.stdout.split()
    assert dict((await client.get(first)).labels) == {"from": "lines"}
    assert (await client.end_of(third)).state == Execution.SUCCESS
    again = await typed.done("start-many", "-", "-o", "name", given=json.dumps(requests[0]))
    assert again.split() == [first]
    wrong = await typed("start-many", "-", given='{"workflow": "typed"}\n{"work": 1}\n')
    assert (wrong.returncode, "line 2" in wrong.stderr) == (2, True)


async def test_a_signal_goes_to_many_by_ids_and_by_a_filter(client: Client, typed: Typed) -> None:
    label = {"for": "signals"}
    ids = [(await client.start("typed-wait", labels=label)).id for _ in range(3)]
    filter_ = ("--filter", "labels.for = signals AND NOT state = SUCCESS")
    assert sorted((await typed.done("signal", "go", *filter_, "--dry-run")).split()) == sorted(ids)
    told = await typed.done("signal", "-", "go", "--payload", '{"by": "ids"}', "-o", "name", given=f"{ids[0]}\n")
    assert told.split() == [ids[0]]
    assert MessageToDict((await client.end_of(ids[0])).output) == {"wait": {"by": "ids"}}
    assert sorted((await typed.done("signal", "go", *filter_, "-o", "name")).split()) == sorted(ids[1:])
    for each in ids[1:]:
        assert (await client.end_of(each)).state == Execution.SUCCESS
    late = await typed("signal", *ids, "go")
    assert (late.returncode, late.stderr.count("already ended: SUCCESS (EXECUTION_FINAL)")) == (1, 3)


async def test_a_signal_that_nobody_waits_for_is_said_to_be_kept(client: Client, typed: Typed) -> None:
    execution = await client.start("typed-wait")

    async def is_waiting() -> bool:
        return (await client.get(execution.id)).state == Execution.WAITING

    await eventually(is_waiting, SECONDS, "the wait for the signal")
    kept = await typed("signal", execution.id, "goo", "-o", "json")
    assert (kept.returncode, json.loads(kept.stdout)["id"]) == (0, execution.id)
    assert kept.stderr.splitlines() == [
        f'{execution.id}: no node waits for the signal "goo"; it is kept until one does',
        "  wait waits for the signal go",
    ]
    assert "Signals that are kept until a node waits for them:\n  goo: came " in await typed.done(
        "explain", execution.id
    )
    taken = await typed("signal", execution.id, "go")
    assert (taken.returncode, taken.stderr) == (0, "")
    assert (await client.end_of(execution.id)).state == Execution.SUCCESS


async def test_a_wait_for_an_end_that_does_not_come_is_over_in_time(client: Client, typed: Typed) -> None:
    answer = await typed("start", "typed-wait", "--wait", "1s", "-o", "json")
    begun = json.loads(answer.stdout)
    assert (answer.returncode, begun["state"]) == (1, "WAITING")
    await typed.done("cancel", begun["id"])
    ended = await typed.done("start", "typed", "--wait", "1m", "--input", "@-", "-o", "yaml", given='{"text": "hi"}')
    assert yaml.safe_load(ended)["state"] == "SUCCESS"


async def test_who_stops_watching_is_told_how_to_come_back(client: Client, shared_stack: Stack) -> None:
    begun = await client.start("typed-wait")
    watching = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "windlass.cli", "watch", begun.id, "--home", str(shared_stack.options.home)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert watching.stdout is not None
    async with asyncio.timeout(SECONDS):
        assert b"ExecutionStarted" in await watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, said = await watching.communicate()
    assert watching.returncode == INTERRUPTED
    assert "the execution goes on without you" in said.decode()
    assert f" watch {begun.id}" in said.decode()
    await client.cancel(begun.id)


async def test_files_are_applied_in_their_order_until_one_is_refused(typed: Typed, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.yaml" for name in ("one", "two", "three")]
    for file, module in zip(files, ("noop@1", "nope@1", "noop@1"), strict=True):
        file.write_text(f"name: applied-{file.stem}\nnodes: [{{id: a, module: {module}}}]\n")
    answer = await typed("apply", "-f", *files)
    assert answer.returncode == 1
    assert answer.stdout.split() == ["applied-one", "version", "1", "CREATED"]
    assert "UNKNOWN_MODULE" in answer.stderr or "there is no nope@1" in answer.stderr
    names = (await typed.done("workflow", "list", "-o", "name")).split()
    assert {"applied-one", "applied-three"} & set(names) == {"applied-one"}
    assert (await typed.done("apply", files[0], "-f", files[2], "-o", "name")).split() == [
        "applied-three",
        "applied-one",
    ]


async def test_names_of_one_verb_are_the_ids_of_the_next(client: Client, typed: Typed) -> None:
    ids = [(await client.start("typed-wait", labels={"for": "pipes"})).id for _ in range(2)]
    names = await typed.done("list", "--filter", "labels.for = pipes", "-o", "name")
    assert sorted(names.split()) == sorted(ids)
    assert sorted((await typed.done("cancel", "-", "-o", "name", given=names)).split()) == sorted(ids)
