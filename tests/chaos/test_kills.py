"""Each service is killed at random instants while mixed graphs run, and nothing is lost or done again."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.load import under_load
from tests.chaos.verify import TAKE_OVER, verify_history
from tests.support.pace import pause
from tests.support.probe import until
from tests.support.stack import Stack, running_stack

MODULES = Path(__file__).with_name("ledger_modules.py")
REPLICAS = {"api": 1, "dispatcher": 2, "coordinator": 2, "runner": 2}
# Kills per service: 60 in the default run, 500 more in the long one.
KILLS = {"api": 12, "dispatcher": 18, "coordinator": 18, "runner": 12}
KILLS_LONG = {"api": 80, "dispatcher": 140, "coordinator": 140, "runner": 140}
EXECUTIONS_MIN = 200
# What the graph shows that people attend to.
PEOPLE_SHOW = ("S16", "S18", "S19")
# A kill and its successor's start take some seconds.
SECONDS_PER_KILL = 8


def case(service: str, kills: int, *marks: pytest.MarkDecorator) -> Any:
    return pytest.param(
        service, kills, marks=[*marks, pytest.mark.timeout(200 + SECONDS_PER_KILL * kills)], id=f"{service}-{kills}"
    )


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("service", "kills"),
    [
        *(case(service, kills) for service, kills in KILLS.items()),
        *(case(service, kills, pytest.mark.long) for service, kills in KILLS_LONG.items()),
    ],
)
async def test_killed_at_random_instants_nothing_is_lost_and_nothing_done_again(
    service: str, kills: int, ledger: Path
) -> None:
    async with running_stack(
        apis=REPLICAS["api"],
        dispatchers=REPLICAS["dispatcher"],
        coordinators=REPLICAS["coordinator"],
        runners=REPLICAS["runner"],
        modules=[MODULES],
    ) as stack:
        is_taken_over = service == "coordinator"
        held = 2 if is_taken_over else 0
        async with under_load(stack, ledger, kills, count_min=EXECUTIONS_MIN, held=held) as load:
            await _kill_many(stack, service, kills, random.Random(f"{service}{kills}"))
        also = [*PEOPLE_SHOW, *([TAKE_OVER] if is_taken_over else [])]
        await verify_history(stack, load, await load.history(), *also)


async def _kill_many(stack: Stack, service: str, kills: int, draw: random.Random) -> None:
    """Kill any replica that is ready, often while its sibling is still starting. A killed runner may come up before the
    next kill, because work with which three runners in a row have died is rightly set aside as poison.
    """
    for _ in range(kills):
        ready = await until(lambda: [each for each in stack.entries(service) if each["ready"]], 30, f"a {service}")
        replica = draw.choice(ready)["replica"]
        # A life is long enough for something to happen in it: a client must reach the only api now and then.
        await pause(draw.uniform(0.3, 1.2) if service == "api" else draw.uniform(0.05, 0.6))
        pid = stack.kill(service, replica)
        if service == "runner":
            await stack.ready_again(service, replica, pid)
        else:
            await until(partial(_is_replaced, stack, service, replica, pid), 30, f"another {service}-{replica}")
    for replica in range(REPLICAS[service]):
        await stack.ready_again(service, replica, previous_pid=0)


def _is_replaced(stack: Stack, service: str, replica: int, pid: int) -> bool:
    return all(each["pid"] != pid for each in stack.entries(service) if each["replica"] == replica)
