"""An async module blocks its event loop. The runner goes on to beat, so it keeps its leases and those of its others."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.chassis.lease.timing import RUN
from services.runner.app.worker import STALLED_TERMS_MAX
from tests.chaos.history import calls_in
from tests.chaos.load import FINAL_SECONDS, Load
from tests.support.probe import until
from tests.support.stack import running_stack
from windlass.api.v1.resources_pb2 import Execution, Run

MODULES = Path(__file__).with_name("ledger_modules.py")
SCALE = 0.1
TIMING = RUN.scaled(SCALE)
# This is 25 s at full length: much longer than the leases of a silent runner live.
HELD_SECONDS = 25 * SCALE
STALLED_SECONDS_MAX = STALLED_TERMS_MAX * TIMING.term
HOLDING, NEIGHBOUR = "chaos-hold", "chaos-neighbour"
ROUNDS = 3


def node(module: str, seconds: float) -> list[dict[str, Any]]:
    return [{"id": "n", "module": module, "config": {"seconds": seconds}, "retry": {"attempts": 1}}]


async def begun_beside_each_other(load: Load, ledger: Path) -> tuple[str, str]:
    """The execution that blocks, and the one whose run had begun before on the same runner."""
    neighbour = await load.start(NEIGHBOUR)
    await until(lambda: neighbour in {call["execution"] for call in calls_in(ledger)}, FINAL_SECONDS, "its beginning")
    return await load.start(HOLDING), neighbour


@pytest.mark.chaos
async def test_a_module_that_blocks_beyond_the_lease_is_begun_once_and_costs_its_neighbour_nothing(
    ledger: Path,
) -> None:
    assert TIMING.granted_again + TIMING.beat < HELD_SECONDS < STALLED_SECONDS_MAX
    async with running_stack(coordinators=2, modules=[MODULES], lease_scale=SCALE) as stack:
        load = Load(stack, ledger, seed=17)
        await load.client.apply(HOLDING, node("ledger.hold@1", HELD_SECONDS))
        # It is not idempotent either, and has to wait until the other has ended.
        await load.client.apply(NEIGHBOUR, node("ledger.add@1", HELD_SECONDS / 2))
        for _ in range(ROUNDS):
            for execution_id in await begun_beside_each_other(load, ledger):
                assert (await load.final(execution_id)).state == Execution.SUCCESS
                assert [run.state for run in await load.client.runs_of(execution_id)] == [Run.SUCCESS]
        begun = Counter(call["effect_key"] for call in calls_in(ledger) if call["phase"] == "begin")
        assert list(begun.values()) == [1] * 2 * ROUNDS


@pytest.mark.chaos
async def test_a_module_that_blocks_for_ever_fails_alone_and_its_runner_starts_anew(ledger: Path) -> None:
    async with running_stack(modules=[MODULES], lease_scale=SCALE) as stack:
        load = Load(stack, ledger, seed=17)
        await load.client.apply(HOLDING, node("ledger.hold@1", 100 * STALLED_SECONDS_MAX))
        await load.client.apply(NEIGHBOUR, node("ledger.add@1", STALLED_SECONDS_MAX / 2))
        held, neighbour = await begun_beside_each_other(load, ledger)
        assert (await load.final(held)).error.type == "LOOP_BLOCKED"
        assert (await load.final(neighbour)).state == Execution.SUCCESS
        assert [run.state for run in await load.client.runs_of(neighbour)] == [Run.CANCELLED, Run.SUCCESS]
