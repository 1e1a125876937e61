"""Two workspaces share a stack. One of them attacks it in every way of attacks.py, and the quiet one notices nothing.

Each of its executions ends in SUCCESS within its deadline, with runs that were begun once. No process dies, and the
memory of each is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from services.chassis.grpc.limits import MEBIBYTE
from services.rendering.__main__ import MEMORY_BYTES_MAX, MEMORY_PER_REQUEST_BYTE
from services.runner.app.attempt import LOADED_BYTES_MAX
from tests.chaos.arena import LEASE_SCALE, OPEN, SERVED_MIN, SERVICES, Arena, hostile_server
from tests.chaos.attacks import ATTACKS
from tests.support.api import Client, new_workspace
from tests.support.postgres import reachable_directory
from tests.support.stack import Stack, running_stack
from windlass.api.v1.resources_pb2 import Execution, Run

MODULES = Path(__file__).with_name("ledger_modules.py")
PRYING_MODULES = Path(__file__).with_name("prying_modules.py")
# It needs a child that checks its input, and another one that renders.
SCHEMA = {"properties": {"n": {"enum": [1, 2, 3]}}}
QUIET: list[dict[str, Any]] = [
    {"id": "a", "module": "noop@1"},
    {"id": "b", "module": "transform@1", "inputs": {"x": "{{ input.n * 2 }}"}},
]
# Of each service, without its children.
PROCESS_BYTES_MAX = 512 * MEBIBYTE
# Of all children of a service: the limit of the one that reads as much as a node may load, and what the others need.
CHILDREN_BYTES_MAX = MEMORY_BYTES_MAX + MEMORY_PER_REQUEST_BYTE * LOADED_BYTES_MAX + 256 * MEBIBYTE


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def arena() -> AsyncIterator[Arena]:
    ledger = reachable_directory("windlass-ledger-")
    (ledger / "effects").mkdir()
    environment = [f"runner:WINDLASS_TEST_LEDGER={ledger}"]
    async with (
        hostile_server() as server,
        running_stack(
            modules=[MODULES, PRYING_MODULES], allow_net=[OPEN], extra_env=environment, lease_scale=LEASE_SCALE
        ) as stack,
    ):
        quiet = await new_workspace(stack, "quiet", executions_max=5)
        await quiet.apply("quiet", QUIET, inputSchema=SCHEMA)
        yield Arena(stack, Client(stack), quiet, server, [])
    shutil.rmtree(ledger)


def memory_is_bounded(stack: Stack, service: str) -> None:
    process, children = psutil.Process(stack.pid(service)), 0
    assert process.memory_info().rss < PROCESS_BYTES_MAX, service
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            children += child.memory_info().rss
    assert children < CHILDREN_BYTES_MAX, service


async def serve_the_quiet_one(arena: Arena) -> None:
    """One execution ends well within its deadline."""
    execution = await arena.quiet.run("quiet", input={"n": 1})
    assert execution.state == Execution.SUCCESS, execution
    for service in SERVICES:
        memory_is_bounded(arena.stack, service)
    arena.served.append(execution.id)


def pids_of(stack: Stack) -> dict[str, int]:
    return {service: stack.pid(service) for service in SERVICES}


@pytest.mark.chaos
@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_quiet_workspace_keeps_its_service_beside(arena: Arena, attack: str) -> None:
    pids = pids_of(arena.stack)
    arena.served.clear()
    async with asyncio.TaskGroup() as group:
        hostile: asyncio.Task[None] = group.create_task(ATTACKS[attack](arena))
        while not hostile.done() or len(arena.served) < SERVED_MIN:
            await serve_the_quiet_one(arena)
    for execution_id in arena.served:
        runs = await arena.quiet.runs_of(execution_id)
        assert [(run.state, run.attempt) for run in runs] == [(Run.SUCCESS, 1)] * len(QUIET)
    assert pids_of(arena.stack) == pids
