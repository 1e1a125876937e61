"""Measures what a workload costs: CPU and memory of all processes that take part.

CPU counts for whole process trees (services, PostgreSQL, the client itself), so that no child is left out. Memory is
PSS, not RSS: pages that the services share are counted once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import psutil


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of these processes so far, with their threads and their children that have ended."""
    total_s = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def tree(roots: Iterable[int]) -> list[int]:
    """These processes and all their descendants, as they are now."""
    found = set(roots)
    for pid in list(found):
        found.update(child.pid for child in psutil.Process(pid).children(recursive=True))
    return sorted(found)


def pss_mb(pids: Iterable[int]) -> float:
    """The proportional set size of these processes together."""
    return sum(psutil.Process(pid).memory_full_info().pss for pid in pids) / 1024**2


def percentile(values: Sequence[float], share: float) -> float:
    """The percentile by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
