"""Every example of docs/definitions.md that says how it ends does end so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import pytest_asyncio
from google.protobuf import json_format

from tests.support.api import Client
from tests.support.stack import Stack
from windlass.api.v1 import resources_pb2
from windlass.definition.parsing import Format, parse

PAGE = Path(__file__).resolve().parents[2] / "docs" / "definitions.md"
_EXAMPLE = re.compile(r"```yaml\n([^`]*?)# ends as ([A-Z]+)(?: with (.*))?\n```")
EXAMPLES = _EXAMPLE.findall(PAGE.read_text())


@pytest_asyncio.fixture(loop_scope="session")
async def client(shared_stack: Stack) -> Client:
    """It is made inside the event loop, because gRPC uses the loop that it finds, and each test closes its own."""
    return Client(shared_stack)


def test_no_example_is_overlooked() -> None:
    assert len(EXAMPLES) == PAGE.read_text().count("# ends as ") > 0


@pytest.mark.parametrize(("text", "state", "output"), EXAMPLES)
async def test_an_example_ends_as_the_page_says(client: Client, text: str, state: str, output: str) -> None:
    document = parse(text, Format.YAML).document
    await client.apply(**document)
    execution = await client.run(document["name"])
    assert resources_pb2.Execution.State.Name(execution.state) == state, execution.error
    if output:
        assert json_format.MessageToDict(execution.output) == json.loads(output)
