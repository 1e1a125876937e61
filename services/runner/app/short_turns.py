"""Modules have threads beside the event loop of the worker.

Only one thread of a process has the interpreter at a time. By default, one that computes keeps it for 5 ms whenever
another one wants it. The loops of the worker and of its session want it some ten times for each run of somebody else,
so a module that computes would cost its neighbours 50 ms, however many cores are idle.
"""

from __future__ import annotations

import sys
from typing import Final

SWITCH_SECONDS: Final = 0.0002


def take_short_turns() -> None:
    """From now on. The setting is for the whole process, which keeps that of Python until a module needs a thread."""
    sys.setswitchinterval(SWITCH_SECONDS)
