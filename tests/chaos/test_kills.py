"""SIGKILL of each service at random instants while mixed graphs run: nothing is lost, nothing is done again."""

import asyncio
import random
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.history import cases, faults_of
from tests.chaos.load import Load
from tests.chaos.verify import TAKE_OVER, verify_under_load
from tests.support.pace import pause
from tests.support.probe import until
from tests.support.stack import Stack, running_stack

MODULES = Path(__file__).with_name("ledger_modules.py")
REPLICAS = {"api": 1, "dispatcher": 2, "coordinator": 2, "runner": 2}
# Kills per service: 60 in the default run, 500 more in the long one.
KILLS = {"api": 12, "dispatcher": 18, "coordinator": 18, "runner": 12}
KILLS_LONG = {"api": 80, "dispatcher": 140, "coordinator": 140, "runner": 140}
EXECUTIONS_PER_KILL = 17  # 200 at least
LONG = [pytest.mark.long, pytest.mark.timeout(1_200)]


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("service", "kills"),
    [*KILLS.items(), *(pytest.param(service, kills, marks=LONG) for service, kills in KILLS_LONG.items())],
)
async def test_killed_at_random_instants_nothing_is_lost_and_nothing_done_again(
    service: str, kills: int, ledger: Path
) -> None:
    seed = kills
    draw = random.Random(f"{service}{seed}")
    async with running_stack(
        apis=REPLICAS["api"],
        dispatchers=REPLICAS["dispatcher"],
        coordinators=REPLICAS["coordinator"],
        runners=REPLICAS["runner"],
        modules=[MODULES],
    ) as stack:
        load = Load(stack, ledger, seed)
        await load.apply()
        executions = EXECUTIONS_PER_KILL * kills
        starting = asyncio.create_task(load.start_many(executions, seconds=kills * 0.8))
        is_taken_over = service == "coordinator"
        async with load.held(2 if is_taken_over else 0):
            await _kill_many(stack, service, kills, draw)
        await starting
        history = await load.history()
        assert not faults_of(history)
        assert all(cases(history).values()), cases(history)
        await load.final(await load.start("chaos-row"))
        await verify_under_load(stack, load, *([TAKE_OVER] if is_taken_over else []))


async def _kill_many(stack: Stack, service: str, kills: int, draw: random.Random) -> None:
    """Whichever replica is ready, often while its sibling is still coming up.

    Runners are let come up first: work that three runners died with in a row is rightly set aside as poison.
    """
    for _ in range(kills):
        # The only api must live long enough for a client to reach it now and then.
        await pause(draw.uniform(0.3, 1.2) if service == "api" else draw.uniform(0.05, 0.6))
        ready = await until(
            lambda: [each for each in stack.entries(service) if each["ready"]], 30, f"a {service}"
        )
        replica = draw.choice(ready)["replica"]
        pid = stack.kill(service, replica)
        if service == "runner":
            await stack.ready_again(service, replica, pid)
        else:
            await until(
                partial(_is_replaced, stack, service, replica, pid), 30, f"another {service}-{replica}"
            )
    for replica in range(REPLICAS[service]):
        await stack.ready_again(service, replica, previous_pid=0)


def _is_replaced(stack: Stack, service: str, replica: int, pid: int) -> bool:
    return all(each["pid"] != pid for each in stack.entries(service) if each["replica"] == replica)
