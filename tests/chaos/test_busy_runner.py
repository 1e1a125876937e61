"""User code blocks its runner's event loop: the runner can neither count its grant nor beat, but it is at work."""

from collections import Counter
from pathlib import Path

import pytest

from services.chassis.lease.timing import RUN
from tests.chaos.history import calls_in
from tests.chaos.load import Load
from tests.support.stack import running_stack

MODULES = Path(__file__).with_name("ledger_modules.py")
SCALE = 0.1
TIMING = RUN.scaled(SCALE)
# This is much longer than a grant may take to be sent, and one beat shorter than the lease.
HELD_SECONDS = (TIMING.grant_answer + TIMING.term) / 2
WORKFLOW = "chaos-hold"
NODE = {"id": "hold", "module": "ledger.hold@1", "config": {"seconds": HELD_SECONDS}}
ROUNDS = 4


@pytest.mark.chaos
async def test_work_that_keeps_its_runner_from_answering_is_begun_once(ledger: Path) -> None:
    assert TIMING.grant_answer < HELD_SECONDS < TIMING.term - TIMING.beat
    async with running_stack(coordinators=2, runners=2, modules=[MODULES], lease_scale=SCALE) as stack:
        load = Load(stack, ledger, seed=17)
        await load.client.apply(WORKFLOW, [NODE])
        for _ in range(ROUNDS):
            # They run one after the other, because two of them on one runner would rightly cost it its lease.
            await load.final(await load.start(WORKFLOW))
        begun = Counter(call["effect_key"] for call in calls_in(ledger) if call["phase"] == "begin")
        assert list(begun.values()) == [1] * ROUNDS
