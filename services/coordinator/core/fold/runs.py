"""Bookkeeping of runs: they are made, go on and end, and their work with them."""

from services.coordinator.core import events as ev
from services.coordinator.core.fold.graph import (
    apply_consequences,
    begin,
    fail,
    item_ended,
    passed_over,
    release_targets,
)
from services.coordinator.core.fold.timers import set_timer
from services.coordinator.core.state import Execution, Run, TimerKind, Work, WorkState
from services.coordinator.core.values import ApprovalState, BrokenInvariant, FailureReason, RunState, WorkKey

# Every step asks for these. To look a member up in its enum takes 45 ns in Python 3.11.
_LIVE, _SUCCEEDED = WorkState.LIVE, WorkState.SUCCEEDED
_LEASED, _SUCCESS = RunState.LEASED, RunState.SUCCESS


def run_leased(execution: Execution, event: ev.RunLeased) -> None:
    work = execution.work[event.key]
    del execution.ready[work]
    work.state = _LIVE
    if event.attempt:
        work.attempts = event.attempt
    if not work.first_time:
        work.first_time = event.time
    run = new_run(execution, work, event, _LEASED)
    run.attempt = event.attempt
    run.instance_id = event.instance_id
    run.runner = event.runner
    run.is_idempotent = event.is_idempotent
    run.traceparent = event.traceparent
    execution.live[event.run] = run
    if event.backstop_time:
        run.timer = set_timer(execution, event.backstop_time, TimerKind.BACKSTOP, run)


def run_started(execution: Execution, event: ev.RunStarted) -> None:
    run = execution.live[event.run]
    run.state = RunState.RUNNING
    run.start_time = event.start_time
    run.heartbeat_time = event.time
    if event.backstop_time:
        run.timer = set_timer(execution, event.backstop_time, TimerKind.BACKSTOP, run)


def run_progressed(execution: Execution, event: ev.RunProgressed) -> None:
    # Nobody has a run that was deferred.
    run = execution.runs[event.run - 1]
    run.heartbeat_time = event.time
    run.progress = event.progress
    run.progress_message = event.message
    run.work.cursor = event.cursor


def run_succeeded(execution: Execution, event: ev.RunSucceeded) -> None:
    run = ended_run(execution, event)
    work = run.work
    run.is_answered = True
    run.state = _SUCCESS
    run.start_time = event.start_time
    run.end_time = event.end_time
    run.inputs_hash = event.inputs_hash
    run.config_hash = event.config_hash
    run.branch = event.branch
    if event.cost_tokens:
        run.cost_tokens = event.cost_tokens
        execution.cost_tokens += event.cost_tokens
    run.output = work.output = event.output
    work.state = _SUCCEEDED
    if execution.let_through:
        execution.let_through.pop(event.key, None)
    if work.node.compensation is not None:
        execution.compensable.append(work)
    if work.loop is not None:
        item_ended(work)
    apply_consequences(execution, work, event.then)


def work_taken_over(execution: Execution, event: ev.WorkTakenOver) -> None:
    """The work belongs to the origin, which undoes it if need be. So it is not compensable here."""
    work = execution.work[event.key]
    if work.state is WorkState.READY:
        del execution.ready[work]
    else:
        execution.to_begin.remove(work)
    run = new_run(execution, work, event, _SUCCESS)
    run.is_answered = True
    run.start_time = run.end_time = event.time
    run.branch = event.branch
    run.output = work.output = event.output
    work.state = _SUCCEEDED
    if event.begun_by:
        work.begun_by = event.begun_by
    apply_consequences(execution, work, event.then)


def control_rendered(execution: Execution, event: ev.ControlRendered) -> None:
    run = execution.live.pop(event.run)
    run.timer = 0
    run.is_answered = True
    run.state = RunState.RUNNING
    run.start_time = event.start_time
    run.work.config = event.stored or event.config
    begin(execution, run.work)


def work_rendered(execution: Execution, event: ev.WorkRendered) -> None:
    run = ended_run(execution, event)
    run.is_answered = True
    run.state = _SUCCESS
    run.start_time = event.start_time
    run.end_time = event.end_time
    work = run.work
    run.output = work.rendered = event.rendered
    work.dead_instances, work.was_spared = (), False
    release_targets(execution, event.then)


