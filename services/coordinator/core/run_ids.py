"""The form of execution ids and of run ids. A run id is "<execution id>.<run number>"."""

from __future__ import annotations

import re
from typing import Final

from services.coordinator.core.state import Execution

_EXECUTION_ID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_IS_EXECUTION_ID: Final = re.compile(_EXECUTION_ID).fullmatch
# At most nine digits, so that the number fits into a column of 32 bits.
_IS_RUN_ID: Final = re.compile(rf"({_EXECUTION_ID})\.([0-9]{{1,9}})").fullmatch


def run_id(execution: Execution, number: int) -> str:
    return f"{execution.execution_id}.{number}"


def is_execution_id(text: str) -> bool:
    """Every id from outside is checked before it goes into a statement, because PostgreSQL raises for another form."""
    return _IS_EXECUTION_ID(text) is not None


def split_run_id(run_id: str) -> tuple[str, int]:
    """("", 0) if it is not a run id."""
    found = _IS_RUN_ID(run_id)
    return (found[1], int(found[2])) if found else ("", 0)
