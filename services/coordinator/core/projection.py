"""The rows of an execution and of its runs, as plain tuples read off the state.

A flush writes the rows of everything that its events changed, as they are after the last of them; so folding the
journal and comparing all rows must find no difference (S6), at any commit.

Instants are integers (µs) or None, hashes and payloads bytes or None. An empty text is an empty text.

Hazards: the order of the columns is that of the statements in `store/`; both name them, and a test compares.
"""

from collections.abc import Sequence
from typing import assert_never

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
from services.coordinator.core.state import Execution, Run
from services.coordinator.core.values import Failure, OutputRef, RunState, Value

_RUN_FIXED = (
    "run_id",
    "execution_id",
    "number",
    "node",
    "module",
    "iteration",
    "generation",
    "attempt",
    "instance_id",
    "runner",
    "epoch",
    "traceparent",
    "create_time",
)
_RUN_CHANGES = (
    "state",
    "start_time",
    "end_time",
    "heartbeat_time",
    "progress",
    "progress_message",
    "output",
    "output_key",
    "output_sha256",
    "output_bytes",
    "branch",
    "error_class",
    "error_type",
    "error_message",
    "error_fingerprint",
    "retry_time",
    "inputs_hash",
    "config_hash",
    "cost_tokens",
)
RUN_COLUMNS = _RUN_FIXED + _RUN_CHANGES
# Of a row that an earlier flush made.
RUN_CHANGING = ("run_id", *_RUN_CHANGES)
# The two rows that almost every step writes, without what has its default in them.
RUN_LEASE = _RUN_FIXED[1:]
RUN_RESULT = (
    "execution_id",
    "number",
    "state",
    "start_time",
    "end_time",
    "output",
    "branch",
    "inputs_hash",
    "config_hash",
    "cost_tokens",
)

_EXECUTION_FIXED = (
    "execution_id",
    "workspace",
    "workflow",
    "version",
    "version_id",
    "input",
    "labels",
    "priority",
    "trigger_type",
    "caller",
    "request_id",
    "parent_execution_id",
    "create_time",
    "grant_time",
    "start_time",
    "deadline_time",
    "traceparent",
)
_EXECUTION_CHANGES = (
    "epoch",
    "holder",
    "last_seq",
    "state",
    "end_time",
    "output",
    "output_key",
    "output_sha256",
    "output_bytes",
    "error_node",
    "error_type",
    "error_message",
    "runs",
    "retries",
    "cost_tokens",
)
EXECUTION_COLUMNS = _EXECUTION_FIXED + _EXECUTION_CHANGES
EXECUTION_CHANGING = ("execution_id", *_EXECUTION_CHANGES)

Row = tuple[object, ...]

_NO_ERROR: Row = (None, None, None, None)
_NO_OUTPUT: Row = (None, None, None, None)


def run_row(execution: Execution, run: Run) -> Row:
    return (f"{execution.execution_id}.{run.number}", *run_lease(execution, run), *_run_changes(run))


def run_change(execution: Execution, run: Run) -> Row:
    return (f"{execution.execution_id}.{run.number}", *_run_changes(run))


def _run_changes(run: Run) -> Row:
    error = run.error
    return (
        run.state._value_,
        run.start_time or None,
        run.end_time or None,
        run.heartbeat_time or None,
        run.progress,
        run.progress_message,
        *_output(run.output),
        run.branch,
        *(
            (error.error_class._value_, error.type, error.message, run.fingerprint)
            if error is not None
            else _NO_ERROR
        ),
        run.retry_time or None,
        run.inputs_hash or None,
        run.config_hash or None,
        run.cost_tokens,
    )


def is_plain_lease(run: Run) -> bool:
    """Granted and nothing more: every column but those of RUN_LEASE has its default."""
    return run.state is RunState.LEASED and not run.heartbeat_time and run.error is None


def run_lease(execution: Execution, run: Run) -> Row:
    work = run.work
    return (
        execution.execution_id,
        run.number,
        work.node.id,
        work.node.module,
        work.iteration,
        work.generation,
        run.attempt,
        run.instance_id,
        run.runner,
        run.epoch,
        run.traceparent,
        run.create_time,
    )


def is_plain_result(run: Run) -> bool:
    """What is not in RUN_RESULT has the default that its lease was written with."""
    return (
        run.error is None
        and not run.retry_time
        and not run.heartbeat_time
        and not run.progress
        and not isinstance(run.output, OutputRef)
    )


def run_result(execution: Execution, run: Run) -> Row:
    return (
        execution.execution_id,
        run.number,
        run.state._value_,
        run.start_time or None,
        run.end_time or None,
        run.output,
        run.branch,
        run.inputs_hash or None,
        run.config_hash or None,
        run.cost_tokens,
    )


def execution_row(execution: Execution) -> Row:
    return (
        execution.execution_id,
        execution.workspace,
        execution.workflow,
        execution.version,
        execution.version_id,
        execution.input,
        execution.labels,
        execution.priority,
        execution.trigger_type,
        execution.caller,
        execution.request_id,
        execution.parent_execution_id,
        execution.create_time,
        execution.grant_time,
        execution.start_time,
        execution.deadline or None,
        execution.traceparent,
        *_execution_changes(execution),
    )


def execution_change(execution: Execution) -> Row:
    return (execution.execution_id, *_execution_changes(execution))


def _execution_changes(execution: Execution) -> Row:
    return (
        execution.epoch,
        execution.holder,
        execution.seq,
        execution.state._value_,
        execution.end_time or None,
        *_output(execution.output),
        *_failure(execution.error),
        len(execution.runs),
        execution.retries,
        execution.cost_tokens,
    )


def _output(value: Value | None) -> Row:
    if value is None:
        return _NO_OUTPUT
    if isinstance(value, OutputRef):
        return (None, value.key, value.sha256, value.size_bytes)
    return (value, None, None, None)


def _failure(error: Failure | None) -> Row:
    return (None, None, None) if error is None else (error.node, error.type, error.message)


def changed_runs(execution: Execution, event: Event) -> Sequence[Run]:
    """Whose rows the event changed; to be asked after it was folded."""
    match event:
        case (
            RunSucceeded()
            | RunLeased()
            | RunStarted()
            | RunProgressed()
            | ControlRendered()
            | RunFailed()
            | RunLost()
            | RunReleased()
            | RunCancelled()
            | JoinPassed()
            | SleepStarted()
            | SleepEnded()
        ):
            return (execution.runs[event.number - 1],)
        case NodesSkipped():
            first = event.first_number - 1
            return execution.runs[first : first + len(event.nodes)]
        case (
            ExecutionStarted()
            | ExecutionAdopted()
            | ExecutionFinished()
            | LateReportRejected()
            | BackoffEnded()
            | NodesBlocked()
            | OutputRequested()
            | StopOrdered()
        ):
            return ()
        case _:
            assert_never(event)
