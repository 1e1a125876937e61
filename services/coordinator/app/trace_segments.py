"""Splits the trace of an execution with very many runs: every thousand runs form a segment with a trace of its own.

No collector shows a tree of a hundred thousand spans. The ids of a segment are derived from the trace of the execution,
which is segment 0, so a coordinator that takes over continues the same segments.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Final

from services.chassis.telemetry.tracing import TraceContext
from services.coordinator.core.state import ChildExecution

RUNS_MAX: Final = 1_000


def segment_of(run_number: int) -> int:
    """Runs are counted from 1."""
    return (run_number - 1) // RUNS_MAX


def segment_root(trace: TraceContext, segment: int) -> TraceContext:
    """The parent span of the runs of a segment. In segment 0 it is the grant of the execution."""
    return _derived_root(trace, segment) if segment else trace


# Each run of a long loop asks for it up to three times.
@functools.lru_cache(maxsize=64)
def _derived_root(trace: TraceContext, segment: int) -> TraceContext:
    seed = trace.trace_id.to_bytes(16, "big") + segment.to_bytes(8, "big")
    digest = hashlib.blake2b(seed, digest_size=24).digest()
    return TraceContext(int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big"), trace.sampled)


def run_context(trace: TraceContext, run_number: int) -> TraceContext:
    """A fresh span for a run, in its segment."""
    return segment_root(trace, segment_of(run_number)).child()


def child_context(trace: TraceContext, child: ChildExecution) -> TraceContext:
    """The span of the start of a child. All tries have the same one, because one of them starts the child."""
    span_id = int.from_bytes(hashlib.blake2b(child.execution_id.encode(), digest_size=8).digest(), "big")
    return segment_root(trace, segment_of(child.run))._replace(span_id=span_id or 1)
