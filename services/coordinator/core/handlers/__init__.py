"""The handlers of the commands, one file per family.

    starting    Start, Adopt                     leasing       Assign, Release, LoseRunner
    reporting   what runners say of their runs   deferring     ReportDeferred, CompleteRun, FailRun, HeartbeatRun
    timing      Tick                             circuits      ReportHeldBack, HoldBack, LetThrough
    stopping    Cancel                           pausing       Pause, Resume
    signalling  Signal                           deciding      DecideApproval
    reopening   Retry                            dead_letters  Requeue, MarkFixed, Discard, Quarantine
    storing     StartLoop, FinishLoop            children      news of the executions that nodes start

A handler checks the command and returns a refusal before it emits anything, or emits events and returns None.
"""

from collections.abc import Callable, Mapping
from typing import Any, get_args

from services.coordinator.core import commands
from services.coordinator.core.advance import advance
from services.coordinator.core.decision import CommandRefusal, Decision, RefusalReason
from services.coordinator.core.handlers import (
    children,
    circuits,
    dead_letters,
    deciding,
    deferring,
    leasing,
    pausing,
    reopening,
    reporting,
    signalling,
    starting,
    stopping,
    storing,
    timing,
)
from services.coordinator.core.state import Execution
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import Instant

HANDLERS: Mapping[type[commands.Command], Callable[[Turn, Any], CommandRefusal | None]] = {
    commands.Start: starting.start,
    commands.Adopt: starting.adopt,
    commands.Assign: leasing.assign,
    commands.Release: leasing.release,
    commands.LoseRunner: leasing.lose_runner,
    commands.ReportStarted: reporting.report_started,
    commands.ReportProgress: reporting.report_progress,
    commands.ReportSuccess: reporting.report_success,
    commands.ReportFailure: reporting.report_failure,
    commands.ReportStopped: reporting.report_stopped,
    commands.ReportDeferred: deferring.report_deferred,
    commands.Signal: signalling.signal,
    commands.DecideApproval: deciding.decide,
    commands.CompleteRun: deferring.complete,
    commands.FailRun: deferring.fail,
    commands.HeartbeatRun: deferring.heartbeat,
    commands.Cancel: stopping.cancel,
    commands.Pause: pausing.pause,
    commands.Resume: pausing.resume,
    commands.StartLoop: storing.start_loop,
    commands.FinishLoop: storing.finish_loop,
    commands.Retry: reopening.retry,
    commands.Requeue: dead_letters.requeue,
    commands.MarkFixed: dead_letters.mark_fixed,
    commands.Discard: dead_letters.discard,
    commands.Quarantine: dead_letters.quarantine,
    commands.Tick: timing.tick,
    commands.NoteChildStarted: children.note_child_started,
    commands.RefuseChild: children.refuse_child,
    commands.NoteChildCancelTold: children.note_child_cancel_told,
    commands.EndChild: children.end_child,
    commands.ReportHeldBack: circuits.report_held_back,
    commands.HoldBack: circuits.hold_back,
    commands.LetThrough: circuits.let_through,
}
assert HANDLERS.keys() == set(get_args(commands.Command)), "a command has no handler"


def handle(execution: Execution, command: commands.Command, now: Instant) -> Decision:
    """The events that follow from the command. They are applied to `execution` when this returns."""
    if execution.seq == 0 and not isinstance(command, commands.Start):
        return Decision([], CommandRefusal(RefusalReason.NOT_STARTED, "the execution has not started"))
    turn = Turn(execution, now)
    refusal = HANDLERS[type(command)](turn, command)
    if turn.events:
        advance(turn)
    return Decision(turn.events, refusal)
