"""Whole journals that were stored once fold to the same rows for ever.

`tests/golden/journals/` has a folder per journal: the definition it ran on, its records in hexadecimal, one a line, and
the rows that they gave when they were written. A journal is never changed; what a new event type does is shown by a new
one beside it.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.core import Execution, compile_definition, fold
from services.coordinator.core.projection import (
    EXECUTION_COLUMNS,
    RUN_COLUMNS,
    execution_row,
    run_row,
)
from services.coordinator.store.codec import UnknownEvent, decode
from tests.unit.coordinator.test_codec import SAMPLES

JOURNALS = Path(__file__).resolve().parents[2] / "golden" / "journals"


def stored(folder):
    lines = (folder / "records.hex").read_text().split()
    return [decode(bytes.fromhex(line)) for line in lines]


def shown(columns, row):
    return {
        name: value.hex() if isinstance(value, bytes) else value
        for name, value in zip(columns, row, strict=True)
    }


@pytest.mark.parametrize("folder", sorted(JOURNALS.iterdir()), ids=lambda folder: folder.name)
def test_a_stored_journal_folds_to_the_rows_it_gave(folder):
    records = stored(folder)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    events = [record.event for record in records if not isinstance(record.event, UnknownEvent)]
    definition = compile_definition(json.loads((folder / "definition.json").read_text()))
    execution = fold(Execution(records[0].execution_id, definition), events)
    rows: Any = {
        "execution": shown(EXECUTION_COLUMNS, execution_row(execution)),
        "runs": [shown(RUN_COLUMNS, run_row(execution, run)) for run in execution.runs],
    }
    rows = json.loads(json.dumps(rows))
    expected = json.loads((folder / "rows.json").read_text())
    # Columns that were added since are not in the file.
    assert {name: rows["execution"][name] for name in expected["execution"]} == expected["execution"]
    assert len(rows["runs"]) == len(expected["runs"])
    for row, wanted in zip(rows["runs"], expected["runs"], strict=True):
        assert {name: row[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("name", "idempotent"),
    [
        ("twice-by-its-runners-word", ["again", "again"]),
        ("everything-well", ["fetch", "fetch", "rendered", "$output"]),
        ("cancelled", []),
    ],
)
def test_a_stored_lease_says_what_may_be_done_twice(name, idempotent):
    """No node of the first says so, but its runners; the others are older than that, and their nodes alone say so."""
    folder = JOURNALS / name
    definition = compile_definition(json.loads((folder / "definition.json").read_text()))
    events: Any = [record.event for record in stored(folder)]
    execution = fold(Execution("e", definition), events)
    assert [run.work.node.id for run in execution.runs if run.is_idempotent] == idempotent


def test_every_event_type_is_in_some_journal():
    types = {type(record.event) for folder in JOURNALS.iterdir() for record in stored(folder)}
    assert types == {type(event) for event in SAMPLES.values()}
