"""The rows of an execution in a form that is written down, hashed and compared.

A row is a JSON object by column. Payloads are replaced by their SHA-256, so a row has some hundred bytes. So is the
instance of a runner, because whoever knows it could report in its name. The fence of the execution (`epoch`) is no part
of its row: a holder that takes over raises it before it appends anything.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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

# In the order in which they are compared.
TABLE_COLUMNS: Mapping[str, Sequence[str]] = {
    "executions": EXECUTION_COLUMNS,
    "runs": RUN_COLUMNS,
    "approvals": APPROVAL_COLUMNS,
    "dead_letters": DEAD_LETTER_COLUMNS,
}
# The table, and the number of the run; 0 for the execution itself.
RowName = tuple[str, int]
_TABLES = tuple(TABLE_COLUMNS)
# These are JSON texts in the rows of approvals.
_JSON = frozenset({"assignees", "decisions"})
_FENCE = "epoch"
_HASH = "sha256:"


def payload_hash(payload: bytes) -> str:
    return f"{_HASH}{hashlib.sha256(payload).hexdigest()}"


def hidden_instance(instance_id: str) -> str:
    """The same for an instance that is hidden already."""
    if not instance_id or instance_id.startswith(_HASH):
        return instance_id
    return payload_hash(instance_id.encode())


def columns_of(table: str, row: Sequence[Any], columns: Sequence[str] = ()) -> dict[str, Any]:
    """A row that was read off the state, or out of the table. `columns` are those that it has, unless it has all."""
    found = dict(zip(columns or TABLE_COLUMNS[table], row, strict=True))
    if table == "executions":
        del found[_FENCE]
        found["labels"] = dict(found["labels"])
    for name, value in found.items():
        if isinstance(value, bytes):
            found[name] = payload_hash(value)
        elif name in _JSON and isinstance(value, str):
            found[name] = json.loads(value)
        elif name == "instance_id":
            found[name] = hidden_instance(value)
        elif name.endswith("_time"):
            found[name] = value or None
    return found


def value_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def place_of(name: RowName) -> tuple[int, int]:
    """Rows come in this order. Raises ValueError for a table that has no place."""
    return _TABLES.index(name[0]), name[1]


def folded_rows(execution: Execution) -> Iterator[tuple[RowName, Mapping[str, Any]]]:
    """The rows that the journal adds up to, in their order."""
    yield ("executions", 0), columns_of("executions", execution_row(execution))
    for run in execution.runs:
        yield ("runs", run.number), columns_of("runs", run_row(execution, run))
    for number in sorted(execution.approvals):
        yield ("approvals", number), columns_of("approvals", approval_row(execution, number))
    for number in sorted(execution.dead_letters):
        row = dead_letter_row(execution, execution.dead_letters[number])
        yield ("dead_letters", number), columns_of("dead_letters", row)


class RowsHash:
    """The hash of rows that are added in their order."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.count = 0

    def add(self, name: RowName, text: str) -> None:
        self._digest.update(f"{name[0]} {name[1]} {text}\n".encode())
        self.count += 1

    def __str__(self) -> str:
        return self._digest.hexdigest() if self.count else ""
