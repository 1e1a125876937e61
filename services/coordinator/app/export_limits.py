"""What the events of an exported journal may hold: what readers can parse, and no more than an execution that ran here.

Starts, reports and commands are checked where they arrive, and everything that reads events and rows relies on it. An
export comes from anybody, and has passed none of these checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Final

from services.coordinator.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    Event,
    ExecutionFinished,
    ExecutionStarted,
)
from services.coordinator.core.replaying import NotReplayable
from services.coordinator.core.results import ERROR_MESSAGE_MAX, json_fault
from services.coordinator.core.values import INLINE_BYTES_MAX, OutputRef
from windlass.definition.limits import APPROVALS_REQUIRED_MAX, ASSIGNEES_MAX, DEPTH_MAX, NODES_MAX

LABELS_MAX: Final = 32
LABEL_KEY_CHARACTERS_MAX: Final = 63
LABEL_CHARACTERS_MAX: Final = 255
# This holds for every text but a message. Reasons and notes may have so many, and all others have fewer.
TEXT_CHARACTERS_MAX: Final = 1_024
# The output of an execution also names its nodes (core/outputs.py).
OUTPUT_BYTES_MAX: Final = INLINE_BYTES_MAX + 70 * NODES_MAX
# Readers take these for objects.
_OBJECTS: Final = frozenset({"input", "form"})
# These are no JSON.
_BINARY: Final = frozenset({"inputs_hash", "config_hash", "edges"})


class EventLimits:
    """The limits of one journal, whose events are checked in their order."""

    def __init__(self) -> None:
        # By the run of the approval. All decisions about it are in one row.
        self._decisions: Counter[int] = Counter()

    def check(self, seq: int, event: Event) -> None:
        """The next event. Raises NotReplayable."""
        _check_values(seq, event)
        if isinstance(event, ExecutionStarted):
            _check_labels(event.origin.labels)
        elif isinstance(event, ApprovalRequested) and len(event.assignees) > ASSIGNEES_MAX:
            raise NotReplayable(f"event {seq}: an approval has at most {ASSIGNEES_MAX} assignees")
        elif isinstance(event, ApprovalDecided):
            self._decisions[event.run] += 1
            if self._decisions[event.run] > APPROVALS_REQUIRED_MAX:
                raise NotReplayable(f"event {seq}: an approval has at most {APPROVALS_REQUIRED_MAX} decisions")


def _check_values(seq: int, event: Event) -> None:
    is_end = isinstance(event, ExecutionFinished)
    for name, value in _values(event):
        if isinstance(value, str):
            most = ERROR_MESSAGE_MAX if name == "message" else TEXT_CHARACTERS_MAX
            if len(value) > most:
                raise NotReplayable(f"event {seq}: {name} has {len(value)} characters; it may have {most}")
        else:
            most = OUTPUT_BYTES_MAX if is_end and name == "output" else INLINE_BYTES_MAX
            if len(value) > most:
                raise NotReplayable(f"event {seq}: {name} has {len(value)} bytes; it may have {most}")
            if name not in _BINARY:
                _check_json(seq, name, value, is_object=name in _OBJECTS or (is_end and name == "output"))


def _check_json(seq: int, name: str, payload: bytes, *, is_object: bool) -> None:
    if payload and json_fault(payload):
        raise NotReplayable(f"event {seq}: {name} is no JSON of at most {DEPTH_MAX} levels")
    if payload and is_object and not payload.lstrip().startswith(b"{"):
        raise NotReplayable(f"event {seq}: {name} is no JSON object")


def _check_labels(labels: tuple[tuple[str, str], ...]) -> None:
    if len(labels) > LABELS_MAX:
        raise NotReplayable(f"an execution has at most {LABELS_MAX} labels")
    for key, value in labels:
        if len(key) > LABEL_KEY_CHARACTERS_MAX or len(value) > LABEL_CHARACTERS_MAX:
            raise NotReplayable(f"the label {key[:LABEL_KEY_CHARACTERS_MAX]!r} is too long")


def _values(value: Any, name: str = "") -> Iterator[tuple[str, str | bytes]]:
    """All texts and payloads, each with the name of the innermost field that has it."""
    if isinstance(value, str | bytes):
        yield name, value
    elif isinstance(value, OutputRef):
        pass
    elif is_dataclass(value):
        for field in fields(value):
            yield from _values(getattr(value, field.name), field.name)
    elif isinstance(value, tuple):
        names = getattr(value, "_fields", (name,) * len(value))
        for each, item in zip(names, value, strict=True):
            yield from _values(item, each)
