"""A killed runner's work whose module is declared idempotent, and whose node says nothing."""

from pathlib import Path

import pytest

from tests.support.api import Client
from tests.support.probe import eventually
from tests.support.stack import running_stack
from windlass.api.v1 import executions_pb2, resources_pb2

MODULES = Path(__file__).with_name("ledger_modules.py")
# Nodes of each kind: each runner has some of both, and room for those of the other.
EACH = 4
SECONDS = 60.0


@pytest.mark.chaos
@pytest.mark.usefixtures("ledger")
async def test_work_of_a_module_declared_idempotent_is_elsewhere_before_its_lease_has_run_out() -> None:
    """All of the dead runner's leases run out at one time, and the other work is given up then: so the order of the
    journal tells, and no clock."""
    async with running_stack(runners=2, modules=[MODULES], lease_scale=0.1) as stack:
        client = Client(stack)
        await client.apply("declared", [node for n in range(EACH) for node in _pair(n)])
        execution = await client.start("declared")
        runs = await _going(client, execution.id)
        victim = next(run.runner for run in runs if run.module == "ledger.add@1")
        doomed = {run.node for run in runs if run.runner == victim}
        assert {_kind(node) for node in doomed} == {"add", "put"}, "it has work of both kinds"
        # Its name begins with that of its process.
        stack.kill("runner", int(victim.partition("@")[0].rpartition("-")[2]))
        told = await _moved(client, execution.id, len(runs) + len(doomed))
        await client.cancel(execution.id)
    assert {node for event, node in told if event == "RunLost"} == doomed
    waited = told.index(next(each for each in told if _kind(each[1]) == "add"))
    assert {_kind(node) for _, node in told[:waited]} == {"put"}
    assert {_kind(node) for _, node in told[waited:]} == {"add"}


def _pair(number: int) -> list[dict[str, object]]:
    """The work that must not be done twice first: lost at one time, it would come first."""
    config = {"seconds": 3_600}
    return [
        {"id": f"add{number}", "module": "ledger.add@1", "config": config},
        {"id": f"put{number}", "module": "ledger.put@1", "config": config},
    ]


def _kind(node: str) -> str:
    return node[:3]


async def _going(client: Client, execution_id: str) -> list[resources_pb2.Run]:
    async def look() -> list[resources_pb2.Run]:
        runs = await client.runs_of(execution_id)
        going = [run for run in runs if run.state == resources_pb2.Run.RUNNING]
        return going if len(going) == 2 * EACH else []

    return await eventually(look, SECONDS, "all to be going")


async def _moved(client: Client, execution_id: str, leases: int) -> list[tuple[str, str]]:
    """Losses and second leases in the journal's order, once there are so many leases in all."""
    request = executions_pb2.ListEventsRequest(execution_id=execution_id)

    async def look() -> list[resources_pb2.Event]:
        answer = await client.call(client.executions.ListEvents, request)
        events = [event for event in answer.events if event.type in ("RunLeased", "RunLost")]
        return events if sum(event.type == "RunLeased" for event in events) == leases else []

    events = await eventually(look, SECONDS, "all to be leased again")
    return [
        (event.type, event.node)
        for event in events
        if event.type == "RunLost" or event.details["attempt"] != 1
    ]
