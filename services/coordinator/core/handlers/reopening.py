"""A person has work done again, whether the execution goes on or has ended."""

from collections.abc import Collection, Mapping

from services.coordinator.core.answers import answered_once
from services.coordinator.core.commands import AfterEndCommand, MarkFixed, Retry
from services.coordinator.core.decision import CommandRefusal, RefusalReason
from services.coordinator.core.events import NOTHING_FOLLOWS, Consequences, DeadLetterResolved, ExecutionReopened
from services.coordinator.core.reopening import (
    closure,
    consequences,
    first_failure_left,
    is_held,
    reopened_work,
    unfinished_nodes,
)
from services.coordinator.core.state import SETTLED, Execution, WorkState
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import DeadLetterResolution, ExecutionState, Instant


@answered_once
def retry(turn: Turn, command: Retry) -> CommandRefusal | None:
    execution = turn.execution
    chosen = _chosen(execution, command.from_node)
    if isinstance(chosen, CommandRefusal):
        return chosen
    return reopen(turn, command, chosen, command.overrides)


def reopen(
    turn: Turn,
    command: AfterEndCommand,
    chosen: Collection[str],
    overrides: Mapping[str, bytes],
    *,
    notes: str = "",
    fixed: str = "",
) -> CommandRefusal | None:
    """Has these nodes done again, and what depends on them. Their dead letters are resolved with it. The node `fixed`
    is left to the caller, and so is its dead letter."""
    execution = turn.execution
    if execution.is_ending and not execution.is_final:
        return CommandRefusal(RefusalReason.EXECUTION_FINAL, "the execution is ending")
    node_ids = closure(execution, chosen)
    if (refusal := _unfit(execution, node_ids, overrides)) is not None:
        return refusal
    _reopen(turn, command, node_ids, overrides, fixed)
    for number, letter in execution.dead_letters.items():
        node_id = letter.run.work.node.id
        if letter.resolution is DeadLetterResolution.PENDING and node_id in node_ids and node_id != fixed:
            resolve(turn, command, number, DeadLetterResolution.REQUEUED, notes)
    return None


def fix_held(turn: Turn, command: MarkFixed) -> None:
    """The work of this dead letter is held for a person, and has an output now. Nothing has followed from its failure
    yet, so nothing else is done again."""
    node_id = turn.execution.dead_letters[command.run].run.work.node.id
    _reopen(turn, command, [node_id], {}, fixed=node_id)
    fix(turn, command, node_id)


def fix(turn: Turn, command: MarkFixed, node_id: str) -> None:
    resolve(turn, command, command.run, DeadLetterResolution.FIXED, command.notes)
    turn.succeed(turn.execution.current[node_id], command.output)


def _reopen(
    turn: Turn, command: AfterEndCommand, node_ids: Collection[str], overrides: Mapping[str, bytes], fixed: str
) -> None:
    execution = turn.execution
    works = reopened_work(execution, node_ids, overrides)
    turn.emit(
        ExecutionReopened(
            turn.now,
            command.message_id,
            command.caller,
            *lease_of(execution, command),
            works,
            first_failure_left(execution, node_ids),
            _deadline(turn),
            consequences(execution, works, fixed),
        )
    )


def lease_of(execution: Execution, command: AfterEndCommand) -> tuple[int, str]:
    """Epoch and holder under which the command is carried out."""
    return (command.epoch, command.holder) if execution.is_final else (execution.epoch, execution.holder)


def resolve(
    turn: Turn,
    command: AfterEndCommand,
    run: int,
    resolution: DeadLetterResolution,
    notes: str,
    then: Consequences = NOTHING_FOLLOWS,
) -> None:
    message_id, caller, lease = command.message_id, command.caller, lease_of(turn.execution, command)
    turn.emit(DeadLetterResolved(turn.now, message_id, caller, *lease, run, resolution, notes, then))


def with_what_was_left(execution: Execution, node_id: str) -> Collection[str]:
    """The node, and what an early end has left undone: otherwise the execution could not end any more."""
    has_ended_early = execution.is_final and execution.is_ending
    unfinished = unfinished_nodes(execution) if has_ended_early else []
    return dict.fromkeys((node_id, *(each for each in unfinished if not _has_failed(execution, each))))


def _chosen(execution: Execution, from_node: str) -> Collection[str] | CommandRefusal:
    if not from_node:
        unfinished = unfinished_nodes(execution)
        failed = [node_id for node_id in unfinished if execution.is_final or _has_failed(execution, node_id)]
        if failed and execution.state is not ExecutionState.SUCCESS:
            return failed
        return CommandRefusal(RefusalReason.EXECUTION_NOT_FAILED, "no node has failed, so there is nothing to retry")
    if from_node not in execution.definition.nodes or execution.definition.nodes[from_node].undoes:
        return CommandRefusal(RefusalReason.NODE_NOT_FOUND, f"the workflow has no node {from_node!r}")
    work = execution.current.get(from_node)
    if work is None or work.run is None or work.state in (WorkState.SKIPPED, WorkState.BLOCKED):
        return CommandRefusal(RefusalReason.NODE_NOT_ENDED, f"the node {from_node!r} has not been reached")
    return with_what_was_left(execution, from_node)


def _has_failed(execution: Execution, node_id: str) -> bool:
    work = execution.current.get(node_id)
    return is_held(execution, node_id) or (work is not None and work.state is WorkState.FAILED)


def _unfit(execution: Execution, node_ids: Collection[str], overrides: Mapping[str, bytes]) -> CommandRefusal | None:
    for node_id in node_ids:
        work = execution.current.get(node_id)
        is_at_rest = work is None or work.state in SETTLED or work.state in (WorkState.IDLE, WorkState.CANCELLED)
        if not is_at_rest and not is_held(execution, node_id):
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
