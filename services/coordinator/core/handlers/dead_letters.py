"""A person decides about work that failed for good, or sets work apart that would go on.

Each dead letter is resolved once. The same resolution again changes nothing; another one is refused.
"""

from services.coordinator.core import results
from services.coordinator.core.answers import answered_once, ended
from services.coordinator.core.commands import Discard, MarkFixed, Quarantine, Requeue
from services.coordinator.core.decision import CommandRefusal, RefusalReason
from services.coordinator.core.events import NOTHING_FOLLOWS, RunQuarantined, WaitKind
from services.coordinator.core.graph import Outcome, judge
from services.coordinator.core.handlers.reopening import fix, reopen, resolve, with_what_was_left
from services.coordinator.core.reopening import is_held
from services.coordinator.core.state import DeadLetter, Execution, Run, WorkState
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import DeadLetterResolution, Error, ErrorClass, FailureReason

# No runner has the work, and it is still to be done.
_TO_COME = (WorkState.READY, WorkState.BACKOFF, WorkState.HELD_BACK)


@answered_once
def requeue(turn: Turn, command: Requeue) -> CommandRefusal | None:
    found = _pending(turn.execution, command.run, DeadLetterResolution.REQUEUED)
    if not isinstance(found, DeadLetter):
        return found
    node_id = found.run.work.node.id
    if found.run.work.node.undoes:
        message = "a compensation is not done again: undo its node by hand, and mark the dead letter as fixed"
        return CommandRefusal(RefusalReason.NODE_NOT_RETRIED, message)
    overrides = {node_id: command.overrides} if command.overrides else {}
    return reopen(turn, command, with_what_was_left(turn.execution, node_id), overrides, notes=command.notes)


@answered_once
def mark_fixed(turn: Turn, command: MarkFixed) -> CommandRefusal | None:
    found = _pending(turn.execution, command.run, DeadLetterResolution.FIXED)
    if not isinstance(found, DeadLetter):
        return found
    node_id = found.run.work.node.id
    if found.run.work.node.undoes:
        # A person has undone the node. Nothing else follows from that.
        resolve(turn, command, command.run, DeadLetterResolution.FIXED, command.notes)
        return None
    chosen = with_what_was_left(turn.execution, node_id)
    refusal = reopen(turn, command, chosen, {}, notes=command.notes, fixed=node_id)
    if refusal is None:
        fix(turn, command, node_id)
    return refusal


@answered_once
def discard(turn: Turn, command: Discard) -> CommandRefusal | None:
    execution = turn.execution
    found = _pending(execution, command.run, DeadLetterResolution.DISCARDED)
    if not isinstance(found, DeadLetter):
        return found
    work = found.run.work
    then = judge(execution, work, Outcome.FAILED) if is_held(execution, work.node.id) else NOTHING_FOLLOWS
    resolve(turn, command, command.run, DeadLetterResolution.DISCARDED, command.notes, then)
    return None


def _pending(execution: Execution, run: int, wanted: DeadLetterResolution) -> DeadLetter | CommandRefusal | None:
    """The dead letter of the run. None: it was resolved in the same way before."""
    letter = execution.dead_letters.get(run)
    if letter is None:
        return CommandRefusal(RefusalReason.DEAD_LETTER_NOT_FOUND, f"run {run} is no dead letter")
    if letter.resolution is DeadLetterResolution.PENDING:
        return letter
    if letter.resolution is wanted:
        return None
    message = f"the dead letter was resolved before, as {letter.resolution}"
    return CommandRefusal(RefusalReason.ALREADY_RESOLVED, message)


@answered_once
def quarantine(turn: Turn, command: Quarantine) -> CommandRefusal | None:
    execution = turn.execution
    if (refusal := ended(execution)) is not None:
        return refusal
    if not 0 < command.run <= len(execution.runs):
        return CommandRefusal(RefusalReason.RUN_NOT_FOUND, f"there is no run {command.run}")
    if command.run in execution.dead_letters:
        return None
    run = execution.runs[command.run - 1]
    is_live = command.run in execution.live
    refusal = None if is_live else _not_to_come(execution, run)
    if (refusal := refusal or _handled(run)) is not None:
        return refusal
    turn.emit(RunQuarantined(turn.now, run.work.key, run.number, command.message_id, command.caller, command.notes))
    # Nobody has to stop a run that its runner has reported.
    turn.fail_run(
        run.work, turn.report_of(run), _error(run, command), is_reported=run.is_answered, reason=FailureReason.MANUAL
    )
    return None


def _not_to_come(execution: Execution, run: Run) -> CommandRefusal | None:
    """The refusal for a run that no runner has, unless its work is still to be done: it was deferred, awaits its next
    attempt or a runner, or is held back by a circuit."""
    work = run.work
    wait = execution.waits.get(work.key)
    if work.run is run and wait is not None and wait.kind is not WaitKind.OUTSIDE:
        message = (
            f"run {run.number} waits, and no runner has a part in it; cancel the execution, or end what it waits for"
        )
        return CommandRefusal(RefusalReason.RUN_IS_WAITING, message)
    if work.run is run and (wait is not None or work.state in _TO_COME):
        return None
    return CommandRefusal(RefusalReason.RUN_ENDED, f"run {run.number} is over, and nothing follows from it any more")


def _handled(run: Run) -> CommandRefusal | None:
    """The refusal for a run whose failure would be no dead letter, because the graph goes on from it. That of a
    compensation is one."""
    node = run.work.node
    if not node.is_failure_handled or node.undoes:
        return None
    who = "the loop decides about a failed item of" if run.work.key.iteration else "a failure edge takes the failure of"
    message = f"{who} the node {node.id!r}, so there would be no dead letter; cancel the execution, or wait for the run"
    return CommandRefusal(RefusalReason.FAILURE_IS_HANDLED, message)


def _error(run: Run, command: Quarantine) -> Error:
    """With the error of the attempt before, if the run has one."""
    message = command.notes or f"set apart by {command.caller}"
    before = f"; its last attempt failed: {run.error.type}: {run.error.message}" if run.error is not None else ""
    return Error(ErrorClass.PERMANENT, "QUARANTINED", (message + before)[: results.ERROR_MESSAGE_MAX])
