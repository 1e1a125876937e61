"""Finds the command that led to an event.

An event that a report, a person or a timer brought about says nearly all that its command said. What it does not say is
chosen so that the same follows: a random number is replaced by the delay that came of it.

The journal does not hold everything. A retry of a person, what a fork took over, or a list that is kept in the output
store cannot be given again.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.coordinator.core import commands
from services.coordinator.core import events as ev
from services.coordinator.core.state import Execution, Run
from services.coordinator.core.values import SPAN_MAX, ExecutionState, FailureReason, RunState

# An event, and after it those that follow it in its append.
_Append = Sequence[Any]


def command_behind(execution: Execution, append: _Append) -> commands.Command | None:
    """The command that led to the first of these events, in this state. None: the journal does not say."""
    if execution.unread or execution.unstored:
        return None
    infer = _BEHIND.get(type(append[0]))
    return None if infer is None else infer(execution, append)


def _start(execution: Execution, append: _Append) -> commands.Command | None:
    started, *rest = append
    if started.origin.origin_execution_id:
        return None
    following: Any = rest[0] if rest else None
    cancel, pause = None, None
    is_cancelled = isinstance(following, ev.StopOrdered) and following.outcome is ExecutionState.CANCELLED
    if is_cancelled and started.then == ev.NOTHING_FOLLOWS:
        # It was cancelled in the queue. Otherwise it began, and the cancel came to the same append.
        cancel = commands.Cancel(following.message_id, following.error.message, following.caller)
    if isinstance(following, ev.ExecutionPaused):
        pause = commands.Pause(following.message_id, following.caller, following.reason)
    return commands.Start(
        epoch=started.epoch,
        holder=started.holder,
        origin=started.origin,
        grant_time=started.grant_time,
        deadline=started.deadline_time,
        retry=started.retry,
        cancel=cancel,
        pause=pause,
    )


# A take-over brings these about itself, before anything follows from it.
_OF_TAKE_OVER = (ev.RunLost, ev.WaitStarted, ev.StopOrdered, ev.RunCancelled, ev.ChildCancelOrdered)


def _adopt(execution: Execution, append: _Append) -> commands.Command:
    adopted, *after = append
    decided = itertools.takewhile(lambda event: isinstance(event, _OF_TAKE_OVER), after)
    gone = _lost_with_take_over(execution, [event for event in decided if isinstance(event, ev.RunLost)])
    live = {run.instance_id for run in execution.live.values()} - gone
    return commands.Adopt(adopted.epoch, adopted.holder, live, adopted.wake_time, adopted.grant_time)


def _lost_with_take_over(execution: Execution, lost: Sequence[ev.RunLost]) -> set[str]:
    """The instances that were found dead. Another may have been lost right after the take-over, in the same append. A
    take-over loses all runs of an instance, in the order of the runs, and knows of no run elsewhere that had begun."""
    left = Counter(run.instance_id for run in execution.live.values())
    begun = {run.instance_id for run in execution.live.values() if run.state is RunState.RUNNING}
    found: set[str] = set()
    seen: set[str] = set()
    # The runs that the instances seen so far have left.
    still_live, last = 0, 0
    for event in lost:
        run = execution.live.get(event.run)
        if run is None or event.run < last:
            break
        instance_id, last = run.instance_id, event.run
        is_spared = instance_id in begun and run.state is RunState.LEASED and not run.work.was_spared
        if event.is_spared != is_spared:
            break
        still_live += -1 if instance_id in seen else left[instance_id] - 1
        seen.add(instance_id)
        if not still_live:
            found |= seen
    return found


def _assign(execution: Execution, append: _Append) -> commands.Command:
    """All leases that follow each other are of one command, or might be."""
    grants = []
    for leased in append:
        if not isinstance(leased, ev.RunLeased):
            break
        grants.append(
            commands.AssignedRun(
                execution.work[leased.key],
                leased.instance_id,
                leased.runner,
                leased.traceparent,
                is_idempotent=leased.is_idempotent,
                is_rendering=leased.attempt == 0,
            )
        )
    return commands.Assign(grants)


def _lose(execution: Execution, append: _Append) -> commands.Command:
    """Several runners may have been lost in the append: each is a command of its own."""
    instance_id = execution.live[append[0].run].instance_id
    own = {run.number for run in execution.live.values() if run.instance_id == instance_id}
    decided = itertools.takewhile(lambda event: not isinstance(event, ev.RunLeased), append)
    lost = [event for event in decided if isinstance(event, ev.RunLost) and event.run in own]
    return commands.LoseRunner(
        instance_id, is_idempotent_only=len(lost) < len(own), has_begun_runs=any(event.is_spared for event in lost)
    )


def _of_live(make: Callable[[Run, Any], commands.Command | None]) -> Callable[[Execution, _Append], Any]:
    """Infers a command that a runner gave about a run that it had."""

    def infer(execution: Execution, append: _Append) -> commands.Command | None:
        run = execution.live.get(append[0].run)
        return None if run is None else make(run, append[0])

    return infer


def _times(event: Any) -> dict[str, Any]:
    return {"start_time": event.start_time, "end_time": event.end_time}


def _measured(event: Any) -> dict[str, Any]:
    return {
        **_times(event),
        "inputs_hash": event.inputs_hash,
        "config_hash": event.config_hash,
        "cost_tokens": event.cost_tokens,
    }


def _succeed(run: Run, event: ev.RunSucceeded) -> commands.Command:
    return commands.ReportSuccess(run.number, run.epoch, event.output, event.branch, **_measured(event))


def _rendered_control(run: Run, event: ev.ControlRendered) -> commands.Command:
    return commands.ReportSuccess(run.number, run.epoch, event.stored or event.config, **_times(event))


def _rendered_work(run: Run, event: ev.WorkRendered) -> commands.Command:
    return commands.ReportSuccess(run.number, run.epoch, event.rendered, **_times(event))


def _fail(run: Run, event: ev.RunFailed) -> commands.Command | None:
    """The random number of the backoff is replaced by the delay that came of it. Without a further attempt that delay
    was over the budget, or there were no attempts left; both hold for the longest delay."""
    if not event.is_reported:
        return None
    is_over = event.reason in (FailureReason.MAX_RETRIES, FailureReason.CIRCUIT_BREAKER)
    return commands.ReportFailure(
        run.number,
        run.epoch,
        event.error,
        random=0.0,
        retry_after=SPAN_MAX if is_over else max(0, event.retry_time - event.time),
        rendered=event.rendered,
        **_measured(event),
    )


def _release(run: Run, event: ev.RunReleased) -> commands.Command:
    return commands.Release(run.number, run.epoch, event.release, event.may_have_begun)


def _stopped(execution: Execution, append: _Append) -> commands.Command | None:
    """Its runner has stopped it, or did not say so in time."""
    event, run = append[0], execution.live.get(append[0].run)
    if run is None or not event.is_reported:
        return _tick(execution, append)
    return commands.ReportStopped(run.number, run.epoch, **_times(event))


def _deferred(run: Run, event: ev.RunDeferred) -> commands.Command:
    return commands.ReportDeferred(
        run.number,
        run.epoch,
        start_time=event.start_time,
        inputs_hash=event.inputs_hash,
        config_hash=event.config_hash,
        cost_tokens=event.cost_tokens,
    )


def _begun(run: Run, event: ev.RunStarted) -> commands.Command:
    return commands.ReportStarted(run.number, run.epoch, event.start_time)


def _progressed(run: Run, event: ev.RunProgressed) -> commands.Command | None:
    """A heartbeat from outside is recorded even if it says nothing new."""
    news = (event.progress, event.message, event.cursor)
    if news == (run.progress, run.progress_message, run.work.cursor):
        return None
    return commands.ReportProgress(run.number, run.epoch, *news)


def _hold_back(execution: Execution, append: _Append) -> commands.Command:
    held = append[0]
    if not held.run:
        return commands.HoldBack([commands.HeldWork(held.key, held.target, held.until_time)])
    run = execution.live[held.run]
    target = held.target.removeprefix(f"{run.work.node.runner_module} ")
    return commands.ReportHeldBack(run.number, run.epoch, target, held.until_time)


def _stop(execution: Execution, append: _Append) -> commands.Command | None:
    ordered = append[0]
    if ordered.outcome is ExecutionState.CANCELLED:
        return commands.Cancel(ordered.message_id, ordered.error.message, ordered.caller)
    return _tick(execution, append)


def _tick(execution: Execution, append: _Append) -> commands.Command | None:
    """A timer. The backoff after a timeout depends on a random number that the journal does not hold."""
    timer = execution.next_timer()
    if timer is None or timer.due > append[0].time:
        return None
    if any(isinstance(event, ev.RunFailed) and event.retry_time for event in append):
        return None
    return commands.Tick(random=0.0)


def _waited(execution: Execution, append: _Append) -> commands.Command | None:
    """A wait that did not expire was ended by a message that the journal does not hold, such as the end of a child. A
    timer that is due by then comes after it."""
    return _tick(execution, append) if append[0].outcome is ev.WaitOutcome.EXPIRED else None


def _decide_approval(execution: Execution, append: _Append) -> commands.Command:
    """The role of the key is not recorded, but it was one that may decide."""
    decided = append[0]
    assignees = execution.approvals[decided.run].assignees
    roles = [each.removeprefix("role:") for each in assignees if each.startswith("role:")]
    return commands.DecideApproval(
        decided.message_id,
        decided.caller,
        key_id=decided.key_id,
        role=roles[0] if roles else "",
        run=decided.run,
        decision=decided.decision,
        form=decided.form,
        comment=decided.comment,
    )


def _complete(execution: Execution, append: _Append) -> commands.Command | None:
    answered, ended, *_ = append
    if not isinstance(ended, ev.RunSucceeded) or not isinstance(ended.output, bytes):
        return None
    return commands.CompleteRun(answered.message_id, "", answered.run, ended.output, ended.branch)


_BEHIND: Mapping[type[Any], Callable[[Execution, _Append], commands.Command | None]] = {
    ev.ExecutionStarted: _start,
    ev.ExecutionAdopted: _adopt,
    ev.RunLeased: _assign,
    ev.RunLost: _lose,
    ev.RunStarted: _of_live(_begun),
    ev.RunProgressed: _of_live(_progressed),
    ev.RunSucceeded: _of_live(_succeed),
    ev.ControlRendered: _of_live(_rendered_control),
    ev.WorkRendered: _of_live(_rendered_work),
    ev.RunFailed: _of_live(_fail),
    ev.RunReleased: _of_live(_release),
    ev.RunCancelled: _stopped,
    ev.RunDeferred: _of_live(_deferred),
    ev.WorkHeldBack: _hold_back,
    ev.WorkLetThrough: lambda _, append: commands.LetThrough([append[0].key], append[0].is_probe),
    ev.StopOrdered: _stop,
    ev.BackoffEnded: _tick,
    ev.WaitEnded: _waited,
    ev.ExecutionPaused: lambda _, append: commands.Pause(append[0].message_id, append[0].caller, append[0].reason),
    ev.ExecutionResumed: lambda _, append: commands.Resume(append[0].message_id, append[0].caller),
    ev.SignalReceived: lambda _, append: commands.Signal(
        append[0].message_id, append[0].caller, append[0].signal, append[0].payload
    ),
    ev.ApprovalDecided: _decide_approval,
    ev.OutsideAnswered: _complete,
    ev.ChildStarted: lambda _, append: commands.NoteChildStarted(append[0].child_execution_id),
    ev.ChildCancelTold: lambda _, append: commands.NoteChildCancelTold(append[0].child_execution_id),
    ev.RunQuarantined: lambda _, append: commands.Quarantine(
        append[0].message_id, append[0].caller, append[0].run, append[0].notes
    ),
}
