"""Effects: the work that follows the commit of an event, as data. They follow from the event and the state after it.

The caller does them only after the commit. A successor has only the journal, and finds in the state what the dead
holder still owed (`resume_effects`).

Grants and stops may go out in any order. What is owed to others is done in the order in which it came to be owed, so a
child is started before it is cancelled, and a parent is told before the end is reported. `ReportFinished` comes last,
and with it the execution leaves memory.

`parking` is asked when a decision is complete: an execution that only waits gives back its slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from services.coordinator.core import events as ev
from services.coordinator.core.inputs import NOTHING_SEEN, NodeWithoutOutput, seen_nodes
from services.coordinator.core.items import item_of
from services.coordinator.core.state import Execution, Obligation, Run, StartChild, Work, WorkLoop
from services.coordinator.core.values import NODE_TIMEOUT, SECOND, ExecutionState, FailureReason, Instant, Span, Value

# A wait shorter than this is not worth giving the slot back.
PARKING_WAIT_MIN: Span = 10 * SECOND
# The reason for stopping any run that is over without a word of its runner, when the runner is told so once more.
LEASE_ENDED = "LEASE_ENDED"


@dataclass(slots=True)
class GrantRun:
    run: Run
    # The templates of its node refer to these nodes.
    outputs: Sequence[tuple[str, Value]]
    without_output: Sequence[NodeWithoutOutput]
    # They see it as `item`. None: the run is of no item of a list.
    item: bytes | None = None


@dataclass(slots=True)
class StopRun:
    """Tell the runner to stop. Its answer may come late or never. `reason` is what the execution ends as, and the end
    waits for the answer; or it is NODE_TIMEOUT or LEASE_ENDED, and nobody waits."""

    number: int
    epoch: int
    instance_id: str
    reason: str


@dataclass(slots=True)
class ReadItems:
    """Read the config of a loop from the output store, and start the loop then."""

    work: Work


@dataclass(slots=True)
class StoreLoopOutput:
    """Put the output of a gathered loop into the output store, and finish the loop then."""

    loop: WorkLoop


OfStore: TypeAlias = ReadItems | StoreLoopOutput
Effect: TypeAlias = GrantRun | StopRun | OfStore | Obligation


def effects(execution: Execution, event: ev.Event) -> Sequence[Effect]:
    """Asked after all events of the decision were applied. Most events have no effect outside."""
    match event:
        case ev.RunLeased():
            return _grant(execution, execution.runs[event.run - 1])
        case ev.RunSucceeded():
            # A success is as frequent as a lease, so it is matched before all the rare events below.
            return ()
        case ev.RunFailed() if not event.is_reported:
            return _stop_of_failed(execution, event)
        case ev.StopOrdered():
            return _stops(execution, event.outcome)
        case ev.LoopClosed():
            return _item_stops(execution, event)
        case ev.ItemsRequested():
            return (ReadItems(execution.work[event.key]),)
        case ev.LoopGathered():
            return (StoreLoopOutput(execution.loops[event.key]),)
        case ev.ExecutionFinished():
            return list(execution.obligations)
        case ev.ChildRequested():
            return (StartChild(execution.unstarted[event.child_execution_id]),)
        case ev.ChildCancelOrdered():
            return (execution.uncancelled[event.child_execution_id],)
        case (
            ev.ExecutionStarted()
            | ev.ExecutionAdopted()
            | ev.OutputRequested()
            | ev.RunStarted()
            | ev.RunProgressed()
            | ev.RunFailed()
            | ev.RunLost()
            | ev.RunReleased()
            | ev.RunCancelled()
            | ev.LateReportRejected()
            | ev.ControlRendered()
            | ev.WorkRendered()
            | ev.WorkTakenOver()
            | ev.BackoffEnded()
            | ev.WaitStarted()
            | ev.WaitEnded()
            | ev.ItemsRead()
            | ev.LoopStarted()
            | ev.LoopContinued()
            | ev.SignalReceived()
            | ev.SignalTaken()
            | ev.ApprovalRequested()
            | ev.ApprovalDecided()
            | ev.RunDeferred()
            | ev.OutsideAnswered()
            | ev.WorkSkipped()
            | ev.WorkBlocked()
            | ev.CompensationStarted()
            | ev.ExecutionPaused()
            | ev.ExecutionResumed()
            | ev.ExecutionReopened()
            | ev.DeadLetterResolved()
            | ev.RunQuarantined()
            | ev.CommandRefused()
            | ev.CommandChangedNothing()
            | ev.ChildStarted()
            | ev.WorkHeldBack()
            | ev.WorkLetThrough()
            | ev.ChildRefused()
            | ev.ChildCancelTold()
        ):
            return ()
        case _:
            assert_never(event)


def _grant(execution: Execution, run: Run) -> Sequence[Effect]:
    if not run.instance_id:
        return ()
    seen = seen_nodes(execution, run.work) if run.work.is_templated else NOTHING_SEEN
    item = None if run.work.loop is None else item_of(run.work)
    return (GrantRun(run, seen.outputs, seen.without_output, item),)


def _stop_of_failed(execution: Execution, event: ev.RunFailed) -> Sequence[Effect]:
    """Its runner does not know that the run has failed."""
    run = execution.runs[event.run - 1]
    reason = LEASE_ENDED if event.reason is FailureReason.MANUAL else NODE_TIMEOUT
    return (StopRun(run.number, run.epoch, run.instance_id, reason),) if run.instance_id else ()


def resume_effects(execution: Execution) -> Sequence[Effect]:
    """The effects that the last holder may have left undone. Grants are not among them: live runs are adopted, and a
    runner that never got its grant says so when it is asked."""
    stops = [
        StopRun(run.number, run.epoch, run.instance_id, reason)
        for run in execution.runs
        if run.instance_id and (reason := why_to_stop(execution, run))
    ]
    reads = [ReadItems(work) for work in execution.unread.values()]
    stores = [StoreLoopOutput(loop) for loop in execution.unstored.values()]
    return [*stops, *reads, *stores, *execution.owed]


def why_to_stop(execution: Execution, run: Run) -> str:
    """Why the runner has to stop this run, if it has not heard so yet; "" if it may go on."""
    if run.is_taken_back:
        return LEASE_ENDED
    stop = execution.stop
    return stop.outcome.value if stop is not None and run.number in execution.live else ""


def parking(execution: Execution, now: Instant, rest_until: Instant = 0) -> Instant | None:
    """The time that wakes an execution which gives back its slot and its memory, because it only waits and the wait is
    not short. 0: a message alone wakes it. None: it stays. An execution that owes something stays, unless that has no
    use before `rest_until`."""
    if execution.is_final:
        return rest_until or None
    if not execution.only_waits or execution.stop is not None:
        return None
    if (execution.unstarted or execution.uncancelled) and not rest_until:
        return None
    wake_time = execution.next_wake()
    if execution.held_back and execution.paused_by is None:
        # It is woken when the circuit closes (app/parked_waits.py). It also looks by itself, because the coordinator
        # that would wake it may be gone by then.
        look_time = min(hold.until for hold in execution.held_back.values())
        wake_time = min(wake_time or look_time, look_time) or now
    if rest_until:
        return min(rest_until, wake_time or rest_until)
    return wake_time if not wake_time or wake_time > now + PARKING_WAIT_MIN else None


def _item_stops(execution: Execution, event: ev.LoopClosed) -> list[Effect]:
    runs = [execution.work[key].run for key in event.stopped]
    return [StopRun(run.number, run.epoch, run.instance_id, LEASE_ENDED) for run in runs if run is not None]


def _stops(execution: Execution, outcome: ExecutionState) -> list[Effect]:
    return [
        StopRun(run.number, run.epoch, run.instance_id, outcome.value)
        for run in execution.live.values()
        if run.instance_id
    ]
