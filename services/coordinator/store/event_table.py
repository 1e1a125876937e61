"""Says how each event is stored: one row of the table per event, made from its dataclass.

The message of an event has the name of its dataclass and the same field names. The type of a field decides its form
(`FORMS`). A field that is empty (None, 0, "") is left out of the message and read back as the same. Where None is
possible, only None is left out. The time of an event is that of its append.

To add an event, write its dataclass in `core/events/` and its message in `protos/windlass/journal/v1/events.proto`. A
type that no event had before needs its form here. A stored field keeps its form and its meaning for ever. `RunLeased`
and `RunSucceeded` are also written by hand below, so a new field of theirs is added there too. A test notices a field
that was forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias, get_args, get_type_hints

from services.chassis.grpc.timestamps import micros_of, put_micros
from services.coordinator.core import events as ev
from services.coordinator.core import values
from services.coordinator.core.retry import RetryPolicy
from windlass.journal.v1 import events_pb2 as pb

Write: TypeAlias = Callable[[Any, Any], None]
Read: TypeAlias = Callable[[Any], dict[str, Any]]


class Form(NamedTuple):
    """How a field of one type is put into a message, if it is not empty, and taken out of it."""

    put: Callable[[Any, str, Any], None] = setattr
    take: Callable[[Any, str], Any] = getattr
    # An empty value is put too, because a field that is left out is read back as None.
    may_be_none: bool = False


class EventRow(NamedTuple):
    event: type[ev.Event]
    # The name of its field in the oneof of windlass.journal.v1.Event.
    name: str
    # One puts the event into its message, the other reads the fields of the event from it.
    write: Write
    read: Read


def _forms(make: type, **own_forms: Form) -> dict[str, Form]:
    hints = get_type_hints(make)
    return {name: own_forms.get(name) or FORMS[hint] for name, hint in hints.items() if name != "time"}


def _codec(forms: Mapping[str, Form]) -> tuple[Write, Read]:
    def write(message: Any, value: Any) -> None:
        # The message is present even if all its fields are empty.
        message.SetInParent()
        for name, form in forms.items():
            item = getattr(value, name)
            if item or (form.may_be_none and item is not None):
                form.put(message, name, item)

    def read(message: Any) -> dict[str, Any]:
        return {name: form.take(message, name) for name, form in forms.items()}

    return write, read


def _write_key(to: pb.WorkKey, key: values.WorkKey) -> None:
    to.node, iteration, to.generation = key
    if iteration:
        to.iteration = iteration


def _read_key(key: pb.WorkKey) -> values.WorkKey:
    return values.WorkKey(key.node, key.iteration, key.generation)


def _write_keys(to: Any, keys: tuple[values.WorkKey, ...]) -> None:
    for key in keys:
        _write_key(to.add(), key)


def _read_keys(keys: Any) -> tuple[values.WorkKey, ...]:
    return tuple([_read_key(key) for key in keys]) if keys else ()


def _write_consequences(to: pb.Consequences, then: ev.Consequences) -> None:
    if then is ev.NOTHING_FOLLOWS:
        return
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


def _write_reopened(to: Any, works: tuple[ev.ReopenedWork, ...]) -> None:
    for work in works:
        made = to.add(unresolved=work.unresolved, taken=work.taken, blocked=work.blocked, overrides=work.overrides)
        made.begun_by = work.begun_by
        _write_key(made.key, work.key)


def _read_reopened(works: Any) -> tuple[ev.ReopenedWork, ...]:
    return tuple([_read_reopened_work(each) for each in works])


def _read_reopened_work(work: pb.ReopenedWork) -> ev.ReopenedWork:
    edges = work.unresolved, work.taken, work.blocked
    return ev.ReopenedWork(_read_key(work.key), *edges, work.overrides, work.begun_by)


def _write_value(to: pb.Value, value: values.Value) -> None:
    if isinstance(value, values.OutputRef):
        to.ref.key, to.ref.sha256, to.ref.size_bytes = value.key, value.sha256, value.size_bytes
    else:
        to.json = value


def _read_value(value: pb.Value) -> values.Value:
    if value.HasField("ref"):
        return values.OutputRef(value.ref.key, value.ref.sha256, value.ref.size_bytes)
    return value.json


def _write_labels(to: Any, labels: tuple[tuple[str, str], ...]) -> None:
    to.update(labels)


def _read_labels(labels: Any) -> tuple[tuple[str, str], ...]:
    # Maps have no order of their own.
    return tuple(sorted(labels.items()))


def _write_texts(to: Any, texts: tuple[str, ...]) -> None:
    to.extend(texts)


def _message(write: Write, read: Callable[[Any], Any]) -> Form:
    return Form(
        lambda message, name, value: write(getattr(message, name), value),
        lambda message, name: read(getattr(message, name)),
    )


def _nested(make: type, **own_forms: Form) -> Form:
    """A dataclass, as a message with the same field names."""
    write, read = _codec(_forms(make, **own_forms))
    return _message(write, lambda message: make(**read(message)))


def _or_none(form: Form) -> Form:
    def take(message: Any, name: str) -> Any:
        return form.take(message, name) if message.HasField(name) else None

    return Form(form.put, take, may_be_none=True)


def _enum(names: type[StrEnum], numbers: Any) -> Form:
    """An enum is stored as a number. Unspecified means None."""
    prefix = numbers.Name(0).removesuffix("UNSPECIFIED")
    known = {names(text.removeprefix(prefix)): number for text, number in numbers.items() if number}
    found = {number: name for name, number in known.items()}
    return Form(
        lambda message, name, item: setattr(message, name, known[item]),
        lambda message, name: found.get(getattr(message, name)),
    )


_VALUE: Final = _message(_write_value, _read_value)
# The forms by the types of fields. Instants and spans are numbers, in µs.
FORMS: Final[dict[Any, Form]] = {
    **dict.fromkeys((bool, int, float, str, bytes), Form()),
    tuple[str, ...]: _message(_write_texts, tuple),
    values.WorkKey: _message(_write_key, _read_key),
    tuple[values.WorkKey, ...]: _message(_write_keys, _read_keys),
    ev.Consequences: _message(_write_consequences, _read_consequences),
    tuple[ev.ReopenedWork, ...]: _message(_write_reopened, _read_reopened),
    values.Value: _VALUE,
    values.Value | None: _or_none(_VALUE),
    tuple[tuple[str, str], ...]: _message(_write_labels, _read_labels),
    values.ErrorClass: _enum(values.ErrorClass, pb.ErrorClass),
    values.FailureReason | None: _enum(values.FailureReason, pb.FailureReason),
    values.ExecutionState: _enum(values.ExecutionState, pb.FinalState),
    values.ReleaseReason: _enum(values.ReleaseReason, pb.ReleaseReason),
    values.DeadLetterResolution: _enum(values.DeadLetterResolution, pb.DeadLetterResolution),
    ev.WaitKind: _enum(ev.WaitKind, pb.WaitKind),
    ev.WaitOutcome: _enum(ev.WaitOutcome, pb.WaitOutcome),
    values.ApprovalChoice: _enum(values.ApprovalChoice, pb.ApprovalChoice),
    values.ApprovalState | None: _enum(values.ApprovalState, pb.ApprovalState),
}
_FAILURE: Final = _nested(values.FinalError)
FORMS[values.FinalError] = _FAILURE
FORMS[values.FinalError | None] = _or_none(_FAILURE)
FORMS[values.OutputRef | None] = _or_none(_nested(values.OutputRef))
FORMS[values.Error] = _nested(values.Error)
FORMS[RetryPolicy] = _nested(RetryPolicy)
# The origin is stored as a StartOrder, whose time is a Timestamp.
FORMS[values.Origin] = _nested(values.Origin, create_time=_message(put_micros, micros_of))


def _write_run_leased(to: pb.RunLeased, event: ev.RunLeased) -> None:
    _write_key(to.key, event.key)
    to.run = event.run
    to.attempt = event.attempt
    to.instance_id = event.instance_id
    to.runner = event.runner
    if event.traceparent:
        to.traceparent = event.traceparent
    if event.is_idempotent:
        to.is_idempotent = True
    if event.backstop_time:
        to.backstop_time = event.backstop_time


def _write_run_succeeded(to: pb.RunSucceeded, event: ev.RunSucceeded) -> None:
    _write_key(to.key, event.key)
    to.run = event.run
    _write_value(to.output, event.output)
    if event.branch:
        to.branch = event.branch
    to.start_time = event.start_time
    to.end_time = event.end_time
    to.inputs_hash = event.inputs_hash
    to.config_hash = event.config_hash
    if event.cost_tokens:
        to.cost_tokens = event.cost_tokens
    _write_consequences(to.then, event.then)


# The two events of every step are written without a loop over their fields, which saves a quarter of the time.
_BY_HAND: Final[Mapping[Any, Write]] = {ev.RunLeased: _write_run_leased, ev.RunSucceeded: _write_run_succeeded}


def _row(name: str, event: type[ev.Event]) -> EventRow:
    write, read = _codec(_forms(event))
    return EventRow(event, name, _BY_HAND.get(event, write), read)


_EVENTS: Final[Mapping[str, type[ev.Event]]] = {event.__name__: event for event in get_args(ev.Event)}
EVENT_TABLE: Final = tuple(
    _row(name, _EVENTS[type(getattr(pb.Event(), name)).__name__]) for name in pb.Event.DESCRIPTOR.fields_by_name
)
