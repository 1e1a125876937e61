"""After a command, emits all further events that need no new command.

The edges of skipped or blocked work are resolved, control nodes begin, and the execution ends when no work is left.
"""

from services.coordinator.core.compensating import begin_compensation
from services.coordinator.core.controls import begin
from services.coordinator.core.events import ExecutionFinished, OutputRequested, WorkBlocked, WorkSkipped
from services.coordinator.core.graph import Outcome, judge
from services.coordinator.core.outputs import leaf_outputs
from services.coordinator.core.state import Work, WorkState, unsettled
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import BrokenInvariant, ExecutionState, FinalError, Value


def advance(turn: Turn) -> None:
    execution = turn.execution
    pass_over_all(turn)
    while execution.to_begin and execution.paused_by is None:
        begin(turn, execution.to_begin[0])
        pass_over_all(turn)
    if not execution.is_going and not execution.is_final:
        _finish(turn)


def pass_over_all(turn: Turn) -> None:
    """Resolves the edges of work that is skipped or blocked."""
    passed_over = turn.execution.passed_over
    while passed_over:
        _pass_over(turn, passed_over[0])


def _pass_over(turn: Turn, work: Work) -> None:
    execution = turn.execution
    if work.state is WorkState.SKIPPED:
        then = judge(execution, work, Outcome.SKIPPED)
        turn.emit(WorkSkipped(turn.now, work.key, len(execution.runs) + 1, then))
    else:
        turn.emit(WorkBlocked(turn.now, work.key, judge(execution, work, Outcome.BLOCKED)))


def _finish(turn: Turn) -> None:
    execution = turn.execution
    definition = execution.definition
    if execution.compensation is not None:
        _finish_as(turn, execution.compensation.outcome, error=execution.compensation.error)
        return
    if execution.stop is not None:
        _end_badly(turn, execution.stop.outcome, execution.stop.error)
        return
    if stuck := unsettled(execution):
        nodes = f"{len(stuck)} nodes ({stuck[0]} is the first)"
        raise BrokenInvariant(f"the execution is stuck: {nodes} have no outcome, but nothing is under way")
    if execution.first_failure is not None:
        _end_badly(turn, ExecutionState.FAILED, execution.first_failure)
    elif definition.output_node is None:
        _finish_as(turn, ExecutionState.SUCCESS, output=leaf_outputs(execution))
    elif (rendering := execution.target_of(definition.output_node.id)).state is WorkState.SUCCEEDED:
        _finish_as(turn, ExecutionState.SUCCESS, output=rendering.output)
    else:
        turn.emit(OutputRequested(turn.now, rendering.key))


def _end_badly(turn: Turn, outcome: ExecutionState, error: FinalError) -> None:
    if turn.execution.compensable:
        begin_compensation(turn, outcome, error)
    else:
        _finish_as(turn, outcome, error=error)


def _finish_as(
    turn: Turn, state: ExecutionState, *, output: Value | None = None, error: FinalError | None = None
) -> None:
    duration = max(turn.now - turn.execution.start_time, 0)
    turn.emit(ExecutionFinished(turn.now, state, output, error, duration))
