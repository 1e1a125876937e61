"""Each service dies at each of its named points, one after the other, while mixed graphs run: nothing is lost.

A point stands before or after a commit, a grant, an acknowledgement or a report. Every replica of the service reads
from a file at which point it dies next. Its log names the point at which it died, so a point that is never reached
fails the test.
"""

import asyncio
import contextlib
import shutil
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import grpc
import pytest

from deploy.local.plan import Options
from services.chassis.process.crash import VARIABLE
from tests.chaos.load import under_load
from tests.chaos.stimuli import Stimuli
from tests.chaos.verify import TAKE_OVER, verify_history
from tests.support.crash_points import crash_points_in
from tests.support.pace import pause
from tests.support.postgres import reachable_directory
from tests.support.probe import until
from tests.support.stack import Stack, free_options, running_stack, stack_is_up, start_stack

SERVICES = Path(__file__).resolve().parents[2] / "services"
MODULES = Path(__file__).with_name("ledger_modules.py")
REPLICAS = {"api": 1, "dispatcher": 1, "coordinator": 2, "runner": 2}
# With more replicas, each has fewer points, and the supervisor's pauses before its next life are shorter.
ARMED = {"api": 4, "dispatcher": 6, "coordinator": 6, "runner": 1}
# Work with which three runners in a row have died is rightly set aside as poison, so other runners stay to take it.
UNARMED = {"runner": 2}
EXECUTIONS_MIN = 60
DEATH_SECONDS = 45
BOOTSTRAP = "api.bootstrap.before_commit"
# A process without work passes this point too. So no first life may end there, or the stack would never come up.
IDLE = ("batch", "configure", "wake", "partitions", "session.open", "session.renew", "session.sweep")
# In its first life, api tells it of the only workspace. In a later one, it hears of the workspace with a start.
LATER = (*IDLE, "limits")
# These services also die at the points of the sessions that they serve.
SESSIONS = SERVICES / "chassis" / "session"
SERVERS = {"dispatcher", "coordinator"}


def points_of(service: str) -> list[str]:
    found = crash_points_in(SERVICES / service) - {BOOTSTRAP}
    if service in SERVERS:
        found |= crash_points_in(SESSIONS)
    return sorted(found, key=lambda name: (any(part in name for part in LATER), name))


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("service", list(ARMED))
async def test_dying_at_each_named_point_nothing_is_lost_and_nothing_done_again(service: str, ledger: Path) -> None:
    points = points_of(service)
    assert points
    replicas = REPLICAS | {service: ARMED[service] + UNARMED.get(service, 0)}
    shares = [points[replica :: ARMED[service]] for replica in range(ARMED[service])]
    plans = [ledger / f"plan-{replica}" for replica in range(ARMED[service])]
    for plan, share in zip(plans, shares, strict=True):
        _arm(plan, share[0])
    async with running_stack(
        apis=replicas["api"],
        dispatchers=replicas["dispatcher"],
        coordinators=replicas["coordinator"],
        runners=replicas["runner"],
        modules=[MODULES],
        extra_env=[
            # The graphs are small, and get snapshots all the same.
            "coordinator:WINDLASS_SNAPSHOT_EVENTS=4",
            *(f"{service}-{replica}:{VARIABLE}=@{plan}" for replica, plan in enumerate(plans)),
        ],
    ) as stack:
        is_taken_over = service == "coordinator"
        held = 2 if is_taken_over else 0
        async with (
            under_load(stack, ledger, 11, count_min=EXECUTIONS_MIN, seconds_between=0.3, held=held) as load,
            asyncio.TaskGroup() as lives,
        ):
            stimuli = Stimuli(stack, load)
            await stimuli.prepare()
            for replica, share in enumerate(shares):
                lives.create_task(_die_at_each(stack, service, replica, share, plans[replica], stimuli))
        await verify_history(stack, load, await load.history(), *([TAKE_OVER] if is_taken_over else []))


async def _die_at_each(
    stack: Stack, service: str, replica: int, points: list[str], plan: Path, stimuli: Stimuli
) -> None:
    for place, point in enumerate(points):
        times = points[: place + 1].count(point)
        # This is a task group, so that a stimulus that breaks fails the test at once.
        async with asyncio.TaskGroup() as group:
            provoking = group.create_task(_provoke(stimuli.of(service, point, replica)))
            await until(
                partial(_has_died_at, stack, service, replica, point, times),
                DEATH_SECONDS,
                f"{service}-{replica} to pass {point}",
            )
            provoking.cancel()
        _arm(plan, points[place + 1] if place + 1 < len(points) else "")
    await stack.ready_again(service, replica, previous_pid=0)


def _arm(plan: Path, point: str) -> None:
    """Plan the death of the next process. The present one has read its plan already."""
    plan.write_text(point)


def _has_died_at(stack: Stack, service: str, replica: int, point: str, times: int) -> bool:
    return stack.log(service, replica).splitlines().count(f"{VARIABLE} {point}") >= times


async def _provoke(stimulus: Callable[[], Awaitable[None]]) -> None:
    """Repeat the stimulus; it fails whenever the process dies over it."""
    while True:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stimulus()
        await pause(0.3)


@pytest.mark.chaos
async def test_dying_before_the_first_keys_are_committed_the_next_start_makes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = free_options(Options(home=reachable_directory("windlass-stack-"), lease_scale=0.1))
    monkeypatch.setenv(VARIABLE, BOOTSTRAP)
    first = await start_stack(options)
    assert await first.process.wait() == -signal.SIGKILL
    assert not await first.close()
    monkeypatch.delenv(VARIABLE)
    second = await start_stack(options)
    try:
        await stack_is_up(second)
        assert second.key() != second.key("system")
    finally:
        assert not await second.close()
        shutil.rmtree(options.home, ignore_errors=True)
