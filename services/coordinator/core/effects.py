"""What is to be done about an event, as data: a function of the event and the state after it.

The shell does these only after the commit, and can derive them again when it takes an execution over from a journal
alone (`resume_effects`): whatever a dead holder still owed is found there.

In which order: grants and stops may go out in any order; `Finished` comes last, and with it the execution is dropped
from memory. `parking` is asked once a decision is folded: an execution that only waits gives back its slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from services.coordinator.core.definition import Node
from services.coordinator.core.events import (
    BackoffEnded,
    ControlRendered,
    Event,
    ExecutionAdopted,
    ExecutionFinished,
    ExecutionStarted,
    JoinPassed,
    LateReportRejected,
    NodesBlocked,
    NodesSkipped,
    OutputRequested,
    RunCancelled,
    RunFailed,
    RunLeased,
    RunLost,
    RunProgressed,
    RunReleased,
    RunStarted,
    RunSucceeded,
    SleepEnded,
    SleepStarted,
    StopOrdered,
)
from services.coordinator.core.inputs import seen_outputs
from services.coordinator.core.state import Execution, Run, Summary, summary
from services.coordinator.core.values import (
    SECOND,
    ExecutionState,
    Failure,
    Instant,
    Span,
    Value,
)

# A wait shorter than this is not worth giving the slot back.
PARKING_WAIT_MIN: Span = 10 * SECOND
# Why a run is stopped that its node's timeout has ended: other than an execution out of time, which is a TIMEOUT.
NODE_TIMEOUT = "NODE_TIMEOUT"


@dataclass(slots=True)
class GrantRun:
    """All that a runner needs. `input`, `initial_state` and `outputs` are empty where no template asks for them."""

    run: Run
    node: Node
    module: str
    config: bytes
    inputs: bytes
    input: bytes
    initial_state: bytes
    outputs: list[tuple[str, Value]]
    timeout: Span
    may_have_run_before: bool
    # Only the rendered config is wanted. `inputs` repeat it, so that the module, done as any other, gives the same.
    is_render_only: bool
    cursor: bytes


@dataclass(slots=True)
class StopRun:
    """Tell the runner to stop; its answer may come late or never. `reason` is what the execution ends as, and its end
    waits for the answer; or NODE_TIMEOUT, and nobody waits."""

    number: int
    epoch: int
    instance_id: str
    reason: str


@dataclass(slots=True)
class Finished:
    state: ExecutionState
    output: Value | None
    error: Failure | None
    summary: Summary


@dataclass(slots=True)
class Park:
    # 0: no time wakes it.
    wake_time: Instant


Effect: TypeAlias = GrantRun | StopRun | Finished


def effects(execution: Execution, event: Event) -> Sequence[Effect]:
    """To be asked right after `evolve(execution, event)`."""
    match event:
        case RunSucceeded():
            return ()
        case RunLeased():
            return (_grant(execution, execution.runs[event.number - 1]),) if event.instance_id else ()
        case ExecutionFinished():
            return (_finished(execution),)
        case StopOrdered():
            return _stops(execution, event.outcome)
        case RunFailed():
            if event.is_reported:
                return ()
            run = execution.runs[event.number - 1]
            if not run.instance_id:
                return ()
            return (StopRun(run.number, run.epoch, run.instance_id, NODE_TIMEOUT),)
        case (
            ExecutionStarted()
            | ExecutionAdopted()
            | RunStarted()
            | RunProgressed()
            | ControlRendered()
            | RunLost()
            | RunReleased()
            | RunCancelled()
            | LateReportRejected()
            | BackoffEnded()
            | JoinPassed()
            | SleepStarted()
            | SleepEnded()
            | NodesSkipped()
            | NodesBlocked()
            | OutputRequested()
        ):
            return ()
        case _:
            assert_never(event)


def resume_effects(execution: Execution) -> Sequence[Effect]:
    """What the last holder may have left undone. Grants are not among them: live runs are adopted, and a runner that
    never got its grant says so when it is asked."""
    if execution.is_final:
        return (_finished(execution),)
    if execution.stop is not None:
        return _stops(execution, execution.stop.outcome)
    return ()


def parking(execution: Execution, now: Instant) -> Park | None:
    if execution.live or execution.ready or execution.is_final or execution.stop is not None:
        return None
    wake_time = execution.next_wake()
    return Park(wake_time) if wake_time > now + PARKING_WAIT_MIN else None


def _grant(execution: Execution, run: Run) -> GrantRun:
    work = run.work
    node = work.node
    is_render_only = node.control is not None
    return GrantRun(
        run,
        node,
        node.runner_module,
        node.config,
        node.config if is_render_only else node.inputs,
        execution.input if node.has_templates else b"",
        execution.definition.initial_state if node.has_templates else b"",
        seen_outputs(execution, node) if node.references else [],
        node.timeout,
        work.may_have_run_before,
        is_render_only,
        work.cursor,
    )


def _finished(execution: Execution) -> Finished:
    assert execution.final_state is not None
    return Finished(execution.final_state, execution.output, execution.error, summary(execution))


def _stops(execution: Execution, outcome: ExecutionState) -> list[Effect]:
    return [
        StopRun(run.number, run.epoch, run.instance_id, outcome.value)
        for run in execution.live.values()
        if run.instance_id
    ]
