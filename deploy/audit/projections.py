"""Compares the rows of an execution with the fold of its journal, column by column."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.audit.findings import Findings
from services.coordinator.core.projection import (
    APPROVAL_COLUMNS,
    DEAD_LETTER_COLUMNS,
    EXECUTION_COLUMNS,
    RUN_COLUMNS,
    approval_row,
    dead_letter_row,
    execution_row,
    run_row,
)
from services.coordinator.core.state import Execution


def compare(
    execution: Execution,
    row: Sequence[Any],
    run_rows: Sequence[Sequence[Any]],
    approval_rows: Sequence[Sequence[Any]],
    findings: Findings,
) -> None:
    id_ = execution.execution_id
    expected, actual = _plain(EXECUTION_COLUMNS, execution_row(execution)), _plain(EXECUTION_COLUMNS, row)
    # A holder that takes over raises the fence before it appends its first event.
    fence, epoch = actual.pop("epoch"), expected.pop("epoch")
    findings.check("S2", fence >= epoch, f"{id_}: the fence stands at {fence}, its records at {epoch}")
    findings.check("S6", actual == expected, f"{id_}: {_difference(expected, actual)}")
    folded = [_plain(RUN_COLUMNS, run_row(execution, run)) for run in execution.runs]
    found = [_plain(RUN_COLUMNS, each) for each in run_rows]
    findings.check("S6", len(folded) == len(found), f"{id_}: {len(found)} rows, {len(folded)} runs")
    for left, right in zip(folded, found, strict=False):
        findings.check("S6", left == right, f"{id_}.{left['number']}: {_difference(left, right)}")
    asked = [_plain(APPROVAL_COLUMNS, approval_row(execution, number)) for number in sorted(execution.approvals)]
    stored = [_plain(APPROVAL_COLUMNS, each) for each in approval_rows]
    findings.check("S6", len(asked) == len(stored), f"{id_}: {len(stored)} rows, {len(asked)} approvals")
    for left, right in zip(asked, stored, strict=False):
        findings.check("S6", left == right, f"{id_}.{left['number']} as approval: {_difference(left, right)}")


def compare_dead_letters(execution: Execution, rows: Sequence[Sequence[Any]], findings: Findings) -> None:
    """Old dead letters are deleted, so there may be fewer rows."""
    for row in rows:
        found = _plain(DEAD_LETTER_COLUMNS, row)
        letter = execution.dead_letters.get(found["number"])
        where = f"the dead letter {execution.execution_id}.{found['number']}"
        if letter is None:
            findings.broke("S6", f"{where} is not in the journal")
            continue
        expected = _plain(DEAD_LETTER_COLUMNS, dead_letter_row(execution, letter))
        findings.check("S6", found == expected, f"{where} {_difference(expected, found)}")


def _plain(columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    found = dict(zip(columns, row, strict=True))
    if "labels" in found:
        found["labels"] = dict(found["labels"])
    for name in ("assignees", "decisions"):
        if isinstance(found.get(name), str):
            found[name] = json.loads(found[name])
    return {name: value or None if name.endswith("_time") else value for name, value in found.items()}


def _difference(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> str:
    """The columns that differ and their values, without payloads."""
    apart = [name for name in expected if expected[name] != actual[name]]
    shown = {
        name: (expected[name], actual[name])
        for name in apart
        if not isinstance(expected[name], bytes) and not isinstance(actual[name], bytes)
    }
    return f"differs in {apart}, folded and stored: {shown}"
