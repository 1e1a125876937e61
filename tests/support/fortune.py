"""What the machine of random fortune is made of: its story, and the promises that are checked with each event."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from services.coordinator.core.commands import Command
from services.coordinator.core.events import (
    BackoffEnded,
    DeadLetterResolved,
    Event,
    ExecutionReopened,
    RunDeferred,
    RunFailed,
    RunLeased,
    RunSucceeded,
    WaitEnded,
    WaitOutcome,
    WaitStarted,
)
from services.coordinator.core.recorded_rows import folded_rows, value_text
from services.coordinator.core.replaying import Replay
from services.coordinator.core.values import Instant, WorkKey
from services.coordinator.store.codec import unseal
from tests.support.graph_laws import assert_all_laws, assert_in_order
from tests.support.random_workflows import documents, going_well
from tests.support.steps import done
from tests.support.story import EXECUTION_ID, Document, Story


class FortuneBase(RuleBasedStateMachine):
    story: Story

    @initialize(document=documents(min_size=1))
    def begin(self, document: Document) -> None:
        self.document = document
        self.watch(Story(**document))
        self.do(lambda: self.story.start())

    def watch(self, story: Story) -> None:
        """Nothing has happened in this story yet."""
        self.story = story
        # The reports of runners, and the commands of people with their first answers.
        self.sent: list[Any] = []
        self.given: list[tuple[Any, Any]] = []
        self.cancels: list[Any] = []
        self.attempts: dict[WorkKey, list[int]] = defaultdict(list)
        self.outcomes: dict[WorkKey, int] = defaultdict(int)
        self.wakes: dict[WorkKey, Instant] = {}
        self.reopenings = 0

    def do(self, give: Callable[[], Any]) -> Any:
        """Gives a command to the story, and judges its events. No other command has the same time, so the journal says
        which events belong together."""
        self.story.now += 1
        before = len(self.story.journal)
        was_final, end = self.story.execution.is_final, self._end()
        decision = give()
        events = self.story.journal[before:]
        if was_final:
            self._assert_only_reopened(events, end)
        for event in events:
            self._note(event)
        return decision

    def when(self, command: Command) -> Any:
        return self.do(lambda: self.story.when(command))

    def pick(self, data: Any, items: Iterable[Any]) -> Any:
        return data.draw(st.sampled_from(list(items)))

    def _end(self) -> tuple[Any, ...]:
        execution = self.story.execution
        return execution.final_state, execution.output, execution.error, execution.end_time

    def _assert_only_reopened(self, events: list[Event], end: tuple[Any, ...]) -> None:
        """S7: after the end comes nothing, unless a person has decided about a dead letter or has work done again."""
        if any(isinstance(event, ExecutionReopened) for event in events):
            self.reopenings += 1
            assert isinstance(events[0], ExecutionReopened), "S7"
        else:
            assert all(isinstance(event, DeadLetterResolved) for event in events), "S7"
            assert self._end() == end, "S7"

    def _note(self, event: Event) -> None:
        match event:
            case RunLeased():
                attempts = self.attempts[event.key]
                assert event.attempt > max(attempts, default=0), "S9"
                attempts.append(event.attempt)
            case RunSucceeded():
                self.outcomes[event.key] += 1
                assert_in_order(self.story, event)
            case RunFailed():
                self.wakes[event.key] = event.retry_time
                assert not event.rendered or self.story.definition.records_inputs, "it says what was not to be kept"
            case WaitStarted() | RunDeferred():
                self.wakes[event.key] = event.due_time
            case BackoffEnded():
                assert self.wakes[event.key] <= self.story.now, "S19"
            case WaitEnded() if event.outcome is WaitOutcome.EXPIRED:
                assert 0 < self.wakes[event.key] <= self.story.now, "S19"
            case _:
                pass

    @invariant()
    def each_work_succeeds_once(self) -> None:
        assert all(count == 1 for count in self.outcomes.values()), "S8"

    def end_well(self) -> None:
        """All is well again: all work succeeds, all that is waited for comes, and time passes."""
        for command in going_well(self.story):
            self.when(command)
        assert_all_laws(self.story)
        assert_replays(self.story)

    def teardown(self) -> None:
        if hasattr(self, "story"):
            self.end_well()


def assert_replays(story: Story) -> None:
    """The journal adds up to the rows, and the present rules decide it as they did."""
    replay = Replay(EXECUTION_ID, story.definition)
    for row in story.stored:
        for stored in unseal(row):
            assert isinstance(stored.event, Event)
            done(replay.take(stored.seq, stored.event))
    done(replay.finish())
    comparison = replay.comparison()
    for name, columns in folded_rows(story.execution):
        done(comparison.take(name, json.loads(value_text(columns))))
    result = done(comparison.result())
    assert result.first_difference is None
    assert result.recorded_hash == result.replayed_hash != ""
    assert result.decided_otherwise is None
