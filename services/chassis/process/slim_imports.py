"""Imports structlog without rich.

structlog's console renderer, which we do not use, imports rich when it is installed. That costs 4 MB in every process,
and its tracebacks show the values of local variables.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


def imported_without(name: str, unwanted: str) -> ModuleType:
    """Import `name` as if `unwanted` were not installed. A later import of `unwanted` works as usual."""
    if unwanted in sys.modules:
        return importlib.import_module(name)
    sys.modules[unwanted] = None  # type: ignore[assignment] # the import system takes this for absent
    try:
        return importlib.import_module(name)
    finally:
        del sys.modules[unwanted]


imported_without("structlog", "rich")

import structlog as structlog  # noqa: E402, PLC0414 - typed, and already loaded above
