"""One stack for all tests that break nothing on it, with two coordinators and the modules of node_modules.py."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest_asyncio
from google.protobuf.struct_pb2 import Struct

from tests.support.api import Client, new_workspace
from tests.support.otlp import Collector, collector
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import executions_pb2, resources_pb2


class World(NamedTuple):
    stack: Stack
    client: Client
    # The ADMIN of another workspace, and an execution there.
    rival: Client
    rival_execution: str


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_stack() -> AsyncIterator[Stack]:
    async with running_stack(coordinators=2, modules=[Path(__file__).with_name("node_modules.py")]) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def spans() -> AsyncIterator[Collector]:
    async with collector() as made:
        yield made


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def world(shared_stack: Stack) -> AsyncIterator[World]:
    """Two workspaces, each with a workflow. At the end, a workflow must still run."""
    rival, client = await new_workspace(shared_stack, "rival", executions_max=5), Client(shared_stack)
    await rival.apply("theirs", [{"id": "a", "module": "noop@1"}])
    execution = await rival.run("theirs")
    properties = {"id": {"type": "integer"}, "list": {"items": {"type": "integer"}}}
    schema = {"type": "object", "required": ["id"], "properties": properties}
    await client.apply("ours", [{"id": "a", "module": "noop@1"}], inputSchema=schema)
    # A coordinator reads the library that makes its statements at the first list that is asked of it.
    await client.call(client.executions.ListExecutions, executions_pb2.ListExecutionsRequest())
    yield World(shared_stack, client, rival, execution.id)
    fitting = Struct()
    fitting.update({"id": 1})
    assert (await client.run("ours", input=fitting)).state == resources_pb2.Execution.SUCCESS
