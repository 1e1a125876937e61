"""Checks what a runner brings before it is journalled. A runner may be anybody's program, with a clock of its own.

A journalled output is stored for ever, shown, and given to templates of other nodes. An output that is not JSON would
make its execution unreadable, and each list that the execution is on. So such a result is a permanent failure of its
run.

All other values are brought within bounds, and none of them decides anything. They go into rows that others share: the
database would refuse a text with a NUL or a date in the year 300,000, together with everything else of the same flush.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from services.coordinator.core.commands import Command, ReportSuccess
from services.coordinator.core.values import (
    INLINE_BYTES_MAX,
    SECOND,
    Error,
    ErrorClass,
    Instant,
    OutputRef,
    ReleaseReason,
    Span,
    Value,
)
from windlass.definition.limits import DEPTH_MAX

BRANCH_CHARACTERS_MAX: Final = 255
# A cursor is journalled with each beat that changes it, and is part of each later grant.
CURSOR_BYTES_MAX: Final = 64 * 1024
TARGET_CHARACTERS_MAX: Final = 255
ERROR_MESSAGE_MAX: Final = 8_192
ERROR_TYPE_MAX: Final = 256
# How far a runner's clock may be ahead and still be believed.
CLOCK_LEAD_MAX: Final[Span] = 86_400 * SECOND
COST_TOKENS_MAX: Final = 1_000_000_000_000
HASH_BYTES: Final = 32
# What a runner says that it has rendered for a node that failed.
RECORDED_BYTES_MAX: Final = 64 * 1024
_IS_KEY: Final = re.compile(r"[\w./-]{1,512}", re.ASCII).fullmatch
_IS_SHA256: Final = re.compile(r"[0-9a-f]{64}").fullmatch


def fault_of(value: Value, branch: str) -> Error | None:
    if len(branch) > BRANCH_CHARACTERS_MAX:
        return _permanent("BRANCH_TOO_LONG", f"a branch has at most {BRANCH_CHARACTERS_MAX} characters")
    if isinstance(value, OutputRef):
        is_ref = _IS_KEY(value.key) and _IS_SHA256(value.sha256) and value.size_bytes >= 0
        return None if is_ref else _permanent("OUTPUT_REF_INVALID", "no kept output has such a name")
    if len(value) > INLINE_BYTES_MAX:
        # A runner keeps an output of this size outside. Inline, every reader of the journal would carry it.
        return _permanent("OUTPUT_TOO_LARGE", f"{len(value)} bytes inline")
    fault = json_fault(value)
    return _permanent("OUTPUT_NOT_JSON", fault) if fault else None


def names_stored_output(command: Command) -> bool:
    """A success whose output is kept outside. The core cannot see whether it is there."""
    return isinstance(command, ReportSuccess) and isinstance(command.output, OutputRef)


def release_reason(reason: str) -> ReleaseReason:
    return ReleaseReason.DRAINED if reason == "DRAINING" else ReleaseReason.REFUSED


def is_cursor(cursor: bytes) -> bool:
    return len(cursor) <= CURSOR_BYTES_MAX and not (cursor and json_fault(cursor))


def json_fault(text: bytes) -> str:
    """Why a reader would refuse the text; "" if it is good."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as fault:
        return f"the output is not JSON: {fault.msg}"
    # Almost every output has fewer brackets than levels are allowed, and need not be walked.
    is_flat = len(text) <= 2 * DEPTH_MAX or text.count(b"{") + text.count(b"[") <= DEPTH_MAX
    return "" if is_flat or _depth(value) <= DEPTH_MAX else f"the output is nested deeper than {DEPTH_MAX}"


def is_recordable(rendered: bytes) -> bool:
    """It may be kept for people."""
    is_json = 0 < len(rendered) <= RECORDED_BYTES_MAX and not json_fault(rendered)
    return is_json and is_rendering(rendered)


def is_rendering(value: Value) -> bool:
    """The value has the members that a renderer returns. A value that is kept outside is read by its runner alone."""
    if isinstance(value, OutputRef):
        return True
    found = orjson.loads(value)
    return isinstance(found, dict) and all(isinstance(found.get(name), dict) for name in ("config", "inputs"))


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return depth


def _permanent(type_: str, message: str) -> Error:
    return Error(ErrorClass.PERMANENT, type_, message)


def clamp_time(time: Instant, now: Instant) -> Instant:
    latest = now + CLOCK_LEAD_MAX
    return time if 0 <= time <= latest else min(max(time, 0), latest)


def clean_text(text: str) -> str:
    return text.replace("\0", "\ufffd") if text else text


def clean_error(error: Error) -> Error:
    return Error(error.error_class, clean_text(error.type), clean_text(error.message))


def clamp_target(target: str) -> str:
    """The name of a target. One that could not be shown or stored counts as none."""
    return target if len(target) <= TARGET_CHARACTERS_MAX and target.isprintable() else ""


def clamp_cost(tokens: int) -> int:
    return tokens if 0 <= tokens <= COST_TOKENS_MAX else min(max(tokens, 0), COST_TOKENS_MAX)


def clamp_fraction(fraction: float) -> float:
    """NaN becomes 0, because every comparison with it is false."""
    return min(max(0.0, fraction), 1.0)
