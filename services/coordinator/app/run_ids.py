"""Ids of executions and of runs: how a run id is made of its two halves, and what is none."""

from __future__ import annotations

import re
from typing import Final

from services.coordinator.core.state import Execution

_EXECUTION_ID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_IS_EXECUTION_ID: Final = re.compile(_EXECUTION_ID).fullmatch
# Nine digits at most: what a column of 32 bits holds.
_IS_RUN_ID: Final = re.compile(rf"({_EXECUTION_ID})\.([0-9]{{1,9}})").fullmatch


def run_id(execution: Execution, number: int) -> str:
    return f"{execution.execution_id}.{number}"


def is_execution_id(text: str) -> bool:
    """Asked of every id that came from outside before it goes into a statement: the database answers another form with
    an error, not with nothing."""
    return _IS_EXECUTION_ID(text) is not None


def split_run_id(run_id: str) -> tuple[str, int]:
    """("", 0) for what is no run id."""
    found = _IS_RUN_ID(run_id)
    return (found[1], int(found[2])) if found else ("", 0)
