"""An exported event may hold what starts, reports and commands may bring, and no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.app.export_limits import OUTPUT_BYTES_MAX, EventLimits
from services.coordinator.core.events import (
    NOTHING_FOLLOWS,
    ApprovalDecided,
    ApprovalRequested,
    Event,
    ExecutionFinished,
    ExecutionPaused,
    ExecutionStarted,
    RunFailed,
    RunSucceeded,
)
from services.coordinator.core.replaying import NotReplayable
from services.coordinator.core.values import (
    INLINE_BYTES_MAX,
    ApprovalChoice,
    Error,
    ErrorClass,
    ExecutionState,
    FailureReason,
    WorkKey,
)
from tests.support.golden import JOURNALS, stored_journal
from tests.support.story import Story, node

KEY = WorkKey("a")


def started(**more: Any) -> Event:
    story = Story([node("a")])
    story.start()
    event = story.journal[0]
    assert isinstance(event, ExecutionStarted)
    return replace(event, origin=replace(event.origin, **more))


def failed(message: str, type_: str = "BOOM") -> Event:
    error, reason = Error(ErrorClass.PERMANENT, type_, message), FailureReason.MAX_RETRIES
    return RunFailed(1, KEY, 1, error, "f", 1, 1, b"", b"", 0, True, 0, reason, False, True, NOTHING_FOLLOWS)


def succeeded(output: bytes) -> Event:
    return RunSucceeded(1, KEY, 1, output, "", 1, 1, b"i" * 32, b"c" * 32, 0, NOTHING_FOLLOWS)


def ended(output: bytes) -> Event:
    return ExecutionFinished(1, ExecutionState.SUCCESS, output, None, 1)


def asked(assignees: int) -> Event:
    return ApprovalRequested(1, KEY, 1, "title", b"{}", ("somebody",) * assignees, 1)


def decided(number: int) -> Event:
    return ApprovalDecided(1, KEY, 1, f"m{number}", "ann", "k", ApprovalChoice.APPROVE, b"{}", "", None)


def text(bytes_: int) -> bytes:
    """JSON of this size."""
    return b'"%b"' % (b"x" * (bytes_ - 2))


def labels(count: int, key: int = 8, value: int = 8) -> tuple[tuple[str, str], ...]:
    return tuple((f"{number:0{key}d}", "v" * value) for number in range(count))


def object_of(bytes_: int) -> bytes:
    return b'{"a":%b}' % text(bytes_ - 6)


LARGEST = {
    "labels": started(labels=labels(32, 63, 255)),
    "a caller": started(caller="c" * 1_024),
    "an input": started(input=object_of(INLINE_BYTES_MAX)),
    "a message": failed("\N{SNOWMAN}" * 8_192),
    "a reason": ExecutionPaused(1, "m", "ann", "r" * 1_024),
    "an output": succeeded(text(INLINE_BYTES_MAX)),
    "the output of an execution": ended(object_of(OUTPUT_BYTES_MAX)),
    "assignees": asked(50),
}
TOO_LARGE = {
    "too many labels": (started(labels=labels(33)), "at most 32 labels"),
    "the key of a label": (started(labels=labels(1, key=64)), "is too long"),
    "a label": (started(labels=labels(1, value=256)), "is too long"),
    "a caller": (started(caller="c" * 1_025), "caller has 1025 characters"),
    "an input": (started(input=object_of(INLINE_BYTES_MAX + 1)), "input has 262145 bytes"),
    "a message": (failed("m" * 8_193), "message has 8193 characters"),
    "the type of an error": (failed("", "t" * 1_025), "type has 1025 characters"),
    "a reason": (ExecutionPaused(1, "m", "ann", "r" * 1_025), "reason has 1025 characters"),
    "an output": (succeeded(text(INLINE_BYTES_MAX + 1)), "output has 262145 bytes"),
    "the output of an execution": (ended(object_of(OUTPUT_BYTES_MAX + 1)), "output has"),
    "assignees": (asked(51), "at most 50 assignees"),
    "no JSON": (succeeded(b"{"), "output is no JSON of at most 30 levels"),
    "JSON of many levels": (succeeded(b"[" * 31 + b"]" * 31), "output is no JSON of at most 30 levels"),
    "an input that is no object": (started(input=b"[]"), "input is no JSON object"),
    "an output of an execution that is no object": (ended(b"1"), "output is no JSON object"),
}


@pytest.mark.parametrize("name", LARGEST)
def test_what_may_be_brought_here_may_be_in_an_export(name: str) -> None:
    EventLimits().check(1, LARGEST[name])


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_may_not_be_brought_here_may_not_be_in_an_export(name: str) -> None:
    event, message = TOO_LARGE[name]
    with pytest.raises(NotReplayable, match=f"(?s){message}"):
        EventLimits().check(1, event)


def test_an_approval_has_no_more_decisions_than_people_can_be_required() -> None:
    limits = EventLimits()
    for number in range(10):
        limits.check(number + 1, decided(number))
    with pytest.raises(NotReplayable, match="event 11: an approval has at most 10 decisions"):
        limits.check(11, decided(11))


@pytest.mark.parametrize("folder", sorted(JOURNALS.iterdir()), ids=lambda folder: folder.name)
def test_a_journal_that_was_written_here_is_within_the_limits(folder: Path) -> None:
    limits = EventLimits()
    for stored in stored_journal(folder):
        assert isinstance(stored.event, Event)
        limits.check(stored.seq, stored.event)
