"""Whether a request is well formed, by the rules that its own proto declares (protovalidate) and two of ours.

Ours: bytes that are no such message, and NUL inside any text (PostgreSQL cannot store it). Both are the
caller's fault and are told as such; without this they would surface far inside as internal errors.
The validator is imported at its first use; the first message of a type compiles its rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError, Message

from services.chassis.errors import Refusal, Violation
from services.chassis.nesting import TooDeep, parse
from services.chassis.nul import nul_paths

_collect: Callable[[Message], list[Any]] | None = None


def decode(
    from_bytes: Callable[[bytes], Message], bytes_max: int, raw: bytes, *, refuses_nul: bool = True
) -> Message:
    """The message, or a refusal: too large, truncated, text that is no UTF-8, nested too deep, NUL in text."""
    if len(raw) > bytes_max:
        raise Refusal("MESSAGE_TOO_LARGE", f"a request is at most {bytes_max} bytes, this one is {len(raw)}")
    try:
        message = parse(from_bytes, raw)
    except DecodeError:
        raise Refusal("INVALID_REQUEST", "the request is no well-formed message of its type") from None
    except TooDeep as found:
        raise _invalid([Violation(found.path, "TOO_DEEP", "is nested too deep to be looked at")]) from None
    # The search for a zero byte is a memchr, and few requests of clients hold one.
    if refuses_nul and b"\x00" in raw:
        refuse_nul(message)
    return message


def validate(message: Message) -> None:
    """Raise INVALID_REQUEST with one violation per faulty field."""
    global _collect
    if _collect is None:
        import protovalidate

        _collect = protovalidate.Validator().collect_violations
    found = _collect(message)
    if found:
        violations = [_violation(each.proto) for each in found]
        raise _invalid(violations)


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
