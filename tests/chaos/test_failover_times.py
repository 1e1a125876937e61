"""Work goes on after a death within the promised times, with leases as long as in production."""

import itertools
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.history import calls_in
from tests.chaos.load import under_load
from tests.chaos.verify import SHOWN, TAKE_OVER, verify, verify_under_load
from tests.support.api import Client
from tests.support.pace import pause
from tests.support.probe import until
from tests.support.stack import Stack, running_stack

MODULES = Path(__file__).with_name("ledger_modules.py")
COORDINATOR_SECONDS = 4.0
RUNNER_IDEMPOTENT_SECONDS = 4.0
RUNNER_OTHER_SECONDS = 18.0
DISPATCHER_SECONDS = 3.0
EXECUTIONS = 12
ROW_NODES = 60


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(180)
async def test_the_executions_of_a_killed_coordinator_move_on(ledger: Path) -> None:
    async with _stack(coordinators=2) as stack:
        await _both_attached(stack, to="dispatcher")
        client = Client(stack)
        nodes = [{"id": f"n{n}", "module": "ledger.put@1", "config": {"seconds": 0.2}} for n in range(ROW_NODES)]
        edges = [{"from": f"n{n}", "to": f"n{n + 1}"} for n in range(ROW_NODES - 1)]
        await client.apply("row", nodes, edges=edges)
        started = [each.id for each in await client.start_many("row", EXECUTIONS)]
        await until(lambda: len(_begun(ledger)) >= 2 * EXECUTIONS, 60, "all to be on their way")
        held = await _held_by(stack, "coordinator-0", started)
        killed = datetime.now(UTC)
        stack.kill("coordinator", 0)
        for execution_id in started:
            await client.end_of(execution_id)
        waits = [(await _next_event(stack, each, killed) - killed).total_seconds() for each in held]
        assert waits
        assert max(waits) <= COORDINATOR_SECONDS, waits
        await verify(stack, SHOWN | {TAKE_OVER})


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("module", "bound"), [("ledger.put@1", RUNNER_IDEMPOTENT_SECONDS), ("ledger.add@1", RUNNER_OTHER_SECONDS)]
)
async def test_the_work_of_a_killed_runner_is_elsewhere(ledger: Path, module: str, bound: float) -> None:
    async with _stack(runners=2) as stack:
        await _both_attached(stack, to="coordinator")
        client = Client(stack)
        is_idempotent = bound == RUNNER_IDEMPOTENT_SECONDS
        work = {"id": "work", "module": module, "idempotent": is_idempotent, "config": {"seconds": 3.0}}
        then = {"id": "then", "module": "noop@1"}
        await client.apply("work", [work, then], edges=[{"from": "work", "to": "then"}])
        started = [each.id for each in await client.start_many("work", EXECUTIONS)]
        pid = stack.pid("runner", 0)
        await until(lambda: len(_begun(ledger)) >= EXECUTIONS, 30, "all to have begun")
        lost = {call["execution"] for call in _begun(ledger) if call["pid"] == pid}
        killed_ns = time.monotonic_ns()
        stack.kill("runner", 0)
        for execution_id in started:
            await client.end_of(execution_id)
        again = {
            call["execution"]: (call["monotonic_ns"] - killed_ns) / 1e9
            for call in _begun(ledger)
            if call["monotonic_ns"] > killed_ns
        }
        assert lost
        assert again.keys() == lost, "live work of the other runner was touched, or lost work was not"
        assert max(again.values()) <= bound, again
        await verify(stack)


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(180)
async def test_a_killed_dispatcher_costs_no_lease_and_little_time(ledger: Path) -> None:
    async with _stack(coordinators=2) as stack:
        async with under_load(stack, ledger, 19, seconds_between=0.2) as load:
            await pause(3.0)
            killed = datetime.now(UTC)
            pid = stack.kill("dispatcher", 0)
            await stack.ready_again("dispatcher", 0, pid)
            await pause(COORDINATOR_SECONDS + DISPATCHER_SECONDS)
        await load.history()
        grants = await stack.rows(
            "SELECT grant_time FROM coordinator.executions WHERE grant_time > %s ORDER BY 1", killed
        )
        assert grants
        times = [killed, *(row[0] for row in grants)]
        pauses = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(times)]
        assert max(pauses) <= DISPATCHER_SECONDS, max(pauses)
        sessions = await stack.rows("SELECT state FROM dispatcher.coordinator_sessions")
        assert [row[0] for row in sessions] == ["LIVE", "LIVE"]
        taken_over = sum(stack.log("coordinator", replica).count("took over") for replica in range(2))
        assert taken_over == 0
        await verify_under_load(stack, load)


def _stack(coordinators: int = 1, runners: int = 1) -> Any:
    return running_stack(coordinators=coordinators, runners=runners, modules=[MODULES], lease_scale=1.0)


async def _both_attached(stack: Stack, to: str) -> None:
    """Without this the one that attached first may get all the work. Killing the other one would then prove nothing."""
    await until(lambda: stack.log(to, 0).count("holder attached") >= 2, 20, f"both holders to attach to the {to}")


def _begun(ledger: Path) -> list[dict[str, Any]]:
    return [call for call in calls_in(ledger) if call["phase"] == "begin"]


async def _held_by(stack: Stack, holder: str, execution_ids: list[str]) -> list[str]:
    rows = await stack.rows(
        "SELECT q.execution_id::text FROM dispatcher.queue q"
        " JOIN dispatcher.coordinator_sessions s ON s.instance_id = q.holder"
        " WHERE s.holder LIKE %s AND q.execution_id = ANY(%s::uuid[])",
        f"%{holder}%",
        execution_ids,
    )
    return [row[0] for row in rows]


async def _next_event(stack: Stack, execution_id: str, after: datetime) -> datetime:
    """The time of the first grant of a run after this instant."""
    rows = await stack.rows(
        "SELECT min(create_time) FROM coordinator.runs WHERE execution_id = %s::uuid AND create_time > %s",
        execution_id,
        after,
    )
    moved: datetime = rows[0][0]
    return moved
