"""Whether a request is well formed, by the rules that its own proto declares (protovalidate) and two of ours.

Ours: bytes that are no such message, and NUL inside any text (PostgreSQL cannot store it). Both are the
caller's fault and are told as such; without this they would surface far inside as internal errors.
The validator is imported, and its rules are compiled, when a type with rules is served (`prepare`): some megabytes that
a process without such a type does not have, and a good part of a second that no caller waits for.

Hazard: the validator is shown a request without its free JSON. That has no rules, may hold millions of values, and at
two thousandths of a millisecond each (over a million far more) the loop would be held for seconds, or minutes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from services.chassis.grpc.descriptors import reached
from services.chassis.grpc.errors import Refusal, Violation
from services.chassis.grpc.nul import nul_paths

_RULES: Final = "buf/validate/validate.proto"
# Of a smaller message an outline costs more than it saves.
_OUTLINED_BYTES_MIN: Final = 1024
# Of messages that hold free JSON, in one list: more than any rule of a list allows, so the verdict is the same.
_ITEMS_MAX: Final = 10_000
# A tag and a length.
_ITEM_BYTES_MIN: Final = 2
_FREE_JSON: Final = frozenset(
    {"google.protobuf.Struct", "google.protobuf.ListValue", "google.protobuf.Value"}
)
# What the parser says of more than 100 levels of messages, as far as its text stays the same.
_PARSER_TOO_DEEP: Final = "MaxDepth"
_collect: Callable[[Message], list[Any]] | None = None


def decode(
    from_bytes: Callable[[bytes], Message],
    bytes_max: int,
    raw: bytes,
    *,
    refuses_nul: bool = True,
    items_max: int | None = None,
) -> Message:
    """The message, or a refusal: too large, truncated, text that is no UTF-8, nested too deep, too many items, NUL in
    text.
    """
    if len(raw) > bytes_max:
        raise Refusal("MESSAGE_TOO_LARGE", f"a request is at most {bytes_max} bytes, this one is {len(raw)}")
    try:
        message = from_bytes(raw)
    except DecodeError as failure:
        if _PARSER_TOO_DEEP in str(failure):
            raise _invalid([Violation("", "TOO_DEEP", "is nested too deep")]) from None
        raise Refusal("INVALID_REQUEST", "the request is no well-formed message of its type") from None
    if (
        items_max is not None
        and len(raw) > items_max * _ITEM_BYTES_MIN
        and _has_more_items(message, items_max)
    ):
        raise Refusal("MESSAGE_TOO_LARGE", f"the lists of a message have at most {items_max} items in all")
    # The search for a zero byte is a memchr, and few requests of clients hold one.
    if refuses_nul and b"\x00" in raw:
        refuse_nul(message)
    return message


def _has_more_items(message: Message, items_max: int) -> bool:
    """In all its lists, and those of their members; counts no more of them than it may have."""
    left, ahead = items_max, [message]
    while ahead and left >= 0:
        for field, value in ahead.pop().ListFields():
            left -= len(value) if field.is_repeated else 0
            if left < 0 or field.message_type is None or not _holds_lists(field.message_type):
                continue
            ahead.extend(value if field.is_repeated else [value])
    return left < 0


@functools.cache
def _holds_lists(descriptor: Descriptor) -> bool:
    return any(field.is_repeated for each in reached(descriptor) for field in each.fields)


def prepare(descriptor: Descriptor) -> None:
    """Before the first request of this type."""
    global _collect
    if not _has_rules(descriptor):
        return
    if _collect is None:
        import protovalidate

        _collect = protovalidate.Validator().collect_violations
    _collect(GetMessageClass(descriptor)())


def validate(message: Message) -> None:
    """Raise INVALID_REQUEST with one violation per faulty field."""
    descriptor: Any = message.DESCRIPTOR
    if not _has_rules(descriptor):
        return
    if _collect is None:
        prepare(descriptor)
    assert _collect is not None
    if _may_hold_free_json(descriptor) and message.ByteSize() >= _OUTLINED_BYTES_MIN:
        message = _outline(message)
    found = _collect(message)
    if found:
        violations = [_violation(each.proto) for each in found]
        raise _invalid(violations)


@functools.cache
def _has_rules(descriptor: Descriptor) -> bool:
    """Whether it can be anything but well formed: a file that declares rules imports their language."""
    files = {each.file.name: each.file for each in reached(descriptor)}
    return any(used.name == _RULES for file in files.values() for used in file.dependencies)


@functools.cache
def _may_hold_free_json(descriptor: Descriptor) -> bool:
    return any(each.full_name in _FREE_JSON for each in reached(descriptor))


def _outline(message: Message) -> Message:
    """All of it but what is inside its free JSON."""
    outline = type(message)()
    _fill_outline(outline, message)
    return outline


def _fill_outline(outline: Message, message: Message) -> None:
    for field, value in message.ListFields():
        inner = field.message_type
        if inner is None or not _may_hold_free_json(inner):
            _copy_field(outline, field, value)
        elif inner.full_name in _FREE_JSON or inner.GetOptions().map_entry:
            if not field.is_repeated:
                getattr(outline, field.name).SetInParent()
        elif field.is_repeated:
            for each in islice(value, _ITEMS_MAX):
                _fill_outline(getattr(outline, field.name).add(), each)
        else:
            getattr(outline, field.name).SetInParent()
            _fill_outline(getattr(outline, field.name), value)


def _copy_field(target: Message, field: FieldDescriptor, value: Any) -> None:
    if field.is_repeated:
        getattr(target, field.name).MergeFrom(value)
    elif field.message_type is not None:
        getattr(target, field.name).CopyFrom(value)
    else:
        setattr(target, field.name, value)


def judge(message: Message) -> None:
    """All that the guard asks of a request, asked of one message inside a batch of them."""
    validate(message)
    if b"\x00" in message.SerializePartialToString():
        refuse_nul(message)


def refuse_nul(message: Message) -> None:
    violations = [Violation(path, "NUL", "contains a NUL character") for path in nul_paths(message)]
    if violations:
        raise _invalid(violations)


def _invalid(violations: list[Violation]) -> Refusal:
    first = violations[0]
    more = len({each.field for each in violations}) - 1
    tail = f" (and {more} more)" if more else ""
    where = first.field or "the request"
    return Refusal("INVALID_REQUEST", f"{where}: {first.message}{tail}", violations=violations)


def _violation(proto: Any) -> Violation:
    reason = (proto.rule_id or "invalid").upper().replace(".", "_")
    return Violation(_path(proto.field), reason, proto.message or f"breaks the rule {proto.rule_id}")


def _path(field: Any) -> str:
    """`nodes[2].retry.attempts`, `labels["region"]`."""
    if field is None:
        return ""
    parts: list[str] = []
    for element in field.elements:
        if parts:
            parts.append(".")
        parts.append(element.field_name)
        parts.append(_subscript(element.subscript))
    return "".join(parts)


def _subscript(subscript: Any) -> str:
    if subscript is None:
        return ""
    value = subscript.value
    return f'["{value}"]' if isinstance(value, str) else f"[{value}]"
