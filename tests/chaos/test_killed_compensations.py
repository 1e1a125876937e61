"""Coordinators and runners are killed while finished nodes are undone: each is undone once, in the right order."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.history import calls_in
from tests.chaos.load import PatientClient
from tests.chaos.verify import verify
from tests.support.probe import until
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import resources_pb2

MODULES = Path(__file__).with_name("ledger_modules.py")
STEPS = ["reserve", "charge", "label", "book"]
EXECUTIONS = 12


def workflow() -> dict[str, Any]:
    undo = {"module": "ledger.put@1", "idempotent": True, "config": {"seconds": 0.2}}
    steps = [{"id": step, "module": "ledger.put@1", "idempotent": True, "compensate": undo} for step in STEPS]
    nodes = [*steps, {"id": "ship", "module": "fail@1", "config": {"type": "PERMANENT"}}]
    ids = [*STEPS, "ship"]
    return {"nodes": nodes, "edges": [{"from": a, "to": b} for a, b in pairwise(ids)]}


def undone(ledger: Path, phase: str) -> list[dict[str, Any]]:
    return [call for call in calls_in(ledger) if call["phase"] == phase and call["node"].endswith("$undo")]


async def kill_when_undone(stack: Stack, ledger: Path, service: str, calls: int) -> None:
    """Kill a replica as soon as so many compensations have ended, and wait for its next life."""
    await until(lambda: len(undone(ledger, "end")) >= calls, 60, f"{calls} compensations")
    pid = stack.kill(service, 0)
    await stack.ready_again(service, 0, pid)


@pytest.mark.chaos
@pytest.mark.timeout(200)
async def test_killed_in_the_middle_each_finished_node_is_undone_once_and_in_reverse(ledger: Path) -> None:
    async with running_stack(coordinators=2, runners=2, modules=[MODULES]) as stack:
        client = PatientClient(stack)
        await client.apply("saga", **workflow())
        started = [execution.id for execution in await client.start_many("saga", EXECUTIONS)]
        for calls, service in ((3, "coordinator"), (10, "runner"), (20, "coordinator"), (30, "runner")):
            await kill_when_undone(stack, ledger, service, calls)
        for execution_id in started:
            ended = await client.end_of(execution_id)
            assert (ended.state, ended.error.node) == (resources_pb2.Execution.FAILED, "ship")
            assert list(ended.summary.compensated) == STEPS
            assert not ended.summary.not_compensated
            runs = await client.runs_of(execution_id)
            succeeded = [run.node for run in runs if run.state == resources_pb2.Run.SUCCESS]
            assert succeeded == [*STEPS, *(f"{step}$undo" for step in reversed(STEPS))]
        await verify(stack, {"S1", "S6", "S7", "S8", "S9", "S10"})
    keys: dict[tuple[str, str], set[str]] = defaultdict(set)
    for call in undone(ledger, "begin"):
        keys[call["execution"], call["node"]].add(call["effect_key"])
    assert len(keys) == EXECUTIONS * len(STEPS)
    assert all(len(each) == 1 for each in keys.values()), "all attempts at a compensation have one effect key"
    effects = {path.name for path in (ledger / "effects").iterdir()}
    assert {key for each in keys.values() for key in each} <= effects
    assert len(effects) == 2 * EXECUTIONS * len(STEPS)
