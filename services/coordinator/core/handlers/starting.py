"""The first event of an execution, and its change of hands."""

from services.coordinator.core.commands import Adopt, Start
from services.coordinator.core.decision import CommandRefusal, RefusalReason
from services.coordinator.core.events import NOTHING_FOLLOWS, ExecutionAdopted, ExecutionStarted
from services.coordinator.core.forking import take_over
from services.coordinator.core.graph import roots
from services.coordinator.core.handlers.leasing import lose
from services.coordinator.core.handlers.pausing import order_pause
from services.coordinator.core.handlers.stopping import order_cancel, order_timeout
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import RunState


def start(turn: Turn, command: Start) -> CommandRefusal | None:
    execution, origin = turn.execution, command.origin
    if execution.seq:
        return CommandRefusal(RefusalReason.ALREADY_STARTED, "the execution has started")
    timeout = execution.definition.timeout
    deadline = command.deadline or (origin.create_time + timeout if timeout else 0)
    is_late = 0 < deadline <= turn.now
    begins = command.cancel is None and not is_late
    turn.emit(
        ExecutionStarted(
            time=turn.now,
            epoch=command.epoch,
            holder=command.holder,
            origin=origin,
            grant_time=command.grant_time or turn.now,
            deadline_time=deadline,
            retry=command.retry,
            then=roots(execution) if begins else NOTHING_FOLLOWS,
        )
    )
    if begins and command.finished:
        take_over(turn, command.finished)
    if command.cancel is not None:
        order_cancel(turn, command.cancel)
    elif is_late:
        order_timeout(turn)
    elif command.pause is not None:
        order_pause(turn, command.pause)
    return None


def adopt(turn: Turn, command: Adopt) -> CommandRefusal | None:
    """Live runs stay with their runners. Only the runs of dead runners are lost."""
    execution = turn.execution
    if command.epoch <= execution.epoch:
        message = f"epoch {command.epoch} does not follow epoch {execution.epoch}"
        return CommandRefusal(RefusalReason.EPOCH_STALE, message)
    if execution.is_final:
        return CommandRefusal(RefusalReason.EXECUTION_FINAL, "the execution is final")
    turn.emit(ExecutionAdopted(turn.now, command.epoch, command.holder, command.wake_time, command.grant_time))
    runs = list(execution.live.values())
    begun = {run.instance_id for run in runs if run.state is RunState.RUNNING}
    for run in runs:
        if run.instance_id not in command.live:
            lose(turn, run, has_begun_runs=run.instance_id in begun)
    return None
