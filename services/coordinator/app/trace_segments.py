"""The traces of an execution with very many runs: after each thousand a new one begins, a numbered segment.

No collector shows a tree of a hundred thousand spans. The ids of a segment follow from those of the execution's own
trace, which is segment 0, so that a coordinator that takes over hangs its runs where the last one did.
"""

from __future__ import annotations

import hashlib
from typing import Final

from services.chassis.telemetry.tracing import TraceContext

RUNS_MAX: Final = 1_000


def segment_of(run_number: int) -> int:
    """Runs are counted from 1."""
    return (run_number - 1) // RUNS_MAX


def segment_root(trace: TraceContext, segment: int) -> TraceContext:
    """What the runs of a segment hang below: in the first, the grant of the execution."""
    if segment == 0:
        return trace
    seed = trace.trace_id.to_bytes(16, "big") + segment.to_bytes(8, "big")
    digest = hashlib.blake2b(seed, digest_size=24).digest()
    return TraceContext(int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big"), trace.sampled)


def run_context(trace: TraceContext, run_number: int) -> TraceContext:
    """A fresh span for a run, in its segment."""
    return segment_root(trace, segment_of(run_number)).child()
