"""Imports that would otherwise bring more than is used.

structlog's console renderer, which we never use, loads rich for tracebacks in colour: 4 MB in every
process, and tracebacks that show the values of local variables. Hidden from it, structlog does without.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


def imported_without(name: str, unwanted: str) -> ModuleType:
    """Import `name` as if `unwanted` were not installed; who wants that later gets it all the same."""
    if unwanted in sys.modules:
        return importlib.import_module(name)
    sys.modules[unwanted] = None  # type: ignore[assignment] # what the import system takes for absent
    try:
        return importlib.import_module(name)
    finally:
        del sys.modules[unwanted]


imported_without("structlog", "rich")

import structlog as structlog  # noqa: E402, PLC0414 - typed, and already loaded above
