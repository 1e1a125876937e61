"""One command being handled: the state, the time, and the events so far.

Handlers and control nodes change the state through a `Turn` alone. `emit` applies each event at once, so whatever asks
next sees the truth. `advance` (advance.py) then emits what follows by itself. Everything that a command brings about is
one list of events, which the caller commits together.
"""

from services.coordinator.core import events as ev
from services.coordinator.core import results
from services.coordinator.core.commands import ReportOfEnd
from services.coordinator.core.fold import apply
from services.coordinator.core.graph import Outcome, judge
from services.coordinator.core.loops import after_item
from services.coordinator.core.retry import judge_failure
from services.coordinator.core.state import Execution, Run, Work, WorkState
from services.coordinator.core.values import (
    SECOND,
    Error,
    ErrorClass,
    ExecutionState,
    FailureReason,
    FinalError,
    Instant,
    Span,
    Value,
    fingerprint,
)

# How long runners may take to say that they stopped. Then the execution is final without them (L5: 2 s in all).
ANSWER_TERM: Span = 3 * SECOND // 2


class Turn:
    __slots__ = ("events", "execution", "now")

    def __init__(self, execution: Execution, now: Instant) -> None:
        self.execution = execution
        self.now = now
        self.events: list[ev.Event] = []

    def emit(self, event: ev.Event) -> None:
        apply(self.execution, event)
        self.events.append(event)

    # The consequences of an outcome

    def after_success(self, work: Work, branch: str = "") -> ev.Consequences:
        if self.execution.stop is not None:
            return ev.NOTHING_FOLLOWS
        if work.loop is not None:
            return after_item(work, branch)
        return judge(self.execution, work, Outcome.SUCCEEDED, branch)

    def after_failure(self, work: Work, reason: FailureReason) -> ev.Consequences:
        """The consequences of a final failure, unless it ends the whole execution (`stop_if_fail_fast`)."""
        is_handled = work.node.is_failure_handled
        if self.holds(work, reason):
            return ev.NOTHING_FOLLOWS
        if reason is FailureReason.STOPPED or (self.execution.definition.is_fail_fast and not is_handled):
            return ev.NOTHING_FOLLOWS
        if work.loop is not None:
            return after_item(work, has_failed=True)
        return judge(self.execution, work, Outcome.HANDLED if is_handled else Outcome.FAILED)

    def holds(self, work: Work, reason: FailureReason | None) -> bool:
        """The work failed for good, and waits for a person."""
        if reason is None or reason is FailureReason.STOPPED or work.key.iteration or not work.node.in_graph:
            return False
        return self.execution.definition.holds_failures and not work.node.is_failure_handled

    def after_final_failure(self, work: Work) -> None:
        """Of work that nobody handles: it waits for a person, or the workflow ends."""
        if work.state is WorkState.HELD:
            assert work.run is not None
            # It waits under the run that failed, which is its dead letter.
            self.emit(ev.WaitStarted(self.now, work.key, work.run.number, ev.WaitKind.PERSON, 0))
        else:
            self.stop_if_fail_fast()

    def stop_if_fail_fast(self) -> None:
        """The workflow ends at the first failure that nobody handles."""
        execution = self.execution
        if execution.stop is not None or execution.compensation is not None:
            return
        if execution.definition.is_fail_fast and execution.first_failure is not None:
            self.order_stop(ExecutionState.FAILED, execution.first_failure)

    def order_stop(self, outcome: ExecutionState, error: FinalError, message_id: str = "", caller: str = "") -> None:
        execution, answer_by = self.execution, self.now + ANSWER_TERM
        held_back = [hold.work for hold in execution.held_back.values()]
        held = [wait.work for wait in execution.waits.values() if wait.kind is ev.WaitKind.PERSON]
        idle = (*execution.ready, *execution.backoffs.values(), *held_back, *execution.to_begin, *held)
        cancelled, passed_over = tuple([work.key for work in idle]), tuple([work.key for work in execution.passed_over])
        self.emit(ev.StopOrdered(self.now, outcome, error, answer_by, message_id, caller, cancelled, passed_over))
        for wait in [wait for wait in execution.waits.values() if wait.kind is not ev.WaitKind.PERSON]:
            self.cancel_run(wait.work)
        for work in [*execution.unread.values(), *(loop.work for loop in execution.loops.values())]:
            self.cancel_run(work)

    def cancel_run(self, work: Work) -> None:
        """The work has a run, and nobody is asked whether it has stopped."""
        assert work.run is not None
        wait = self.execution.waits.get(work.key)
        if wait is not None and wait.child is not None and wait.child.is_cancelled_with_parent:
            self.emit(ev.ChildCancelOrdered(self.now, work.key, work.run.number, wait.child.execution_id))
        self.emit(ev.RunCancelled(self.now, work.key, work.run.number, 0, 0, False))

    # Work that no runner has: it waits, succeeds or fails

    def wait(self, work: Work, kind: ev.WaitKind, due: Instant = 0, name: str = "") -> None:
        self.emit(ev.WaitStarted(self.now, work.key, self.run_of(work), kind, due, name))

    def succeed(self, work: Work, output: Value, branch: str = "") -> None:
        run, start_time = self.run_of(work), self._start_time_of(work)
        then = self.after_success(work, branch)
        self.emit(ev.RunSucceeded(self.now, work.key, run, output, branch, start_time, self.now, b"", b"", 0, then))

    def fail(self, work: Work, error_type: str, message: str) -> None:
        """The work failed finally, before a runner could do it or while the core did it."""
        # No runner measured it, so the report has times alone, and an epoch that nobody compares.
        report = ReportOfEnd(self.run_of(work), 0, start_time=self._start_time_of(work), end_time=self.now)
        self.fail_run(work, report, Error(ErrorClass.PERMANENT, error_type, message))

    def keep_cursor(self, run: Run, cursor: bytes) -> None:
        """A run that ends has brought its last cursor along. The next attempt goes on from it."""
        work = run.work
        if cursor and cursor != work.cursor:
            progress = run.progress, run.progress_message
            self.emit(ev.RunProgressed(self.now, work.key, run.number, *progress, cursor))

    # A run failed: the work is tried again, or it failed too

    def report_of(self, run: Run) -> ReportOfEnd:
        """What is known of a run that somebody else than its runner ends."""
        return ReportOfEnd(
            run.number,
            run.epoch,
            start_time=run.start_time,
            end_time=run.end_time or self.now,
            inputs_hash=run.inputs_hash,
            config_hash=run.config_hash,
            cost_tokens=run.cost_tokens,
        )

    def fail_run(
        self,
        work: Work,
        report: ReportOfEnd,
        error: Error,
        *,
        random: float = 0.0,
        retry_after: Span = 0,
        is_reported: bool = True,
        reason: FailureReason | None = None,
        rendered: bytes = b"",
    ) -> None:
        """With a `reason` the work is not tried again, whatever its retry policy says."""
        verdict = reason or self._verdict(work, error, random, retry_after)
        retry_time, reason = (0, verdict) if isinstance(verdict, FailureReason) else (verdict, None)
        error = results.clean_error(error)
        self.emit(
            ev.RunFailed(
                self.now,
                work.key,
                report.run,
                error,
                fingerprint(work.node.module, error),
                results.clamp_time(report.start_time, self.now),
                results.clamp_time(report.end_time, self.now),
                report.inputs_hash[: results.HASH_BYTES],
                report.config_hash[: results.HASH_BYTES],
                results.clamp_cost(report.cost_tokens),
                is_charged=error.is_charged,
                retry_time=retry_time,
                reason=reason,
                is_handled=work.node.is_failure_handled,
                is_reported=is_reported,
                then=ev.NOTHING_FOLLOWS if reason is None else self.after_failure(work, reason),
                is_held=self.holds(work, reason),
                rendered=b"" if reason is None or work.node.is_failure_handled else self._recorded(rendered),
            )
        )
        self.after_final_failure(work)

    def _recorded(self, rendered: bytes) -> bytes:
        """What people are shown of it, unless the workflow says that inputs are not to be kept."""
        is_recorded = self.execution.definition.records_inputs and results.is_recordable(rendered)
        return rendered if is_recorded else b""

    def _verdict(self, work: Work, error: Error, random: float, retry_after: Span) -> Instant | FailureReason:
        """When the work is tried again, or why it is not. While the execution is ending nobody asks."""
        if self.execution.stop is not None:
            return FailureReason.STOPPED
        return judge_failure(
            work.node.retry.over(self.execution.retry),
            error.error_class,
            work.failures + error.is_charged,
            first_time=work.first_time,
            now=self.now,
            retry_after=retry_after,
            random=random,
        )

    def run_of(self, work: Work) -> int:
        """The run under which a control node goes on, or the number of a new one: it begins for the first time, or once
        more after a failure. Work that is held for a person keeps the run that failed."""
        run = work.run
        is_begun_again = run is not None and bool(run.end_time) and work.state is WorkState.BEGUN
        return len(self.execution.runs) + 1 if run is None or is_begun_again else run.number

    def _start_time_of(self, work: Work) -> Instant:
        return self.now if work.run is None else work.run.start_time or self.now
