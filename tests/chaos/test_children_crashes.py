"""Processes die while parents start children, are told of their end, or cancel them: each node has one child."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from services.chassis.process.crash import VARIABLE
from tests.chaos.load import FINAL_SECONDS, PatientClient
from tests.chaos.verify import verify
from tests.support.postgres import reachable_directory
from tests.support.probe import eventually, until
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import executions_pb2, resources_pb2

Execution = resources_pb2.Execution
DEATH_SECONDS = 30.0
# The points at which the start of a child, its end and its cancel can be cut.
POINTS = {
    "coordinator": (
        "coordinator.start_child.before",
        "coordinator.start_child.after",
        "coordinator.tell_parent.before",
        "coordinator.tell_parent.after",
        "coordinator.finished.after",
        "coordinator.cancel_child.before",
        "coordinator.cancel_child.after",
    ),
    "api": ("api.start_child.before_enqueue", "api.start_child.before_answer"),
    "dispatcher": ("dispatcher.deliver.before_commit", "dispatcher.deliver.after_commit"),
}


def sub(workflow: str, id: str) -> dict[str, Any]:
    return {"id": id, "module": "sub_workflow@1", "config": {"workflow": workflow}}


class Families:
    """Parents of two children, and a parent that is cancelled while its child sleeps."""

    def __init__(self, stack: Stack) -> None:
        self.client = PatientClient(stack)

    async def apply(self) -> None:
        leaf = [{"id": "a", "module": "transform@1", "inputs": {"ok": True}}]
        await self.client.apply("leaf", leaf, output="{{ nodes.a.output.ok }}")
        await self.client.apply("sleeper", [{"id": "nap", "module": "sleep@1", "config": {"duration": "1h"}}])
        nodes = [sub("leaf", "one"), sub("leaf", "two")]
        await self.client.apply("family", nodes, edges=[{"from": "one", "to": "two"}])
        await self.client.apply("patient", [sub("sleeper", "one")])

    async def start(self, workflow: str) -> str:
        return str((await self.client.start(workflow, request_id=uuid.uuid4().hex)).id)

    async def children(self, parent: str) -> Sequence[Execution]:
        request = executions_pb2.ListExecutionsRequest(filter=f'parent_execution_id = "{parent}"')
        return list((await self.client.call(self.client.executions.ListExecutions, request)).executions)

    async def cancel_with_child(self, parent: str) -> None:
        async def is_there() -> bool:
            return bool(await self.children(parent))

        await eventually(is_there, FINAL_SECONDS, "the child")
        await self.client.cancel(parent)

    async def final(self, execution_id: str) -> Execution:
        async def ended() -> Execution | None:
            execution = await self.client.get(execution_id)
            return execution if execution.HasField("end_time") else None

        return await eventually(ended, FINAL_SECONDS, f"the end of {execution_id}")

    async def check(self, parent: str) -> None:
        execution, children = await self.final(parent), await self.children(parent)
        ends = [(await self.final(child.id)).state for child in children]
        expected = {"family": [Execution.SUCCESS] * 2, "patient": [Execution.CANCELLED]}[execution.workflow]
        assert (execution.state, ends) == (expected[0], expected), execution.error
        request = executions_pb2.ListEventsRequest(execution_id=parent, page_size=1_000)
        events = (await self.client.call(self.client.executions.ListEvents, request)).events
        count = Counter(event.type for event in events)
        assert (count["ChildRequested"], count["ExecutionFinished"]) == (len(expected), 1)


@pytest.mark.chaos
@pytest.mark.timeout(240)
@pytest.mark.parametrize("service", list(POINTS))
async def test_dying_at_any_point_of_a_child_there_is_one_child_and_its_parent_ends_once(service: str) -> None:
    directory = reachable_directory("windlass-plan-")
    plan = directory / "plan"
    plan.write_text("")
    try:
        async with running_stack(extra_env=[f"{service}-0:{VARIABLE}=@{plan}"]) as stack:
            families = Families(stack)
            await families.apply()
            for point in POINTS[service]:
                await _die_at(families, stack, point, plan)
            await verify(stack)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _die_at(families: Families, stack: Stack, point: str, plan: Path) -> None:
    """The next lives of the service die at this point, until one has. The one after it finds what is open."""
    service = point.partition(".")[0]
    _arm(plan, point)
    await stack.ready_again(service, 0, stack.kill(service))
    parents = [await families.start("family") for _ in range(3)]
    patient = await families.start("patient")
    if "cancel" in point:
        await families.cancel_with_child(patient)
    line = f"{VARIABLE} {point}"
    await until(lambda: line in stack.log(service).splitlines(), DEATH_SECONDS, f"{service} to pass {point}")
    _arm(plan, "")
    if "cancel" not in point:
        await families.cancel_with_child(patient)
    for parent in (*parents, patient):
        await families.check(parent)


def _arm(plan: Path, point: str) -> None:
    plan.write_text(point)
