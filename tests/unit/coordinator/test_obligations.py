"""What executions owe to others: done in order, at least once, and again when the other side had no room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from services.chassis.grpc.errors import DependencyUnavailable
from services.coordinator.app.obligations import ObligationKeeper
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.app.ports import MailboxFull, QueueFull, StartRefused
from services.coordinator.core.commands import NoteChildCancelTold, NoteChildStarted, RefuseChild
from services.coordinator.core.state import ChildExecution, Execution, Obligation
from services.coordinator.peers.dispatch import start_command
from tests.support.manual_clock import ManualClock
from tests.support.probe import until
from tests.support.story import EXECUTION_ID, Document, Story, node
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant

PARENT_ID = "01931f3c-0000-7000-8000-000000000001"
REST_SECONDS = 5.0
SECONDS = 10.0


class World:
    """Api, the mailboxes and the dispatcher, as the keeper sees them. It keeps what it is asked to do."""

    def __init__(self) -> None:
        self.done: list[str] = []
        # The answers to the next calls, beginning with the next one. Without one, a call succeeds.
        self.answers: list[Exception] = []
        self.is_held = asyncio.Event()
        self.is_held.set()

    async def _do(self, what: str) -> None:
        self.done.append(what)
        await self.is_held.wait()
        if self.answers:
            raise self.answers.pop(0)

    async def start(self, execution: Execution, child: ChildExecution, traceparent: str) -> None:
        await self._do(f"start {child.workflow}")

    async def cancel_child(self, execution: Execution, child_execution_id: str) -> None:
        await self._do("cancel")

    async def tell_parent(self, execution: Execution) -> None:
        await self._do(f"tell {execution.state}")

    def finished(self, execution_id: str, epoch: int) -> None:
        self.done.append("finished")


class Stage:
    def __init__(self, story: Story, world: World) -> None:
        self.story, self.world, self.clock = story, world, ManualClock()
        self.executions = OwnedExecutions(
            clock=self.clock,
            definitions=cast("Any", None),
            dispatch=cast("Any", self.world),
            forward=cast("Any", None),
            mailbox_seconds=0.0,
        )
        self.keeper = ObligationKeeper(
            executions=self.executions,
            children=self.world,
            relatives=self.world,
            dispatch=cast("Any", self.world),
            clock=self.clock,
            rest_seconds=REST_SECONDS,
        )
        self.owned = OwnedExecution(EXECUTION_ID, 1, start_command(ExecutionGrant(), "c1"), execution=story.execution)
        self.executions.by_id[EXECUTION_ID] = self.owned

    def owe(self, obligations: Sequence[Obligation] | None = None) -> None:
        for each in self.story.execution.owed if obligations is None else obligations:
            self.keeper.owe(self.owned, each)

    @property
    def commands(self) -> list[Any]:
        return [each.command for each in self.owned.inbox]

    async def done(self, *expected: str) -> None:
        await until(lambda: len(self.world.done) >= len(expected) and not self._is_busy, SECONDS, "calls")
        assert self.world.done == list(expected)

    @property
    def _is_busy(self) -> bool:
        return bool(self.owned.owed) and not self.clock.sleepers and not self.owned.is_dropped

    async def passes(self, seconds: float) -> None:
        await until(lambda: self.clock.sleepers, SECONDS, "the keeper to wait")
        self.clock.advance(seconds)


@asynccontextmanager
async def stage(story: Story, world: World | None = None) -> AsyncIterator[Stage]:
    made = Stage(story, world or World())
    task = asyncio.create_task(made.keeper.run())
    try:
        yield made
    finally:
        task.cancel()


def child(workflow: str = "billing") -> Document:
    return node(workflow, "sub_workflow@1", config={"workflow": workflow})


def parent(*workflows: str) -> Story:
    story = Story([child(each) for each in workflows or ("billing",)])
    story.start()
    return story


def over() -> Story:
    """A child that has ended."""
    story = Story([node("a")])
    story.start(parent_execution_id=PARENT_ID)
    story.do("a")
    return story


async def test_children_are_started_together_and_each_start_is_noted() -> None:
    story = parent("one", "two")
    async with stage(story) as made:
        made.world.is_held.clear()
        made.owe()
        await until(lambda: len(made.world.done) == 2, SECONDS, "both calls to be under way")
        made.world.is_held.set()
        await until(lambda: len(made.commands) == 2, SECONDS, "both answers")
        assert made.commands == [NoteChildStarted(each) for each in story.execution.children]


async def test_a_start_is_repeated_while_api_is_away() -> None:
    async with stage(parent()) as made:
        made.world.answers = [DependencyUnavailable("api")] * 2
        made.owe()
        await made.passes(3)
        await made.passes(3)
        await until(lambda: made.commands, SECONDS, "the answer")
        assert made.world.done == ["start billing"] * 3
        assert not made.owned.rest_until


async def test_a_start_that_is_refused_is_not_repeated() -> None:
    story = parent()
    (execution_id,) = story.execution.children
    async with stage(story) as made:
        made.world.answers = [StartRefused("WORKFLOW_ARCHIVED", "archived")]
        made.owe()
        await until(lambda: made.commands, SECONDS, "the answer")
        assert made.commands == [RefuseChild(execution_id, "WORKFLOW_ARCHIVED", "archived")]
        assert made.world.done == ["start billing"]


async def test_a_full_queue_lets_the_parent_give_back_its_slot() -> None:
    async with stage(parent()) as made:
        made.world.answers = [QueueFull("full")]
        made.owe()
        await until(lambda: made.owned in made.executions.dirty, SECONDS, "another look at the execution")
        assert made.owned.rest_until == made.clock.epoch_ns() // 1_000 + REST_SECONDS * 1e6
        await made.passes(REST_SECONDS)
        await until(lambda: made.commands, SECONDS, "the answer")
        assert (made.world.done, made.owned.rest_until) == (["start billing"] * 2, 0)


async def test_a_child_that_nobody_waits_for_is_not_queued_later() -> None:
    story = parent()
    (execution_id,) = story.execution.children
    story.cancel()
    async with stage(story) as made:
        made.world.answers = [QueueFull("full")]
        made.owe()
        await made.done("start billing", "cancel", "finished")
        assert made.owned.is_dropped
        assert RefuseChild(execution_id, "QUEUE_FULL", "full") not in made.commands, "it is gone with its execution"


async def test_a_child_is_started_before_it_is_cancelled_and_the_end_is_reported_last() -> None:
    story = parent()
    story.cancel()
    async with stage(story) as made:
        made.world.answers = [DependencyUnavailable("api")]
        made.owe()
        await made.passes(3)
        await made.done("start billing", "start billing", "cancel", "finished")


async def test_a_cancel_that_has_arrived_is_noted_while_the_parent_goes_on() -> None:
    story = Story([child(), node("a")])
    story.start()
    story.assign("a")
    story.when(NoteChildStarted(*story.execution.children))
    story.cancel()
    async with stage(story) as made:
        made.owe()
        await until(lambda: made.commands, SECONDS, "the answer")
        assert made.commands == [NoteChildCancelTold(*story.execution.uncancelled)]


async def test_a_parent_is_told_before_the_end_is_reported() -> None:
    async with stage(over()) as made:
        made.world.is_held.clear()
        made.owe()
        await until(lambda: made.world.done, SECONDS, "the message")
        assert (made.world.done, made.owned.is_dropped) == (["tell SUCCESS"], False)
        made.world.is_held.set()
        await made.done("tell SUCCESS", "finished")
        assert made.owned.is_dropped


async def test_a_full_mailbox_of_the_parent_lets_the_child_give_back_its_slot() -> None:
    async with stage(over()) as made:
        made.world.answers = [MailboxFull(PARENT_ID)]
        made.owe()
        await until(lambda: made.owned.rest_until, SECONDS, "a rest")
        await made.passes(REST_SECONDS)
        await made.done("tell SUCCESS", "tell SUCCESS", "finished")


async def test_an_execution_that_is_lost_owes_nothing_here() -> None:
    async with stage(over()) as made:
        made.world.answers = [DependencyUnavailable("dispatcher")]
        made.owe()
        await until(lambda: made.clock.sleepers, SECONDS, "the keeper to wait")
        made.executions.drop(made.owned)
        made.clock.advance(3)
        await made.done("tell SUCCESS")


async def test_an_execution_that_was_reopened_does_not_tell_its_old_end() -> None:
    story = over()
    owed = story.execution.owed
    story.retry("a")
    async with stage(story) as made:
        made.owe(owed)
        await until(lambda: not made.owned.owed, SECONDS, "nothing to be owed")
        assert (made.world.done, made.owned.is_dropped) == ([], False)


class BrokenWorld(World):
    def released(self, execution_id: str, epoch: int, reason: str, *_: Any, **__: Any) -> None:
        self.done.append(reason)

    async def tell_parent(self, execution: Execution) -> None:
        raise ValueError("a bug")


async def test_a_bug_in_one_execution_hands_it_back() -> None:
    async with stage(over(), BrokenWorld()) as made:
        made.owe()
        await until(lambda: made.owned.is_dropped, SECONDS, "the execution to be handed back")
        assert made.world.done == ["INTERNAL"]
