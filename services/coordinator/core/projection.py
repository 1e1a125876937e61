"""The rows of an execution and of its runs, as plain tuples read off the state.

A flush writes the rows of everything that its events changed, as they are after the last event. So whoever folds the
journal and compares all rows finds no difference (S6), at any commit.

Instants are integers (µs) or None, hashes and payloads bytes or None. An empty text is an empty text.

Hazard: the order of the columns is that of the statements in `store/`. Both name them, and a test compares.
"""

import json
from operator import attrgetter

from services.coordinator.core.state import DeadLetter, Execution, Run
from services.coordinator.core.values import FinalError, OutputRef, RunState, Value

# The row of a run that was granted and nothing more: all other columns keep their defaults.
RUN_LEASE = (
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
    "is_taken_back",
)
RUN_COLUMNS = RUN_LEASE + _RUN_CHANGES
# The columns that may change after the flush that made the row, after its key.
RUN_CHANGING = ("execution_id", "number", *_RUN_CHANGES)
# The row of a run that succeeded and nothing more.
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

# The fields of Origin that people may ask for have a column. A field without one is in the journal alone.
_ORIGIN = (
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
    "origin_execution_id",
    "create_time",
    "traceparent",
)
_origin = attrgetter(*_ORIGIN)
_EXECUTION_FIXED = ("execution_id", *_ORIGIN, "grant_time", "start_time", "deadline_time")
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
# The row of an execution that was reopened.
EXECUTION_REOPENED = (*EXECUTION_CHANGING, "deadline_time")

# A row is written whole, because it changes with each decision, which a person makes.
APPROVAL_COLUMNS = (
    "execution_id",
    "number",
    "workspace",
    "workflow",
    "node",
    "title",
    "form",
    "assignees",
    "required",
    "create_time",
    "expire_time",
    "state",
    "decisions",
)
APPROVAL_CHANGING = ("state", "decisions")

DEAD_LETTER_COLUMNS = (
    "execution_id",
    "number",
    "workspace",
    "workflow",
    "version",
    "node",
    "module",
    "iteration",
    "generation",
    "attempts",
    "reason",
    "error_class",
    "error_type",
    "error_message",
    "error_fingerprint",
    "quarantine_time",
    "resolution",
    "resolve_time",
    "reviewer",
    "notes",
    "rendered",
)

RowValues = tuple[object, ...]

_NO_ERROR: RowValues = (None, None, None, None)
_NO_OUTPUT: RowValues = (None, None, None, None)
_NO_FAILURE: RowValues = (None, None, None)


def run_row(execution: Execution, run: Run) -> RowValues:
    return (*run_lease(execution, run), *_run_changes(run))


def run_change(execution: Execution, run: Run) -> RowValues:
    return (execution.execution_id, run.number, *_run_changes(run))


def _run_changes(run: Run) -> RowValues:
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
        *((error.error_class._value_, error.type, error.message, run.fingerprint) if error is not None else _NO_ERROR),
        run.retry_time or None,
        run.inputs_hash or None,
        run.config_hash or None,
        run.cost_tokens,
        run.is_taken_back,
    )


def is_plain_lease(run: Run) -> bool:
    """The run was granted and nothing more: all columns outside RUN_LEASE have their defaults."""
    return run.state is RunState.LEASED and not run.heartbeat_time and run.error is None


def run_lease(execution: Execution, run: Run) -> RowValues:
    work = run.work
    return (
        execution.execution_id,
        run.number,
        work.node.id,
        work.node.module,
        work.key.iteration,
        work.key.generation,
        run.attempt,
        run.instance_id,
        run.runner,
        run.epoch,
        run.traceparent,
        run.create_time,
    )


def is_plain_result(run: Run) -> bool:
    """All columns outside RUN_RESULT still have the defaults that the lease was written with."""
    return (
        run.error is None
        and not run.retry_time
        and not run.heartbeat_time
        and not run.progress
        and not run.is_taken_back
        and not isinstance(run.output, OutputRef)
    )


def run_result(execution: Execution, run: Run) -> RowValues:
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


def dead_letter_row(execution: Execution, letter: DeadLetter) -> RowValues:
    run, origin = letter.run, execution.origin
    error, work = run.error, run.work
    return (
        execution.execution_id,
        run.number,
        origin.workspace,
        origin.workflow,
        origin.version,
        work.node.id,
        work.node.module,
        work.key.iteration,
        work.key.generation,
        work.attempts,
        letter.reason._value_,
        *((error.error_class._value_, error.type, error.message, run.fingerprint) if error is not None else _NO_ERROR),
        letter.quarantine_time,
        letter.resolution._value_,
        letter.resolve_time or None,
        letter.reviewer,
        letter.notes,
        letter.rendered or None,
    )


def execution_row(execution: Execution) -> RowValues:
    return (
        execution.execution_id,
        *_origin(execution.origin),
        execution.grant_time,
        execution.start_time,
        execution.deadline or None,
        *_execution_changes(execution),
    )


def execution_change(execution: Execution) -> RowValues:
    return (execution.execution_id, *_execution_changes(execution))


def execution_reopened(execution: Execution) -> RowValues:
    return (*execution_change(execution), execution.deadline or None)


def _execution_changes(execution: Execution) -> RowValues:
    return (
        execution.epoch,
        execution.holder,
        execution.seq,
        execution.state._value_,
        execution.end_time or None,
        *(_NO_OUTPUT if execution.output is None else _output(execution.output)),
        *(_NO_FAILURE if execution.error is None else _failure(execution.error)),
        len(execution.runs),
        execution.retries,
        execution.cost_tokens,
    )


def approval_row(execution: Execution, number: int) -> RowValues:
    approval, origin = execution.approvals[number], execution.origin
    decisions = [
        {
            "caller": each.caller,
            "decision": each.decision.value,
            "form": json.loads(each.form),
            "comment": each.comment,
            "time": each.time,
        }
        for each in approval.decisions
    ]
    return (
        execution.execution_id,
        number,
        origin.workspace,
        origin.workflow,
        approval.node,
        approval.title,
        approval.form,
        json.dumps(approval.assignees),
        approval.required,
        approval.create_time,
        approval.expire_time or None,
        approval.state.value,
        json.dumps(decisions),
    )


def _output(value: Value | None) -> RowValues:
    if value is None:
        return _NO_OUTPUT
    if isinstance(value, OutputRef):
        return (None, value.key, value.sha256, value.size_bytes)
    return (value, None, None, None)


def _failure(error: FinalError) -> RowValues:
    return (error.node, error.type, error.message)
