"""The events of an execution, in the past tense: the vocabulary of the journal.

Together with `definition.py` these events are everything the state is made of. Each event says what was decided and
what followed from it, so that folding needs no rule. Events are stored for ever: a field may be added with a default,
but no field ever changes its meaning (`protos/windlass/journal/v1` is the stored form, `store/event_table.py` the
translation).

`time` is when the event was decided, by the clock of the holder that decided it. The sequence number and the epoch are
not part of an event: its place in the journal is its number, and the epoch is that of the holder that appends it.

Hazard: events are mutable because frozen dataclasses are slower to make. Nobody changes an event after it was emitted.
"""

from typing import TypeAlias

from services.coordinator.core.events.executions import (
    CommandChangedNothing,
    CommandRefused,
    CompensationStarted,
    DeadLetterResolved,
    ExecutionAdopted,
    ExecutionFinished,
    ExecutionPaused,
    ExecutionReopened,
    ExecutionResumed,
    ExecutionStarted,
    OutputRequested,
    ReopenedWork,
    RunQuarantined,
    StopOrdered,
)
from services.coordinator.core.events.loops import (
    ChildCancelOrdered,
    ChildCancelTold,
    ChildEvent,
    ChildRefused,
    ChildRequested,
    ChildStarted,
    ItemsRead,
    ItemsRequested,
    LoopClosed,
    LoopContinued,
    LoopGathered,
    LoopStarted,
)
from services.coordinator.core.events.runs import (
    BackoffEnded,
    ControlRendered,
    LateReportRejected,
    RunCancelled,
    RunFailed,
    RunLeased,
    RunLost,
    RunProgressed,
    RunReleased,
    RunStarted,
    RunSucceeded,
    WorkBlocked,
    WorkHeldBack,
    WorkLetThrough,
    WorkRendered,
    WorkSkipped,
    WorkTakenOver,
)
from services.coordinator.core.events.shapes import (
    NOTHING_FOLLOWS,
    Consequences,
    Resolution,
    RunEvent,
    WaitKind,
    WaitOutcome,
    WorkEvent,
)
from services.coordinator.core.events.waits import (
    ApprovalDecided,
    ApprovalRequested,
    OutsideAnswered,
    RunDeferred,
    SignalReceived,
    SignalTaken,
    WaitEnded,
    WaitStarted,
)

_OfStart: TypeAlias = ExecutionStarted | ExecutionAdopted
_OfEnd: TypeAlias = OutputRequested | StopOrdered | CompensationStarted | ExecutionFinished
_OfPause: TypeAlias = ExecutionPaused | ExecutionResumed
_OfAnswers: TypeAlias = CommandRefused | CommandChangedNothing
_OfPeople: TypeAlias = _OfPause | ExecutionReopened | DeadLetterResolved | RunQuarantined | _OfAnswers
_OfRun: TypeAlias = RunLeased | RunStarted | RunProgressed | LateReportRejected
_OfRunEnd: TypeAlias = RunSucceeded | RunFailed | RunLost | RunReleased | RunCancelled
_OfWork: TypeAlias = ControlRendered | WorkRendered | BackoffEnded | WaitStarted | WaitEnded | WorkSkipped | WorkBlocked
LoopEvent: TypeAlias = ItemsRequested | ItemsRead | LoopStarted | LoopContinued | LoopGathered | LoopClosed
OfChild: TypeAlias = ChildRequested | ChildStarted | ChildRefused | ChildCancelOrdered | ChildCancelTold
_OfMessages: TypeAlias = (
    SignalReceived | SignalTaken | ApprovalRequested | ApprovalDecided | RunDeferred | OutsideAnswered
)
_OfCircuit: TypeAlias = WorkHeldBack | WorkLetThrough
_OfOthers: TypeAlias = _OfPeople | LoopEvent | OfChild | _OfMessages | _OfCircuit | WorkTakenOver
Event: TypeAlias = _OfStart | _OfEnd | _OfRun | _OfRunEnd | _OfWork | _OfOthers

__all__ = [
    "NOTHING_FOLLOWS",
    "ApprovalDecided",
    "ApprovalRequested",
    "BackoffEnded",
    "ChildCancelOrdered",
    "ChildCancelTold",
    "ChildEvent",
    "ChildRefused",
    "ChildRequested",
    "ChildStarted",
    "CommandChangedNothing",
    "CommandRefused",
    "CompensationStarted",
    "Consequences",
    "ControlRendered",
    "DeadLetterResolved",
    "Event",
    "ExecutionAdopted",
    "ExecutionFinished",
    "ExecutionPaused",
    "ExecutionReopened",
    "ExecutionResumed",
    "ExecutionStarted",
    "ItemsRead",
    "ItemsRequested",
    "LateReportRejected",
    "LoopClosed",
    "LoopContinued",
    "LoopEvent",
    "LoopGathered",
    "LoopStarted",
    "OfChild",
    "OutputRequested",
    "OutsideAnswered",
    "ReopenedWork",
    "Resolution",
    "RunCancelled",
    "RunDeferred",
    "RunEvent",
    "RunFailed",
    "RunLeased",
    "RunLost",
    "RunProgressed",
    "RunQuarantined",
    "RunReleased",
    "RunStarted",
    "RunSucceeded",
    "SignalReceived",
    "SignalTaken",
    "StopOrdered",
    "WaitEnded",
    "WaitKind",
    "WaitOutcome",
    "WaitStarted",
    "WorkBlocked",
    "WorkEvent",
    "WorkHeldBack",
    "WorkLetThrough",
    "WorkRendered",
    "WorkSkipped",
    "WorkTakenOver",
]
