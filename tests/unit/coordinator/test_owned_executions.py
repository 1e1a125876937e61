"""Runs whose grants came back, or are in doubt, are given up when it is safe."""

import asyncio
from typing import Any, cast

from services.chassis.lease.frames import Grant, Refused
from services.chassis.process.clock import SystemClock
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.core.commands import Command, Release
from services.coordinator.core.values import ReleaseReason
from services.coordinator.peers.orders import start_command
from services.coordinator.rpc.runners import SessionRunners
from tests.support.story import EXECUTION_ID, Story, node
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant


def executions_of(story: Story) -> OwnedExecutions:
    """It holds the story's execution; a denied run is given up at the next look."""
    executions = OwnedExecutions(
        clock=SystemClock(),
        definitions=cast("Any", None),
        load=cast("Any", None),
        forward=cast("Any", None),
        mailbox_seconds=0.0,
    )
    executions.by_id[EXECUTION_ID] = OwnedExecution(
        EXECUTION_ID, 1, start_command(ExecutionGrant(), "c1"), None, 0, execution=story.execution
    )
    return executions


def live_story() -> Story:
    """Run 1 must not be done twice; run 2 may, says its node, and run 3, says its runner."""
    story = Story([node("once"), node("again", idempotent=True), node("anew")])
    story.start()
    story.assign("once", "again")
    story.assign("anew", is_idempotent=True)
    return story


def grants(story: Story) -> list[Grant]:
    return [Grant(f"{EXECUTION_ID}.{run.number}", run.epoch, None) for run in story.execution.live.values()]


async def put(executions: OwnedExecutions) -> list[Command]:
    """The commands in the inbox of its execution once all scheduled calls have run."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return [each.command for each in executions.by_id[EXECUTION_ID].inbox]


def given_up(story: Story, *numbers: int, may_have_begun: bool, instance_id: str = "") -> list[Command]:
    epochs = {run.number: run.epoch for run in story.execution.runs}
    return [
        Release(number, epochs[number], ReleaseReason.WITHDRAWN, may_have_begun, instance_id=instance_id)
        for number in numbers
    ]


async def test_grant_in_doubt_is_given_up_only_where_twice_is_harmless() -> None:
    story = live_story()
    executions = executions_of(story)
    executions.in_doubt([*grants(story), Grant("unknown.1", 1, None)])
    assert await put(executions) == given_up(story, 2, 3, may_have_begun=True)


async def test_grant_in_doubt_stays_with_its_runner_that_comes_back_with_it() -> None:
    story = live_story()
    executions = executions_of(story)
    executions.in_doubt(grants(story))
    owner = SessionRunners()
    owner.executions = executions
    owner.on_taken(cast("Any", None), grants(story))
    assert await put(executions) == []


async def test_denied_run_is_given_up_whatever_it_is() -> None:
    story = live_story()
    executions = executions_of(story)
    executions.handed_back("i1", [Refused(each.lease_id, each.epoch, "NOT_HELD") for each in grants(story)])
    assert await put(executions) == given_up(story, 1, 2, 3, may_have_begun=True, instance_id="i1")


async def test_grant_that_was_never_sent_goes_elsewhere_at_once() -> None:
    story = live_story()
    executions = executions_of(story)
    executions.unsent(grants(story))
    commands = [each.command for each in executions.by_id[EXECUTION_ID].inbox]
    assert commands == given_up(story, 1, 2, 3, may_have_begun=False)
