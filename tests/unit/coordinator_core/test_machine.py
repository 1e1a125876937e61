"""Random workflows under random fortune: zombies, duplicates, late reports, deaths, drains, take-overs, time.

The machine keeps every report ever sent and sends any of them again, and so it does with the commands of people; the
laws are checked after each step (`Story`), and the promises here:

- S3 epochs rise; S7 what is final stays so; S8 one accepted outcome per work; S9 attempt numbers are granted once;
- S10 a node starts only when its join holds, judged by a second, naive reading of the rules;
- S18 nothing is granted while it is paused; S19 no timer early; S26 a live run is not granted again;
- a repeated command of a person changes nothing and gets its first answer;
- the journal replays to the rows, and is decided again as it was;
- L: given time and willing runners, every execution ends.
"""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from services.coordinator.core.commands import (
    Adopt,
    Assign,
    AssignedRun,
    EndChild,
    FinishLoop,
    HeldWork,
    HoldBack,
    LetThrough,
    NoteChildCancelTold,
    NoteChildStarted,
    RefuseChild,
    Release,
    ReportDeferred,
    ReportFailure,
    ReportHeldBack,
    ReportProgress,
    ReportStarted,
    ReportStopped,
    ReportSuccess,
    StartLoop,
)
from services.coordinator.core.items import LoopConfig
from services.coordinator.core.values import Error, ErrorClass, ExecutionState, FinalError, ReleaseReason
from tests.support.fortune_people import People
from tests.support.graph_laws import assert_join_holds
from tests.support.random_workflows import KEPT, LIST, OUTPUT
from tests.support.story import SECOND

INSTANCES = ["i1", "i2", "i3"]
CURSORS = st.sampled_from([b"", b"", b'{"page":1}', b'{"page":2}'])
RENDERED = st.sampled_from([b"", b'{"config":{},"inputs":{"n":1}}'])
RANDOM = st.floats(0, 1, exclude_max=True)


