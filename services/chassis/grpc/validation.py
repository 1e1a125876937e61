"""Checks a request against the rules that its proto declares (protovalidate) and against two rules of ours: the bytes
are a message of its type, and no text contains NUL (PostgreSQL cannot store it).

The validator is imported, and its rules are compiled, when a type with rules is served (`prepare`). This costs some
megabytes, which a process without such a type saves, and a good part of a second, for which no caller waits.

Hazard: the validator gets a request without its free JSON. Free JSON has no rules and may hold millions of values; at
2 µs each they would block the event loop for seconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from services.chassis.grpc.beside import beside
from services.chassis.grpc.descriptors import is_map, reached
from services.chassis.grpc.errors import Refusal, Violation
from services.chassis.grpc.nul import nul_paths

_RULES: Final = "buf/validate/validate.proto"
# For a smaller message an outline costs more than it saves.
_OUTLINED_BYTES_MIN: Final = 1024
# An outline has at most this number of items of one list. This is more than any rule allows, so the verdict is the
# same.
_ITEMS_MAX: Final = 10_000
# Each item has a tag and a length.
_ITEM_BYTES_MIN: Final = 2
_FREE_JSON: Final = frozenset({"google.protobuf.Struct", "google.protobuf.ListValue", "google.protobuf.Value"})
# A part of the parser's error text for more than 100 levels of messages.
_PARSER_TOO_DEEP: Final = "MaxDepth"


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
        raise Refusal("MESSAGE_TOO_LARGE", f"the request has {len(raw)} bytes, and at most {bytes_max} are accepted")
    try:
        message = from_bytes(raw)
    except DecodeError as failure:
        if _PARSER_TOO_DEEP in str(failure):
            raise _invalid([Violation("", "TOO_DEEP", "is nested too deep")]) from None
        raise Refusal("INVALID_REQUEST", "the request is not a well-formed message of its type") from None
    if items_max is not None and len(raw) > items_max * _ITEM_BYTES_MIN and _has_more_items(message, items_max):
        raise Refusal("MESSAGE_TOO_LARGE", f"the lists of a message have at most {items_max} items in all")
    if refuses_nul and b"\x00" in raw:
        refuse_nul(message)
    return message


def _has_more_items(message: Message, items_max: int) -> bool:
    """Count the items of all lists, nested ones too, and stop at the maximum."""
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


@functools.cache
def _collector() -> Callable[[Message], list[Any]]:
    import protovalidate

    return protovalidate.Validator().collect_violations


def prepare(descriptor: Descriptor) -> None:
    """Compile the rules of a type before its first request."""
    if _has_rules(descriptor):
        _collector()(GetMessageClass(descriptor)())


def validate(message: Message) -> None:
    """Raise INVALID_REQUEST with one violation per faulty field."""
    descriptor: Any = message.DESCRIPTOR
    if not _has_rules(descriptor):
        return
    if _may_hold_free_json(descriptor) and message.ByteSize() >= _OUTLINED_BYTES_MIN:
        message, whole = type(message)(), message
        _fill_outline(message, whole)
    if found := _collector()(message):
        raise _invalid([_violation(each.proto) for each in found])


@functools.cache
def _has_rules(descriptor: Descriptor) -> bool:
    """A file that declares rules imports the language of rules."""
    files = {each.file.name: each.file for each in reached(descriptor)}
    return any(used.name == _RULES for file in files.values() for used in file.dependencies)


@functools.cache
def _may_hold_free_json(descriptor: Descriptor) -> bool:
    return any(each.full_name in _FREE_JSON for each in reached(descriptor))


def _fill_outline(outline: Message, message: Message) -> None:
    """Copy everything but free JSON, which no rule speaks about."""
    for field, value in message.ListFields():
        inner, target = field.message_type, getattr(outline, field.name)
        if inner is None and not field.is_repeated:
            setattr(outline, field.name, value)
        elif inner is None or not _may_hold_free_json(inner):
            target.MergeFrom(value)
        elif inner.full_name in _FREE_JSON or is_map(field):
            continue
        elif field.is_repeated:
            for each in islice(value, _ITEMS_MAX):
                _fill_outline(target.add(), each)
        else:
            target.SetInParent()
            _fill_outline(target, value)


async def judge(message: Message) -> None:
    """Apply all checks of the guard to one message of a batch."""
    validate(message)
    await search_nul(message, message.SerializePartialToString())


async def search_nul(message: Message, raw: bytes) -> None:
    """Refuse the message, which came as these bytes, if a text in it contains NUL."""
    # This search is a memchr. Most zero bytes are not of texts but of numbers.
    if b"\x00" in raw:
        await beside(len(raw), lambda: refuse_nul(message))


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
    elements = [] if field is None else field.elements
    return ".".join(each.field_name + _subscript(each.subscript) for each in elements)


def _subscript(subscript: Any) -> str:
    if subscript is None:
        return ""
    value = subscript.value
    return f'["{value}"]' if isinstance(value, str) else f"[{value}]"
