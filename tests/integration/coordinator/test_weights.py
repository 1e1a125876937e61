"""The weight that a start brings decides how many places of a runner its workspace is given."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.support.coordinator_stage import Stage, eventually

PLACES = 20
# Each workspace has work for all places.
NODES = [{"id": f"n{number}", "module": "noop@1"} for number in range(PLACES)]


async def test_workspaces_are_given_places_by_the_weights_of_their_starts(on_stage: Stage) -> None:
    address, session = await on_stage.coordinator(runner_reserve=0.0)
    version = on_stage.catalog.add("v-wide", name="w", nodes=NODES, edges=[])
    workspaces = {}
    for workspace, weight in (("light", 1), ("heavy", 4)):
        order: Any = on_stage.dispatcher.order(version)
        order.start.workspace, order.start.runner_weight = workspace, weight
        workspaces[order.lease.lease_id] = workspace
        on_stage.dispatcher.grant(session, [order])
    await eventually(lambda: len(on_stage.dispatcher.begun) == len(workspaces))
    runner = await on_stage.runner(address, capacity=PLACES, work=lambda grant: None)
    await eventually(lambda: len(runner.grants) == PLACES)
    assert Counter(workspaces[grant.execution_id] for grant in runner.grants) == {"heavy": 16, "light": 4}
