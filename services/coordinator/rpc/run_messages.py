"""The messages about runs: grants to runners, and their reports and progress, which become commands of the core."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from services.chassis.grpc.timestamps import micros_of, put_micros
from services.chassis.lease.frames import NAME_MAX, Grant, Report
from services.coordinator.app.owned_execution import ReceivedProgress, ReceivedReport
from services.coordinator.core.commands import (
    Command,
    Release,
    ReportDeferred,
    ReportFailure,
    ReportHeldBack,
    ReportProgress,
    ReportStarted,
    ReportStopped,
    ReportSuccess,
)
from services.coordinator.core.effects import GrantRun
from services.coordinator.core.inputs import seen_work
from services.coordinator.core.results import (
    ERROR_MESSAGE_MAX,
    ERROR_TYPE_MAX,
    clamp_target,
    fault_of,
    is_cursor,
    release_reason,
)
from services.coordinator.core.run_ids import run_id, split_run_id
from services.coordinator.core.state import Execution, Work
from services.coordinator.core.values import Error, ErrorClass, Instant, OutputRef, Span, Value
from services.coordinator.core.workflow_state import seen_state
from windlass.coordinator.v1 import sessions_pb2 as pb

_CLASSES: Final[Mapping[int, ErrorClass]] = {
    pb.ERROR_CLASS_TRANSIENT: ErrorClass.TRANSIENT,
    pb.ERROR_CLASS_PERMANENT: ErrorClass.PERMANENT,
    pb.ERROR_CLASS_TIMEOUT: ErrorClass.TIMEOUT,
    pb.ERROR_CLASS_CIRCUIT_OPEN: ErrorClass.CIRCUIT_OPEN,
}


# What a grant refers to because it is too large to go along: the execution's input, and the output of one of its runs.
# The key of the input is the id of no node.
INPUT_KEY: Final = "$input"
_RUN_KEY: Final = "runs/"
# The reason of a runner that hands a run back instead of calling a target whose circuit is open.
CIRCUIT_OPEN: Final = "CIRCUIT_OPEN"
# A grant has at most 4 MiB: everything but the data that templates see takes part of it, and so do the references.
_DATA_BYTES_MAX: Final = 1024 * 1024
_GRANT_BYTES_MAX: Final = 3 * 1024 * 1024


def run_of_key(key: str) -> int:
    """The number of the run whose output the key names; 0: it names something else."""
    number = key.removeprefix(_RUN_KEY)
    return int(number) if number != key and number.isascii() and number.isdigit() and len(number) < 10 else 0


def run_grant(
    execution: Execution,
    effect: GrantRun,
    key: str,
    completion_token: str,
    places_max: int,
    now: Instant,
    open_targets: Sequence[str] = (),
) -> Grant:
    run, work, node = effect.run, effect.run.work, effect.run.work.node
    message = pb.RunGrant()
    message.execution_id = execution.execution_id
    message.workspace, message.workflow = execution.origin.workspace, execution.origin.workflow
    message.node, message.module = node.id, node.runner_module
    message.generation, message.attempt = work.key.generation, run.attempt
    _put_documents(message, work)
    message.effect_key, message.idempotent, message.places_max = key, run.is_idempotent, places_max
    # Every step makes a grant, and most have none of these.
    if work.key.iteration:
        message.iteration = work.key.iteration
    if work.cursor:
        message.cursor = work.cursor
    if node.is_control:
        message.render_only = not node.has_control_inputs
    if run.is_rendering:
        message.render_all = True
    if run.traceparent:
        message.traceparent = run.traceparent
    if completion_token:
        message.completion_token = completion_token
    if work.may_have_run_before:
        message.may_have_run_before = True
    lease_id, lease = run_id(execution, run.number), message.lease
    lease.lease_id, lease.epoch = lease_id, run.epoch
    if work.is_templated:
        # Only templates read these.
        message.has_templates = True
        message.state = seen_state(execution, node)
        if effect.item is not None:
            message.item = effect.item
        if node.until and not run.is_rendering:
            message.until = node.until
        if effect.without_output or node.reads_execution or node.undoes:
            _put_facts(message, execution, effect)
        _put_data(message, execution, work, effect.outputs)
    if node.timeout and not run.is_rendering:
        put_micros(message.timeout, node.timeout)
    if execution.deadline and not node.undoes:
        # The time that is left, because the runner's clock may differ. 0 left is not the same as no deadline.
        message.execution_left.SetInParent()
        put_micros(message.execution_left, max(0, execution.deadline - now))
    if open_targets:
        message.open_targets.extend(open_targets)
    return Grant(lease_id, run.epoch, message)


def _put_documents(message: pb.RunGrant, work: Work) -> None:
    """Config and inputs, as a runner has rendered them or as they are in the definition."""
    rendered = work.rendered
    if isinstance(rendered, OutputRef):
        fill_ref(message.rendered, rendered)
    elif rendered is not None:
        documents = orjson.loads(rendered)
        message.config, message.inputs = orjson.dumps(documents["config"]), orjson.dumps(documents["inputs"])
    else:
        # The config of a control node with inputs is a part of these.
        message.config = b"{}" if work.node.has_control_inputs else work.node.config
        message.inputs = work.node.runner_inputs
        if work.overrides and not work.node.is_control:
            _put_overrides(message, work)


def _put_overrides(message: pb.RunGrant, work: Work) -> None:
    """Puts what a person has laid over the inputs. Where there are templates, the runner does it after rendering."""
    if work.is_templated:
        message.input_overrides = work.overrides
    else:
        message.inputs = orjson.dumps(orjson.loads(work.node.inputs) | orjson.loads(work.overrides))


def _put_facts(message: pb.RunGrant, execution: Execution, effect: GrantRun) -> None:
    for other in effect.without_output:
        shown = message.without_output[other.id]
        shown.state = other.state
        if other.error is not None:
            shown.error_type, shown.error_message = other.error.type, other.error.message
    node = effect.run.work.node
    if node.undoes and execution.compensation is not None:
        error = execution.compensation.error
        shown_error = message.execution_error
        shown_error.node, shown_error.type, shown_error.message = error.node, error.type, error.message
    if node.reads_execution:
        message.workflow_version = execution.origin.version
        put_micros(message.execution_create_time, execution.origin.create_time)


def _put_data(message: pb.RunGrant, execution: Execution, reader: Work, outputs: Sequence[tuple[str, Value]]) -> None:
    """The input and the outputs that this work sees. The largest are left to be fetched if all of them would make the
    grant too large."""
    input_ = execution.origin.input
    sizes = {name: len(value) for name, value in outputs if isinstance(value, bytes)} | {INPUT_KEY: len(input_)}
    left_out = _left_out(message, sizes)
    if INPUT_KEY in left_out:
        fill_ref(message.execution_input_ref, OutputRef(INPUT_KEY, "", len(input_)))
    else:
        message.execution_input = input_
    for name, value in outputs:
        source = seen_work(execution, reader, name) if name in left_out else None
        if source is not None and source.run is not None:
            fill_ref(message.outputs[name].ref, OutputRef(f"{_RUN_KEY}{source.run.number}", "", sizes[name]))
        else:
            fill_output(message.outputs[name], value)


def _left_out(message: pb.RunGrant, sizes: Mapping[str, int]) -> set[str]:
    left_out: set[str] = set()
    if (total := sum(sizes.values())) > _DATA_BYTES_MAX:
        room = max(0, _GRANT_BYTES_MAX - message.ByteSize())
        for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if total <= room:
                break
            left_out.add(name)
            total -= sizes[name]
    return left_out


def received_report(report: Report, instance_id: str) -> ReceivedReport:
    """`instance_id` is that of the session which brought the report. A report that names an instance keeps it: the
    report may be forwarded, and the holder of the execution compares the instance with that of the run."""
    body = report.body
    assert isinstance(body, pb.RunReport)
    head = body.head
    if not 0 < len(head.instance_id) <= NAME_MAX:
        head.instance_id = instance_id
    execution_id, number = split_run_id(report.lease_id)
    command = report_command(body, number)
    return ReceivedReport(
        head.report_id, head.lease_id, execution_id, number, head.epoch, head.instance_id, command, body
    )


def received_progress(progress: pb.RunProgress, instance_id: str) -> ReceivedProgress:
    execution_id, number = split_run_id(progress.run_id)
    return execution_id, progress_commands(progress, number, instance_id)


def forwarded_command(report: bytes) -> Command | None:
    """The command of a report that another coordinator put into the mailbox."""
    message = pb.RunReport.FromString(report)
    return report_command(message, split_run_id(message.head.lease_id)[1])


def report_command(report: pb.RunReport, number: int) -> Command | None:
    """None: this version does not know the outcome of the report."""
    epoch, instance_id = report.head.epoch, report.head.instance_id
    outcome = report.WhichOneof("outcome")
    if outcome == "succeeded":
        return _success(report, number)
    if outcome == "failed":
        failed = report.failed
        # An unknown class counts as transient, which loses the least.
        error_class = _CLASSES.get(getattr(failed, "class"), ErrorClass.TRANSIENT)
        error = Error(error_class, failed.type[:ERROR_TYPE_MAX], failed.message[:ERROR_MESSAGE_MAX])
        failure = _failure(report, number, error, micros_of(failed.retry_after), _usable(failed.cursor))
        failure.rendered = failed.rendered
        return failure
    if outcome == "released":
        reason = release_reason(report.released.reason)
        may_have_begun, cursor = report.released.may_have_begun, _usable(report.released.cursor)
        if report.released.reason == CIRCUIT_OPEN and (target := clamp_target(report.target)):
            return ReportHeldBack(number, epoch, target, instance_id=instance_id)
        return Release(number, epoch, reason, may_have_begun, cursor, instance_id=instance_id)
    if outcome == "stopped":
        start, end = micros_of(report.start_time), micros_of(report.end_time)
        return ReportStopped(number, epoch, start_time=start, end_time=end, instance_id=instance_id)
    if outcome == "deferred":
        return ReportDeferred(number, epoch, **_facts(report))
    return None


def _success(report: pb.RunReport, number: int) -> ReportSuccess | ReportFailure:
    done = report.succeeded
    output = value_of(done.output)
    if fault := fault_of(output, done.branch):
        return _failure(report, number, fault, retry_after=0)
    # Every step has one, so it is made without the dictionary of `_facts`.
    head, target = report.head, report.target
    return ReportSuccess(
        number,
        head.epoch,
        instance_id=head.instance_id,
        output=output,
        branch=done.branch,
        start_time=micros_of(report.start_time),
        end_time=micros_of(report.end_time),
        inputs_hash=report.inputs_hash,
        config_hash=report.config_hash,
        cost_tokens=report.cost_tokens,
        target=clamp_target(target) if target else "",
    )


def _failure(report: pb.RunReport, number: int, error: Error, retry_after: Span, cursor: bytes = b"") -> ReportFailure:
    return ReportFailure(
        number,
        report.head.epoch,
        error=error,
        random=random.random(),
        retry_after=retry_after,
        cursor=cursor,
        **_facts(report),
    )


def _usable(cursor: bytes) -> bytes:
    """The cursor, or nothing: an unusable one must not replace a usable one."""
    return cursor if is_cursor(cursor) else b""


def _facts(report: pb.RunReport) -> dict[str, Any]:
    """The fields that success and failure have in common."""
    return {
        "start_time": micros_of(report.start_time),
        "end_time": micros_of(report.end_time),
        "inputs_hash": report.inputs_hash,
        "config_hash": report.config_hash,
        "cost_tokens": report.cost_tokens,
        "target": clamp_target(report.target) if report.target else "",
        "instance_id": report.head.instance_id,
    }


def progress_commands(progress: pb.RunProgress, number: int, instance_id: str) -> list[Command]:
    start_time = micros_of(progress.start_time)
    commands: list[Command] = [ReportStarted(number, progress.epoch, start_time, instance_id=instance_id)]
    is_news = progress.fraction or progress.message or progress.cursor
    # An unusable cursor must not replace a usable one.
    if is_news and is_cursor(progress.cursor):
        commands.append(
            ReportProgress(
                number,
                progress.epoch,
                progress=progress.fraction,
                message=progress.message[:ERROR_MESSAGE_MAX],
                cursor=progress.cursor,
                instance_id=instance_id,
            )
        )
    return commands


def value_of(output: pb.Output) -> Value:
    if output.WhichOneof("value") == "ref":
        return OutputRef(output.ref.key, output.ref.sha256, output.ref.size_bytes)
    return output.json or b"null"


def fill_output(message: pb.Output, value: Value) -> None:
    if isinstance(value, OutputRef):
        fill_ref(message.ref, value)
    else:
        message.json = value


def fill_ref(message: pb.OutputRef, ref: OutputRef) -> None:
    message.key, message.sha256, message.size_bytes = ref.key, ref.sha256, ref.size_bytes
