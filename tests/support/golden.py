"""Events and journals that were stored once must be read in the same way for ever.

    tests/golden/events/<event>.json                an event with all its fields: the stored bytes, and their meaning
    tests/golden/journals/<name>/definition.json    the workflow that the journal ran on
                                 journal.hex        its stored rows, one a line
                                 rows.json          the rows of the execution and its runs that the fold gave

No file here is ever changed. `python -m tests.golden.write` adds the files that are missing.
"""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from services.coordinator.core.events import Consequences
from services.coordinator.core.projection import APPROVAL_COLUMNS, EXECUTION_COLUMNS, RUN_COLUMNS
from services.coordinator.core.state import Execution
from services.coordinator.store.codec import Stored, unseal
from tests.support.story import rows

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
EVENTS = GOLDEN / "events"
JOURNALS = GOLDEN / "journals"


def plain(value: Any) -> Any:
    """The value as JSON has it. Bytes are written in hexadecimal."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Consequences):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def plain_rows(execution: Execution) -> Any:
    of_execution, of_runs, of_approvals = rows(execution)
    return {
        "execution": dict(zip(EXECUTION_COLUMNS, plain(of_execution), strict=True)),
        "runs": [dict(zip(RUN_COLUMNS, plain(row), strict=True)) for row in of_runs],
        "approvals": [dict(zip(APPROVAL_COLUMNS, plain(row), strict=True)) for row in of_approvals],
    }


def known(value: Any, written: Any) -> Any:
    """Only the fields and columns that `written` has. Those that were added since are left out."""
    if isinstance(written, dict):
        return {name: known(value[name], written[name]) for name in written}
    if isinstance(written, list) and isinstance(value, list) and len(value) == len(written):
        return [known(*pair) for pair in zip(value, written, strict=True)]
    return value


def stored_journal(folder: Path) -> list[Stored]:
    rows = (folder / "journal.hex").read_text().split()
    return [stored for row in rows for stored in unseal(bytes.fromhex(row))]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