class Fortune(People):
    # Runners

    def send(self, report: Any) -> Any:
        self.sent.append(report)
        return self.when(report)

    def a_live_run(self, data: Any) -> Any:
        return self.pick(data, self.story.execution.live.values())

    @precondition(lambda self: self.story.execution.ready)
    @rule(data=st.data())
    def assign(self, data: Any) -> None:
        work = self.pick(data, self.story.execution.ready)
        assert_join_holds(self.story, work.node)
        grant = AssignedRun(work, self.pick(data, INSTANCES), "r", is_idempotent=data.draw(st.booleans()))
        is_paused = self.story.execution.paused_by is not None
        decision = self.when(Assign([grant]))
        assert not (is_paused and decision.events), "S18"

    @precondition(lambda self: self.story.execution.ready)
    @rule(instance=st.sampled_from(INSTANCES))
    def assign_all(self, instance: str) -> None:
        self.do(lambda: self.story.assign(instance=instance))

    @precondition(lambda self: self.story.execution.live)
    @rule(data=st.data(), branch=st.sampled_from(["", "left", "right", "true", "false"]))
    def succeed(self, data: Any, branch: str) -> None:
        run = self.a_live_run(data)
        is_kept = run.work.node.body is not None or run.work.loop is not None
        is_kept = is_kept and data.draw(st.integers(0, 5)) == 0
        self.send(ReportSuccess(run.number, run.epoch, KEPT if is_kept else OUTPUT, branch))

    @precondition(lambda self: self.story.execution.live)
    @rule(data=st.data(), error=st.sampled_from(ErrorClass), random=RANDOM, cursor=CURSORS, rendered=RENDERED)
    def fail(self, data: Any, error: ErrorClass, random: float, cursor: bytes, rendered: bytes) -> None:
        run = self.a_live_run(data)
        before = run.work.cursor
        failure = Error(error, "X", "x")
        self.send(ReportFailure(run.number, run.epoch, failure, random, cursor=cursor, rendered=rendered))
        assert run.work.cursor == (cursor or before), "the next attempt goes on from the last cursor"

    @precondition(lambda self: self.story.execution.live)
    @rule(data=st.data(), kind=st.integers(0, 3), cursor=CURSORS)
    def say(self, data: Any, kind: int, cursor: bytes) -> None:
        run = self.a_live_run(data)
        number, epoch = run.number, run.epoch
        said = (
            ReportStarted(number, epoch, self.story.now),
            ReportProgress(number, epoch, 0.5, "half", cursor),
            ReportStopped(number, epoch),
            Release(number, epoch, data.draw(st.sampled_from(ReleaseReason)), data.draw(st.booleans()), cursor),
        )
        self.send(said[kind])

    @precondition(lambda self: self.story.execution.live)
    @rule(data=st.data())
    def defer(self, data: Any) -> None:
        run = self.a_live_run(data)
        self.send(ReportDeferred(run.number, run.epoch, start_time=self.story.now, cost_tokens=3))

    @precondition(lambda self: self.story.execution.live)
    @rule(data=st.data())
    def not_call(self, data: Any) -> None:
        """The runner was told that the circuit of the target is open."""
        run = self.a_live_run(data)
        self.send(ReportHeldBack(run.number, run.epoch, "crm", self.story.now + 9 * SECOND))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def repeat(self, data: Any) -> None:
        """Send an old report again: a zombie's, a duplicate, or one that took a long way."""
        report = self.pick(data, self.sent)
        is_live = report.run in self.story.execution.live
        succeeded = dict(self.outcomes)
        self.when(report)
        assert is_live or self.outcomes == succeeded, "S8"

    @rule(instance=st.sampled_from(INSTANCES), is_idempotent_only=st.booleans())
    def lose(self, instance: str, is_idempotent_only: bool) -> None:
        self.do(lambda: self.story.lose(instance, is_idempotent_only=is_idempotent_only))

    # The coordinator itself

    @rule(live=st.sets(st.sampled_from(INSTANCES)), is_folded=st.booleans())
    def take_over(self, live: set[str], is_folded: bool) -> None:
        """Another holder has only the journal. The same one may also be granted its execution again."""
        if is_folded:
            self.story = self.story.again()
        execution = self.story.execution
        kept = {number for number, run in execution.live.items() if run.instance_id in live}
        epoch = execution.epoch + 1
        self.when(Adopt(epoch, "c2", frozenset(live)))
        # S26: a live run is not granted again.
        assert execution.is_final or (kept <= set(execution.live) and execution.epoch == epoch)
        assert execution.is_final or self.when(Adopt(epoch, "c2", frozenset(live))).refusal, "S3"

    @rule(seconds=st.sampled_from([0.3, 2, 7, 30]), random=RANDOM)
    def wait(self, seconds: float, random: float) -> None:
        self.story.later(seconds)
        self.do(lambda: self.story.tick(random))

    # Circuits

    @precondition(lambda self: self.story.execution.ready or self.story.execution.held_back)
    @rule(data=st.data(), seconds=st.sampled_from([3, 9]))
    def hold_back(self, data: Any, seconds: int) -> None:
        execution = self.story.execution
        key = self.pick(data, [*(work.key for work in execution.ready), *execution.held_back])
        self.when(HoldBack([HeldWork(key, "noop@1 crm", self.story.now + seconds * SECOND)]))

    @precondition(lambda self: self.story.execution.held_back)
    @rule(data=st.data(), is_probe=st.booleans())
    def let_through(self, data: Any, is_probe: bool) -> None:
        key = self.pick(data, self.story.execution.held_back)
        self.when(LetThrough([key], is_probe))
        assert self.when(LetThrough([key], is_probe)).events == [], "it is repeated"

    # The output store

    @precondition(lambda self: self.story.execution.unread)
    @rule(data=st.data(), config=st.sampled_from([LIST, LIST, LoopConfig({}, ()), None]))
    def read(self, data: Any, config: LoopConfig | None) -> None:
        key = self.pick(data, self.story.execution.unread)
        self.when(StartLoop(key, config, "it is none"))
        assert self.when(StartLoop(key, config)).events == [], "it is repeated"

    @precondition(lambda self: self.story.execution.unstored)
    @rule(data=st.data(), output=st.sampled_from([KEPT, KEPT, None]))
    def store(self, data: Any, output: Any) -> None:
        key = self.pick(data, self.story.execution.unstored)
        self.when(FinishLoop(key, output))
        assert self.when(FinishLoop(key, output)).events == [], "it is repeated"

    # Children

    def children(self) -> Any:
        execution = self.story.execution
        return {**execution.children, **execution.unstarted, **execution.uncancelled}

    @precondition(lambda self: self.children())
    @rule(data=st.data(), make=st.sampled_from([NoteChildStarted, NoteChildCancelTold, RefuseChild, EndChild, None]))
    def hear_of_child(self, data: Any, make: Any) -> None:
        child = self.pick(data, self.children())
        news: Any
        if make is RefuseChild:
            news = RefuseChild(child, "WORKFLOW_NOT_FOUND", "gone")
        elif make is EndChild:
            news = EndChild(child, ExecutionState.SUCCESS, OUTPUT, None, 0.5)
        elif make is None:
            state = data.draw(st.sampled_from([ExecutionState.FAILED, ExecutionState.CANCELLED]))
            news = EndChild(child, state, None, FinalError("a", "BOOM", "bad"), 0.5)
        else:
            news = make(child)
        self.when(news)
        assert self.when(news).events == [], "it is repeated"


TestFortune = Fortune.TestCase
TestFortune.settings = settings(max_examples=100, stateful_step_count=50, suppress_health_check=list(HealthCheck))
