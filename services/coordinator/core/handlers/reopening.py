"""A person has work done again, whether the execution goes on or has ended."""

from collections.abc import Collection, Mapping

from services.coordinator.core.answers import answered_once
from services.coordinator.core.commands import Reopening, Retry
from services.coordinator.core.decision import CommandRefusal, RefusalReason
from services.coordinator.core.events import ExecutionReopened
from services.coordinator.core.reopening import (
    closure,
    consequences,
    first_failure_left,
    reopened_work,
    unfinished_nodes,
)
from services.coordinator.core.state import SETTLED, Execution, WorkState
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import ExecutionState, Instant


@answered_once
def retry(turn: Turn, command: Retry) -> CommandRefusal | None:
    execution = turn.execution
    chosen = _chosen(execution, command.from_node)
    if isinstance(chosen, CommandRefusal):
        return chosen
    return reopen(turn, command, chosen, command.overrides)


def reopen(
    turn: Turn, command: Reopening, chosen: Collection[str], overrides: Mapping[str, bytes]
) -> CommandRefusal | None:
    """Has these nodes done again, and what depends on them."""
    execution = turn.execution
    if execution.is_ending and not execution.is_final:
        return CommandRefusal(RefusalReason.EXECUTION_FINAL, "the execution is ending")
    node_ids = closure(execution, chosen)
    if (refusal := _unfit(execution, node_ids, overrides)) is not None:
        return refusal
    works = reopened_work(execution, node_ids, overrides)
    is_final = execution.is_final
    turn.emit(
        ExecutionReopened(
            turn.now,
            command.message_id,
            command.caller,
            command.epoch if is_final else execution.epoch,
            command.holder if is_final else execution.holder,
            works,
            first_failure_left(execution, node_ids),
            _deadline(turn),
            consequences(execution, works),
        )
    )
    return None


def _chosen(execution: Execution, from_node: str) -> Collection[str] | CommandRefusal:
    # What was undone was not done, and nor was what an early end has left.
    has_left_some = execution.is_final and execution.is_ending
    unfinished = unfinished_nodes(execution)
    if not from_node:
        failed = [node_id for node_id in unfinished if execution.is_final or _has_failed(execution, node_id)]
        if failed and execution.state is not ExecutionState.SUCCESS:
            return failed
        return CommandRefusal(RefusalReason.EXECUTION_NOT_FAILED, "no node has failed, so there is nothing to retry")
    if from_node not in execution.definition.nodes or execution.definition.nodes[from_node].undoes:
        return CommandRefusal(RefusalReason.NODE_NOT_FOUND, f"the workflow has no node {from_node!r}")
    work = execution.current.get(from_node)
    if work is None or work.run is None or work.state in (WorkState.SKIPPED, WorkState.BLOCKED):
        return CommandRefusal(RefusalReason.NODE_NOT_ENDED, f"the node {from_node!r} has not been reached")
    # It is done too: otherwise the execution could not end any more.
    left = [node_id for node_id in unfinished if not _has_failed(execution, node_id)] if has_left_some else []
    return dict.fromkeys((from_node, *left))


def _has_failed(execution: Execution, node_id: str) -> bool:
    work = execution.current.get(node_id)
    return work is not None and work.state is WorkState.FAILED


def _unfit(execution: Execution, node_ids: Collection[str], overrides: Mapping[str, bytes]) -> CommandRefusal | None:
    for node_id in node_ids:
        work = execution.current.get(node_id)
        is_at_rest = work is None or work.state in SETTLED or work.state in (WorkState.IDLE, WorkState.CANCELLED)
        if not is_at_rest:
            return CommandRefusal(RefusalReason.NODE_NOT_ENDED, f"the node {node_id!r} is still under way")
    for node_id in overrides:
        if node_id not in execution.definition.nodes:
            return CommandRefusal(RefusalReason.NODE_NOT_FOUND, f"the workflow has no node {node_id!r}")
        if node_id not in node_ids:
            message = f"the node {node_id!r} is not done again, so its inputs cannot be changed"
            return CommandRefusal(RefusalReason.NODE_NOT_RETRIED, message)
    return None


def _deadline(turn: Turn) -> Instant:
    """An execution that had ended gets the whole span again."""
    execution = turn.execution
    if not execution.is_final or not execution.deadline:
        return execution.deadline
    return turn.now + execution.deadline - execution.deadline_from
