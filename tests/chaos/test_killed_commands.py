"""Each service is killed while people decide about executions: each decision is carried out once."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.chaos.people_stories import STORIES, Kills, People
from tests.chaos.verify import SHOWN, TAKE_OVER, verify
from tests.support.postgres import reachable_directory
from tests.support.stack import running_stack

MODULES = Path(__file__).with_name("ledger_modules.py")
# A target that fails cools down for a second, as these times are scaled like those of leases. Its failures are counted
# for as long as the test lasts.
CIRCUITS = (
    "coordinator:WINDLASS_CIRCUIT_WINDOW_SECONDS=6000",
    "coordinator:WINDLASS_CIRCUIT_COOL_DOWN_SECONDS=10",
    "coordinator:WINDLASS_CIRCUIT_COOL_DOWN_SECONDS_MAX=20",
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def people() -> AsyncIterator[People]:
    ledger = reachable_directory("windlass-ledger-")
    (ledger / "effects").mkdir()
    environment = [*CIRCUITS, f"runner:WINDLASS_TEST_LEDGER={ledger}"]
    async with running_stack(
        dispatchers=2, coordinators=2, runners=2, modules=[MODULES], extra_env=environment
    ) as stack:
        made = People(stack, ledger)
        await made.prepare()
        yield made
    shutil.rmtree(ledger)


@pytest.mark.chaos
@pytest.mark.timeout(240)
@pytest.mark.parametrize("service", ["coordinator", "dispatcher", "api", "runner"])
async def test_killed_between_command_and_answer_it_is_carried_out_once(service: str, people: People) -> None:
    kills = Kills(people.stack, service, len(STORIES))
    async with asyncio.TaskGroup() as group:
        group.create_task(kills.happen())
        for story in STORIES:
            group.create_task(story(people, kills))
    also = {TAKE_OVER} if service == "coordinator" else set()
    await verify(people.stack, SHOWN | {"S16", "S18", "S19", "S20"} | also)
