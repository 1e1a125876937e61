"""Bookkeeping of the graph: edges that resolved, and work that became ready, begins, is passed over or cancelled."""

from services.coordinator.core import events as ev
from services.coordinator.core.state import DeadLetter, Execution, Work, WorkState
from services.coordinator.core.values import BrokenInvariant, Error, FailureReason, FinalError, OutputRef, WorkKey

# Every step asks for these. To look a member up in its enum takes 45 ns in Python 3.11.
_TAKEN, _BLOCKED = int(ev.Resolution.TAKEN), int(ev.Resolution.BLOCKED)
_READY = WorkState.READY


def apply_consequences(execution: Execution, work: Work, then: ev.Consequences) -> None:
    # There are no edges if the execution is ending, because nothing follows any more.
    for edge, resolution in zip(work.node.edges, then.edges, strict=False):
        target = execution.target_of(edge.target)
        target.unresolved -= 1
        if resolution == _TAKEN:
            target.taken += 1
            if target.node.begins_on_one_path and target.begun_by is None:
                target.begun_by = work.node.id
        elif resolution == _BLOCKED:
            target.blocked += 1
    release_targets(execution, then)


def release_targets(execution: Execution, then: ev.Consequences) -> None:
    for key in then.ready:
        make_ready(execution, execution.work_of(key))
    for key in then.begun:
        begin(execution, execution.work_of(key))
    for key in then.skipped:
        pass_over(execution, execution.work_of(key), WorkState.SKIPPED)
    for key in then.blocked:
        pass_over(execution, execution.work_of(key), WorkState.BLOCKED)


def make_ready(execution: Execution, work: Work) -> None:
    work.state = _READY
    execution.ready[work] = None


def backoff_ended(execution: Execution, event: ev.BackoffEnded) -> None:
    """The work is tried again: by a runner, or by the core if no runner has a part in it."""
    work = execution.backoffs.pop(event.key)
    work.timer = 0
    if work.node.needs_runner:
        make_ready(execution, work)
    else:
        begin(execution, work)


def begin(execution: Execution, work: Work) -> None:
    work.state = WorkState.BEGUN
    execution.to_begin.append(work)


def pass_over(execution: Execution, work: Work, state: WorkState) -> None:
    work.state = state
    execution.passed_over.append(work)


def passed_over(execution: Execution, key: WorkKey) -> Work:
    work = execution.passed_over.popleft()
    if work.key != key:
        raise BrokenInvariant(f"{key} is passed over before {work.key}")
    return work


def item_ended(work: Work) -> None:
    loop = work.loop
    if loop is not None:
        del loop.going[work.key.iteration]
        output = work.output
        if output is not None:
            loop.output_bytes += output.size_bytes if isinstance(output, OutputRef) else len(output)
        if work.state is WorkState.FAILED and loop.failed is None:
            loop.failed = work


def cancel(execution: Execution, work: Work) -> None:
    """No run of the work is live."""
    match work.state:
        case WorkState.READY:
            del execution.ready[work]
        case WorkState.BACKOFF:
            del execution.backoffs[work.key]
            work.timer = 0
        case WorkState.HELD_BACK:
            execution.held_back.pop(work.key).timer = 0
        case WorkState.BEGUN:
            # The keys have the order of the queue, so each is found at its head.
            execution.to_begin.remove(work)
        case WorkState.WAITING:
            # It failed and waits for a person. It stays failed.
            del execution.waits[work.key]
            work.state = WorkState.FAILED
            return
        case _:
            raise BrokenInvariant(f"{work.key} is {work.state.value} and cannot be cancelled")
    work.state = WorkState.CANCELLED
    item_ended(work)


def work_blocked(execution: Execution, event: ev.WorkBlocked) -> None:
    apply_consequences(execution, passed_over(execution, event.key), event.then)


def output_requested(execution: Execution, event: ev.OutputRequested) -> None:
    make_ready(execution, execution.work_of(event.key))


def fail(execution: Execution, work: Work, event: ev.RunFailed | ev.RunLost) -> None:
    if event.reason is FailureReason.STOPPED:
        work.state = WorkState.CANCELLED
        item_ended(work)
        return
    # A compensation that fails changes nothing in the execution, but a person has to know.
    is_dead_letter = (not event.is_handled or work.node.undoes) and not event.key.iteration
    if is_dead_letter and event.reason is not None:
        execution.dead_letters[event.run] = _dead_letter(execution, event, event.reason)
    if event.is_held:
        work.state = WorkState.HELD
        return
    work.state = WorkState.FAILED
    item_ended(work)
    if not event.is_handled:
        note_failure(execution, work, event.error)
    apply_consequences(execution, work, event.then)


def _dead_letter(execution: Execution, event: ev.RunFailed | ev.RunLost, reason: FailureReason) -> DeadLetter:
    rendered = event.rendered if isinstance(event, ev.RunFailed) else b""
    return DeadLetter(execution.runs[event.run - 1], reason, event.time, rendered)


def note_failure(execution: Execution, work: Work, error: Error) -> None:
    if execution.first_failure is None:
        execution.first_failure = FinalError(work.node.id, error.type, error.message)
