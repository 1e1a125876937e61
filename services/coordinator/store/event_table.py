"""How each event is stored: one row per event, with the form of each of its fields.

The message and the dataclass of an event have the same field names. A row says in which form each field is stored. A
field that is empty (None, 0, "") is left out of the message, and is read back as the same.

To add an event: its dataclass in `core/events.py`, its message in `protos/windlass/journal/v1/events.proto`, and its
row here. A stored field keeps its form and its meaning for ever.

The fields of a row are sorted by what there is to do with them once, when the table is made, because two events are
written for every step of every workflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum, StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from services.chassis.grpc.timestamps import micros_of, put_micros
from services.coordinator.core import events as ev
from services.coordinator.core.retry import RetryPolicy
from services.coordinator.core.values import (
    Error,
    ErrorClass,
    ExecutionState,
    Failure,
    FailureReason,
    Origin,
    OutputRef,
    ReleaseReason,
    Value,
    WorkKey,
)
from windlass.journal.v1 import events_pb2 as pb


class Form(NamedTuple):
    """One way to store a field that is a message of its own."""

    write: Callable[[Any, Any], None]
    read: Callable[[Any], Any]
    # The value of the field when its message is absent.
    absent: Any = None
    # A map: it cannot be absent, but only be empty.
    is_map: bool = False


class Numbers(NamedTuple):
    """An enum, stored as a number. Unspecified means None."""

    write: Mapping[Any, int]
    read: Mapping[int, Any]


class Plain(Enum):
    """The field holds the value itself."""

    VALUE = "VALUE"


AnyForm: TypeAlias = Form | Numbers | Plain
Fields: TypeAlias = Mapping[str, AnyForm]
Write: TypeAlias = Callable[[Any, Any], None]
Read: TypeAlias = Callable[[Any], dict[str, Any]]


class Row(NamedTuple):
    event: type[ev.Event]
    # In the oneof of windlass.journal.v1.Event.
    name: str
    fields: Fields
    # From the event into its message, and from the message to the fields of the event.
    write: Write
    read: Read


def _writer(fields: Fields) -> Write:
    plain = tuple(name for name, form in fields.items() if isinstance(form, Plain))
    enums = tuple((name, form.write) for name, form in fields.items() if isinstance(form, Numbers))
    messages = tuple((name, *form[:3:2]) for name, form in fields.items() if isinstance(form, Form))

    def write(to: Any, value: Any) -> None:
        for name in plain:
            item = getattr(value, name)
            if item:
                setattr(to, name, item)
        for name, numbers in enums:
            item = getattr(value, name)
            if item is not None:
                setattr(to, name, numbers[item])
        for name, write_message, absent in messages:
            item = getattr(value, name)
            if item != absent:
                write_message(getattr(to, name), item)

    return write


def _reader(fields: Fields) -> Read:
    plain = tuple(name for name, form in fields.items() if isinstance(form, Plain))
    enums = tuple((name, form.read) for name, form in fields.items() if isinstance(form, Numbers))
    messages = tuple((name, form) for name, form in fields.items() if isinstance(form, Form))

    def read(message: Any) -> dict[str, Any]:
        found = {name: getattr(message, name) for name in plain}
        for name, numbers in enums:
            found[name] = numbers.get(getattr(message, name))
        for name, (_, read_message, absent, is_map) in messages:
            is_there = is_map or message.HasField(name)
            found[name] = read_message(getattr(message, name)) if is_there else absent
        return found

    return read


# Forms of single values


def _enum(names: type[StrEnum], numbers: Any, prefix: str) -> Numbers:
    known = dict(numbers.items())
    there = {name: known[prefix + name] for name in names if prefix + name in known}
    return Numbers(there, {number: name for name, number in there.items()})


def _write_key(to: pb.WorkKey, key: WorkKey) -> None:
    to.node, to.iteration, to.generation = key


def _read_key(key: pb.WorkKey) -> WorkKey:
    return WorkKey(key.node, key.iteration, key.generation)


def _write_keys(to: Any, keys: tuple[WorkKey, ...]) -> None:
    for key in keys:
        _write_key(to.add(), key)


def _read_keys(keys: Any) -> tuple[WorkKey, ...]:
    return tuple([_read_key(key) for key in keys]) if keys else ()


def _write_consequences(to: pb.Consequences, then: ev.Consequences) -> None:
    to.edges = then.edges
    _write_keys(to.ready, then.ready)
    if then.begun or then.skipped or then.blocked:
        _write_keys(to.begun, then.begun)
        _write_keys(to.skipped, then.skipped)
        _write_keys(to.blocked, then.blocked)


def _read_consequences(then: pb.Consequences) -> ev.Consequences:
    return ev.Consequences(
        then.edges, _read_keys(then.ready), _read_keys(then.begun), _read_keys(then.skipped), _read_keys(then.blocked)
    )


def _write_value(to: pb.Value, value: Value) -> None:
    if isinstance(value, OutputRef):
        to.ref.key, to.ref.sha256, to.ref.size_bytes = value.key, value.sha256, value.size_bytes
    else:
        to.json = value


def _read_value(value: pb.Value) -> Value | None:
    match value.WhichOneof("value"):
        case "json":
            return value.json
        case "ref":
            return OutputRef(value.ref.key, value.ref.sha256, value.ref.size_bytes)
        case _:
            return None


def _write_labels(to: Any, labels: tuple[tuple[str, str], ...]) -> None:
    to.update(labels)


def _read_labels(labels: Any) -> tuple[tuple[str, str], ...]:
    # Maps have no order of their own.
    return tuple(sorted(labels.items()))


_PLAIN: Final = Plain.VALUE
_TIME: Final = Form(put_micros, micros_of, absent=0)


def _message(make: type, **fields: AnyForm) -> Form:
    """A nested dataclass."""
    write_all, read = _writer(fields), _reader(fields)

    def write(to: Any, value: Any) -> None:
        # Present even if all its fields are empty.
        to.SetInParent()
        write_all(to, value)

    return Form(write, lambda message: make(**read(message)))


# Forms of the fields, by their meaning

_KEY: Final = Form(_write_key, _read_key)
_THEN: Final = Form(_write_consequences, _read_consequences, absent=ev.NOTHING_FOLLOWS)
_VALUE: Final = Form(_write_value, _read_value)
_FAILURE_REASON: Final = _enum(FailureReason, pb.FailureReason, "FAILURE_REASON_")
_FINAL_STATE: Final = _enum(ExecutionState, pb.FinalState, "FINAL_STATE_")
_ERROR: Final = _message(
    Error, error_class=_enum(ErrorClass, pb.ErrorClass, "ERROR_CLASS_"), type=_PLAIN, message=_PLAIN
)
_FAILURE: Final = _message(Failure, node=_PLAIN, type=_PLAIN, message=_PLAIN)
_ORIGIN_FORMS: Final[Fields] = {
    "labels": Form(_write_labels, _read_labels, absent=(), is_map=True),
    "create_time": _TIME,
}
_ORIGIN: Final = _message(Origin, **{field.name: _ORIGIN_FORMS.get(field.name, _PLAIN) for field in fields(Origin)})
_RETRY: Final = _message(
    RetryPolicy, attempts=_PLAIN, initial_delay=_TIME, factor=_PLAIN, max_delay=_TIME, budget=_TIME
)
# The measurements that a runner reports of its run.
_MEASURED: Final[Fields] = {
    "start_time": _TIME,
    "end_time": _TIME,
    "inputs_hash": _PLAIN,
    "config_hash": _PLAIN,
    "cost_tokens": _PLAIN,
}
_RUN: Final[Fields] = {"key": _KEY, "run": _PLAIN}


def _row(event: type[ev.Event], name: str, **fields: AnyForm) -> Row:
    return Row(event, name, fields, _writer(fields), _reader(fields))


EVENT_TABLE: Final = (
    _row(ev.ExecutionStarted, "execution_started", holder=_PLAIN, origin=_ORIGIN, grant_time=_TIME,
         deadline_time=_TIME, retry=_RETRY, then=_THEN),
    _row(ev.ExecutionAdopted, "execution_adopted", holder=_PLAIN),
    _row(ev.RunLeased, "run_leased", **_RUN, attempt=_PLAIN, instance_id=_PLAIN, runner=_PLAIN,
         traceparent=_PLAIN, is_idempotent=_PLAIN, backstop_time=_TIME),
    _row(ev.RunStarted, "run_started", **_RUN, start_time=_TIME, backstop_time=_TIME),
    _row(ev.RunProgressed, "run_progressed", **_RUN, progress=_PLAIN, message=_PLAIN,
         cursor=_PLAIN),
    _row(ev.RunSucceeded, "run_succeeded", **_RUN, output=_VALUE, branch=_PLAIN, **_MEASURED, then=_THEN),
    _row(ev.ControlRendered, "control_rendered", **_RUN, config=_PLAIN, start_time=_TIME, end_time=_TIME),
    _row(ev.RunFailed, "run_failed", **_RUN, error=_ERROR, fingerprint=_PLAIN, **_MEASURED,
         is_charged=_PLAIN, retry_time=_TIME, reason=_FAILURE_REASON, is_handled=_PLAIN,
         is_reported=_PLAIN, then=_THEN),
    _row(ev.RunLost, "run_lost", **_RUN, error=_ERROR, fingerprint=_PLAIN, reason=_FAILURE_REASON,
         is_handled=_PLAIN, then=_THEN),
    _row(ev.RunReleased, "run_released", **_RUN,
         release=_enum(ReleaseReason, pb.ReleaseReason, "RELEASE_REASON_"), may_have_begun=_PLAIN,
         is_reported=_PLAIN, then=_THEN),
    _row(ev.RunCancelled, "run_cancelled", **_RUN, start_time=_TIME, end_time=_TIME, is_reported=_PLAIN),
    _row(ev.LateReportRejected, "late_report_rejected", **_RUN, epoch=_PLAIN, report=_PLAIN),
    _row(ev.BackoffEnded, "backoff_ended", key=_KEY),
    _row(ev.WaitStarted, "wait_started", **_RUN, kind=_enum(ev.WaitKind, pb.WaitKind, "WAIT_KIND_"),
         due_time=_TIME),
    _row(ev.WaitEnded, "wait_ended", **_RUN, outcome=_enum(ev.WaitOutcome, pb.WaitOutcome, "WAIT_OUTCOME_")),
    _row(ev.WorkSkipped, "work_skipped", **_RUN, then=_THEN),
    _row(ev.WorkBlocked, "work_blocked", key=_KEY, then=_THEN),
    _row(ev.OutputRequested, "output_requested", key=_KEY),
    _row(ev.StopOrdered, "stop_ordered", outcome=_FINAL_STATE, error=_FAILURE, answer_by_time=_TIME,
         message_id=_PLAIN, caller=_PLAIN),
    _row(ev.ExecutionFinished, "execution_finished", state=_FINAL_STATE, output=_VALUE, error=_FAILURE,
         duration=_TIME),
)  # fmt: skip