def run_failed(execution: Execution, event: ev.RunFailed) -> None:
    run = ended_run(execution, event)
    work = run.work
    run.is_answered = event.is_reported
    run.state = RunState.DLQ if event.reason is FailureReason.MANUAL else RunState.FAILED
    run.start_time = event.start_time
    run.end_time = event.end_time
    run.inputs_hash = event.inputs_hash
    run.config_hash = event.config_hash
    run.cost_tokens = event.cost_tokens
    execution.cost_tokens += event.cost_tokens
    run.error = event.error
    run.fingerprint = event.fingerprint
    run.retry_time = event.retry_time
    if execution.held_back or execution.let_through:
        _end_hold(execution, event)
    work.may_have_run_before |= not run.is_rendering
    work.failures += event.is_charged
    if event.reason is None:
        execution.retries += 1
        execution.backoffs[event.key] = work
        work.state = WorkState.BACKOFF
        work.timer = set_timer(execution, event.retry_time, TimerKind.BACKOFF, work)
    else:
        fail(execution, work, event)


def _end_hold(execution: Execution, event: ev.RunFailed) -> None:
    """The work failed, while it waited for the circuit of its target or after it was let through."""
    if (held := execution.held_back.pop(event.key, None)) is not None:
        held.timer = 0
    if (passed := execution.let_through.get(event.key)) is not None:
        passed.is_probe = False
        if event.reason is not None:
            del execution.let_through[event.key]


def run_lost(execution: Execution, event: ev.RunLost) -> None:
    run = ended_run(execution, event)
    work = run.work
    run.end_time = event.time
    run.error = event.error
    run.fingerprint = event.fingerprint
    run.state = RunState.DLQ if event.reason is FailureReason.POISON else RunState.FAILED
    work.may_have_run_before |= not run.is_rendering
    if event.is_spared:
        work.was_spared = True
    elif run.instance_id not in work.dead_instances:
        work.dead_instances += (run.instance_id,)
    if event.reason is None:
        release_targets(execution, event.then)
    else:
        fail(execution, work, event)


def run_released(execution: Execution, event: ev.RunReleased) -> None:
    run = ended_run(execution, event)
    run.is_answered = event.is_reported
    run.state = RunState.CANCELLED
    run.end_time = event.time
    work = run.work
    if event.may_have_begun and not run.is_rendering:
        work.may_have_run_before = True
    if event.again_time:
        work.hand_backs += 1
        others = [each for each in work.barred if each[1] > event.time and each[0] != run.instance_id]
        work.barred = (*others, (run.instance_id, event.again_time))
    if not event.then.ready:
        work.state = WorkState.CANCELLED
        item_ended(work)
    release_targets(execution, event.then)


def run_cancelled(execution: Execution, event: ev.RunCancelled) -> None:
    run = ended_run(execution, event)
    if wait := execution.waits.pop(event.key, None):
        wait.timer = 0
        if wait.child is not None:
            del execution.children[wait.child.execution_id]
        if wait.kind is ev.WaitKind.APPROVAL:
            execution.approvals[event.run].state = ApprovalState.CANCELLED
    forget_loop(execution, event.key)
    run.is_answered = run.is_answered or event.is_reported
    run.state = RunState.CANCELLED
    run.start_time = event.start_time or run.start_time
    run.end_time = event.end_time or event.time
    run.work.state = WorkState.CANCELLED
    item_ended(run.work)


def late_report_rejected(execution: Execution, event: ev.LateReportRejected) -> None:
    execution.runs[event.run - 1].is_late_noted = True


def work_skipped(execution: Execution, event: ev.WorkSkipped) -> None:
    work = passed_over(execution, event.key)
    run = new_run(execution, work, event, RunState.SKIPPED)
    run.start_time = run.end_time = event.time
    apply_consequences(execution, work, event.then)


def forget_loop(execution: Execution, key: WorkKey) -> None:
    execution.unread.pop(key, None)
    execution.unstored.pop(key, None)
    if loop := execution.loops.pop(key, None):
        # Its items keep the loop, and the list may be large.
        loop.items = ()


def ended_run(execution: Execution, event: ev.RunEvent) -> Run:
    """The run that an event ends. Nobody has it any more, and its timer is void."""
    run = execution.live.pop(event.run, None) or run_of(execution, event)
    run.timer = 0
    return run


def run_of(execution: Execution, event: ev.RunEvent) -> Run:
    """A run of a control node: the one that the node has, or a new one."""
    work = execution.work_of(event.key)
    if execution.to_begin and execution.to_begin[0] is work:
        # The control node has begun: it says so with its first event.
        execution.to_begin.popleft()
    if event.run <= len(execution.runs):
        return execution.runs[event.run - 1]
    work.attempts += 1
    run = new_run(execution, work, event, RunState.RUNNING)
    run.start_time = event.time
    return run


def new_run(execution: Execution, work: Work, event: ev.RunEvent, state: RunState) -> Run:
    if event.run != len(execution.runs) + 1:
        raise BrokenInvariant(f"run {event.run} does not follow run {len(execution.runs)}")
    run = work.run = Run(event.run, work, state, work.attempts, event.time, execution.seq)
    execution.runs.append(run)
    return run
