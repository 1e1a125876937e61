"""Every example of docs/definitions.md ends as the page says.

Comments at the end of an example say what a person does, in this order, and how the execution ends:

    # start with {"order": 7}                       the input
    # signal paid-7 with {"amount": 90}
    # reject                                        the approval that it waits for
    # fix charge with {"paid": true}                the dead letter of this node
    # ends as SUCCESS with {"ship": null}           or: ends as FAILED with the error TYPE
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from examples.workflows.crm import Contacts
from tests.support.api import Client
from tests.support.probe import eventually
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import approvals_pb2, dead_letters_pb2, executions_pb2, resources_pb2
from windlass.api.v1.dead_letters_pb2_grpc import DeadLetterServiceStub
from windlass.definition.parsing import Format, parse

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "definitions.md").read_text()
SECONDS = 20.0
_BLOCK = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
_STEP = re.compile(r"^# (start|signal|reject|fix)(?: (?!with)(\S+))?(?: with (.*))?$", re.MULTILINE)
_END = re.compile(r"^# ends as ([A-Z]+)(?: with the error ([A-Z_]+)| with (.*))?$", re.MULTILINE)


class Step(NamedTuple):
    verb: str
    # The signal, or the node.
    name: str
    data: Any


class Example(NamedTuple):
    """A workflow, what people do with an execution of it, and how that ends."""

    definition: str
    steps: list[Step]
    state: str
    error: str
    output: str


def example_of(block: str) -> Example:
    ((state, error, output),) = _END.findall(block)
    steps = [Step(verb, name, json.loads(data or "{}")) for verb, name, data in _STEP.findall(block)]
    comments = re.findall(r"^# ", block, re.MULTILINE)
    assert len(comments) == len(steps) + 1, f"a comment of this example is not understood:\n{block}"
    return Example(block, steps, state, error, output)


EXAMPLES = [example_of(block) for block in _BLOCK.findall(PAGE)]


class Reader:
    """Somebody who tries an example."""

    def __init__(self, stack: Stack) -> None:
        self._client, self._execution_id = Client(stack), ""
        self._dead_letters: Any = DeadLetterServiceStub(stack.channel())

    async def follow(self, example: Example, definition: str) -> resources_pb2.Execution:
        document = parse(definition, Format.YAML).document
        await self._client.apply(**document)
        first = example.steps[:1] if example.steps and example.steps[0].verb == "start" else []
        values = Struct()
        values.update(first[0].data if first else {})
        self._execution_id = (await self._client.start(document["name"], input=values)).id
        for step in example.steps[len(first) :]:
            await self._do(step)
        return await self._client.end_of(self._execution_id)

    async def _do(self, step: Step) -> None:
        values = Struct()
        values.update(step.data)
        match step.verb:
            case "signal":
                signal = executions_pb2.SignalExecutionRequest(
                    execution_id=self._execution_id, signal=step.name, payload=values
                )
                await self._client.call(self._client.executions.SignalExecution, signal)
            case "reject":
                approval = await eventually(self._approval, SECONDS, "the approval")
                choice = resources_pb2.Approval.Choice.Value("REJECT")
                decision = approvals_pb2.DecideApprovalRequest(approval_id=approval, decision=choice)
                await self._client.call(self._client.approvals.DecideApproval, decision)
            case "fix":
                letter = await eventually(self._dead_letter, SECONDS, "the dead letter")
                assert letter.node == step.name
                fix = dead_letters_pb2.MarkDeadLetterFixedRequest(dead_letter_id=letter.id)
                fix.output.struct_value.CopyFrom(values)
                await self._client.call(self._dead_letters.MarkDeadLetterFixed, fix)
            case _:
                raise AssertionError(step)

    async def _approval(self) -> str | None:
        request = approvals_pb2.ListApprovalsRequest(filter=f'execution_id = "{self._execution_id}"')
        found = (await self._client.call(self._client.approvals.ListApprovals, request)).approvals
        return found[0].id if found else None

    async def _dead_letter(self) -> dead_letters_pb2.DeadLetter | None:
        request = dead_letters_pb2.ListDeadLettersRequest(filter=f'execution_id = "{self._execution_id}"')
        found = (await self._client.call(self._dead_letters.ListDeadLetters, request)).dead_letters
        return found[0] if found else None


@pytest.fixture(scope="module")
def crm() -> Iterator[str]:
    """The address of the contacts that the example of `http.request@1` changes."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Contacts) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A stack with the module that the page writes."""
    module = tmp_path_factory.mktemp("page") / "page_modules.py"
    module.write_text(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0])
    async with running_stack(modules=[module], allow_net=["127.0.0.1"]) as made:
        yield made


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: re.findall(r"name: (\S+)", example.definition)[0])
async def test_an_example_ends_as_the_page_says(stack: Stack, crm: str, example: Example) -> None:
    definition = example.definition.replace("http://127.0.0.1:8080", crm)
    ended = await Reader(stack).follow(example, definition)
    assert resources_pb2.Execution.State.Name(ended.state) == example.state, ended.error
    if example.error:
        assert ended.error.type == example.error
    if example.output:
        assert json_format.MessageToDict(ended.output) == json.loads(example.output)
