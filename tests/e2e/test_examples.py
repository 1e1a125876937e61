"""Every workflow of examples/workflows does what its page says.

A page has the commands that a person types, in blocks of `sh`, and says how the execution ends. The test carries out
these commands in their order: it applies and starts by the API, because that is faster, and types all others into a
shell. Before a command it waits until the execution is ready for it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from typer.testing import CliRunner

from examples.workflows.crm import Contacts
from tests.support.api import Client
from tests.support.probe import eventually, until
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import approvals_pb2, dead_letters_pb2, exports_pb2, resources_pb2
from windlass.api.v1.dead_letters_pb2_grpc import DeadLetterServiceStub
from windlass.api.v1.exports_pb2_grpc import ExportServiceStub
from windlass.cli.app import app
from windlass.definition.parsing import Format, parse

Execution = resources_pb2.Execution
ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "workflows"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
SECONDS = 30.0
_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
_END = re.compile(r"\bends as ([A-Z]+)(?: with the error\s`([A-Z_]+)`)?")
_OUTPUT = re.compile(r"```json\n(.*?)```", re.DOTALL)
# What a page says of its execution beside its end.
CLAIMS: dict[str, Callable[[Any], bool]] = {
    "order-saga": lambda ended: list(ended.summary.compensated) == ["reserve", "charge"],
    "etl-fan-out": lambda ended: ended.metrics.runs > 1_000,
    "busy-supplier": lambda ended: ended.metrics.retries == 2,
    "model-chain": lambda ended: ended.metrics.cost_tokens == 18,
    "nightly-report": lambda ended: ended.labels["kind"] == "report",
    "urgent-order": lambda ended: (ended.priority, dict(ended.labels)) == (5, {"team": "books", "customer": "c-17"}),
    "slow-search": lambda ended: list(ended.summary.failed) == ["search"],
    "close-month": lambda ended: (*ended.summary.failed, "export" in ended.summary.cancelled) == ("balances", True),
    "choose-carrier": lambda ended: list(ended.summary.skipped) == ["letter", "freight"],
}

ANN, CEM = ({"name": name, "address": f"{name.lower()}@example.org"} for name in ("Ann", "Cem"))
# What follows when a text in the commands is another: the example, the text, the other, and the output.
VARIANTS: list[tuple[str, str, str, Any]] = [
    ("order-saga", "NZ", "DE", {"ship": {"parcel": "s-7"}}),
    ("canary-release", '"errors": 0.2', '"errors": 5', {"call_person": {"ask": "Look at v2, please."}}),
    ("canary-release", '"errors": 0.2', '"errors": 50', {"roll_back": {"percent": 0, "because": "too many errors"}}),
    ("refused-card", '"0000"', '"4111"', {"letter": "Thank you for 90 EUR.", "cart": "closed"}),
    ("webhook-to-crm", "changed", "created", {"answer": {"contact": "/contacts/7"}, "ignored": False}),
    ("webhook-to-crm", "changed", "seen", {"answer": None, "ignored": True}),
    ("close-month", '-3, 40], "export": "10m"', '40], "export": "0"', {"close": {"closed": "2026-11", "accounts": 2}}),
    ("choose-carrier", "1200", "120", {"by": "post", "price": 2}),
    ("import-contacts", '"Bob", ', "", {"contacts": [ANN, CEM], "letter": None}),
    (
        "support-reply",
        '{"text": "Please send it back within 30 days."}',
        "{}",
        {"send": {"sent": "Thank you for asking"}},
    ),
    (
        "support-reply",
        """APPROVE --form '{"text": "Please send it back within 30 days."}'""",
        "REJECT --comment 'it is about the law'",
        {"hand_over": {"to": "the second line", "why": "it is about the law"}},
    ),
    (
        "invoice-approval",
        """APPROVE --form '{"account": "4711"}' --comment""",
        "REJECT --comment",
        {"paid": None, "approvals": 2},
    ),
]


class Page(NamedTuple):
    """What the page of an example promises."""

    commands: list[str]
    state: str
    error: str
    output: Any


def page_of(name: str) -> Page:
    text = (FOLDER / f"{name}.md").read_text()
    commands = [line for block in _BLOCK.findall(text) for line in block.splitlines()]
    ((state, error),) = _END.findall(text)
    outputs = _OUTPUT.findall(text)
    return Page(commands, state, error, json.loads(outputs[0]) if outputs else None)


class Reader:
    """Somebody who follows a page. What the page says of other places is replaced by those of the test."""

    def __init__(self, stack: Stack, crm: str, folder: Path) -> None:
        self._stack, self._client, self._folder = stack, Client(stack), folder
        self._places = {"http://127.0.0.1:8080": crm, "/tmp/": f"{folder}/"}  # noqa: S108
        self._execution_id = ""

    async def follow(self, commands: list[str]) -> Any:
        """The execution at its end."""
        for line in commands:
            await self._type(line)
        ended = await self._client.end_of(self._execution_id)
        stub: Any = ExportServiceStub(self._stack.channel())
        for execution_id in (self._execution_id, await self._imported(stub)):
            await self._replays(stub, execution_id)
        return ended

    async def _replays(self, stub: Any, execution_id: str) -> None:
        """The journal adds up to what was recorded, whatever has happened in it."""
        request = exports_pb2.ReplayExecutionRequest(execution_id=execution_id)
        replay = (await self._client.call(stub.ReplayExecution, request)).replay
        assert not replay.HasField("first_difference"), replay
        assert replay.recorded_hash == replay.replayed_hash != ""
        assert replay.redecided > 0
        # The id of a child follows from that of its parent, and a copy has another one.
        is_copy = execution_id != self._execution_id
        assert (is_copy and replay.decided_otherwise.field == "child_execution_id") or not replay.HasField(
            "decided_otherwise"
        ), replay

    async def _imported(self, stub: Any) -> str:
        """The id of a copy."""
        export = exports_pb2.ExportExecutionRequest(execution_id=self._execution_id)
        answers = stub.ExportExecution(export, metadata=self._client.metadata, timeout=60.0)
        requests = [exports_pb2.ImportExecutionRequest(parts=answer.parts) async for answer in answers]
        return str((await self._client.call(stub.ImportExecution, iter(requests))).execution.id)

    async def _type(self, line: str) -> None:
        for place, own in self._places.items():
            line = line.replace(place, own)
        match shlex.split(line, comments=True):
            case ["windlass", "workflow", "apply", file]:
                await self._client.apply(**parse((ROOT / file).read_text(), Format.YAML).document)
            case ["windlass", "start", *arguments]:
                await self._start(arguments)
            case ["windlass", "signal", *_]:
                await eventually(self._has_reminded, SECONDS, "the reminder")
                await self._shell(line)
            case ["windlass", "run", "complete", *_]:
                order = self._folder / "bank-order"
                await until(lambda: order.exists() and order.read_text(), SECONDS, "the order to the bank")
                await self._shell(line)
            case ["windlass", "circuits", "open", *_]:
                await self._shell(line)
                await eventually(self._circuit_is_known, SECONDS, "the coordinator to know the open circuit")
            case ["windlass", "circuits", "list", *_]:
                await eventually(self._waits, SECONDS, "the execution to wait")
                await self._shell(line)
            case _:
                await self._shell(line)

    async def _start(self, arguments: list[str]) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("workflow")
        parser.add_argument("--input", default="{}")
        parser.add_argument("--label", action="append", default=[])
        parser.add_argument("--priority", type=int, default=3)
        parser.add_argument("--request-id", default="")
        parser.add_argument("--wait", action="store_true")
        given = parser.parse_args(arguments)
        labels = dict(label.split("=", 1) for label in given.label)
        values = json_format.Parse(given.input, Struct())
        started = await self._client.start(
            given.workflow, input=values, labels=labels, priority=given.priority, request_id=given.request_id
        )
        self._execution_id = started.id

    async def _shell(self, line: str) -> None:
        """Type the line into a shell, with the ids that it leaves open."""
        line = line.replace("EXECUTION_ID", self._execution_id)
        if "APPROVAL_ID" in line:
            line = line.replace("APPROVAL_ID", await eventually(self._approval, SECONDS, "the approval"))
        if "DEAD_LETTER_ID" in line:
            line = line.replace("DEAD_LETTER_ID", await eventually(self._dead_letter, SECONDS, "the dead letter"))
        clean = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", line),
            cwd=self._folder,
            env=clean | {"PATH": path, "WINDLASS_HOME": str(self._stack.options.home)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, f"{line}\n{said.decode()}"

    async def _has_reminded(self) -> bool:
        runs = await self._client.runs_of(self._execution_id)
        return any(run.node == "remind" and run.state == resources_pb2.Run.SUCCESS for run in runs)

    async def _waits(self) -> bool:
        return (await self._client.get(self._execution_id)).state == Execution.WAITING

    async def _circuit_is_known(self) -> bool:
        return "coordinator_circuits_open 1.0" in await self._stack.metrics("coordinator")

    async def _approval(self) -> str | None:
        request = approvals_pb2.ListApprovalsRequest(
            filter=f'execution_id = "{self._execution_id}" AND state = PENDING'
        )
        found = (await self._client.call(self._client.approvals.ListApprovals, request)).approvals
        return found[0].id if found else None

    async def _dead_letter(self) -> str | None:
        stub: Any = DeadLetterServiceStub(self._stack.channel())
        request = dead_letters_pb2.ListDeadLettersRequest(filter=f'execution_id = "{self._execution_id}"')
        found = (await self._client.call(stub.ListDeadLetters, request)).dead_letters
        return found[0].id if found else None


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack(modules=[FOLDER / "modules.py"], allow_net=["127.0.0.1"]) as made:
        yield made


@pytest.fixture(scope="module")
def crm() -> Iterator[str]:
    """The address of the customer database of the examples."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Contacts) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_every_example_has_a_page_and_a_line_in_the_index() -> None:
    index = (FOLDER / "README.md").read_text()
    pages = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")
    assert pages == NAMES
    assert sorted(re.findall(r"^\| \[([a-z-]+)\]\(\1\.md\)", index, re.MULTILINE)) == NAMES
    assert set(CLAIMS) <= set(NAMES)
    assert all((page.output is None) == bool(page.error) for page in map(page_of, NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_has_no_fault(name: str) -> None:
    answer = CliRunner().invoke(app, ["validate", "--offline", str(FOLDER / f"{name}.yaml")])
    assert (answer.exit_code, answer.stdout.splitlines()[-1]) == (0, "no fault"), answer.output


@pytest.mark.parametrize("name", NAMES)
async def test_an_example_ends_as_its_page_says(stack: Stack, crm: str, tmp_path: Path, name: str) -> None:
    page = page_of(name)
    ended = await Reader(stack, crm, tmp_path).follow(page.commands)
    assert Execution.State.Name(ended.state) == page.state, ended.error
    assert (ended.workflow, ended.error.type) == (name, page.error)
    if page.output is not None:
        assert json_format.MessageToDict(ended.output) == page.output
    assert CLAIMS.get(name, lambda _: True)(ended)


@pytest.mark.parametrize(("name", "text", "other", "output"), VARIANTS)
async def test_another_input_takes_another_way(
    stack: Stack, crm: str, tmp_path: Path, name: str, text: str, other: str, output: Any
) -> None:
    commands = page_of(name).commands
    assert any(text in line for line in commands)
    ended = await Reader(stack, crm, tmp_path).follow([line.replace(text, other) for line in commands])
    assert ended.state == Execution.SUCCESS, ended.error
    assert json_format.MessageToDict(ended.output) == output


async def test_a_small_invoice_is_paid_without_approval(stack: Stack, crm: str, tmp_path: Path) -> None:
    apply, start, *_ = page_of("invoice-approval").commands
    ended = await Reader(stack, crm, tmp_path).follow([apply, start.replace("2500", "20")])
    assert json_format.MessageToDict(ended.output) == {"paid": {"amount": 20, "from": "petty cash"}, "approvals": 0}
