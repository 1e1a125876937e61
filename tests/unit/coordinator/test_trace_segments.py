"""Each run of a very large execution belongs to one trace, and every coordinator finds the same one."""

import pytest

from services.chassis.telemetry.tracing import new_trace
from services.coordinator.app.trace_segments import run_context, segment_of, segment_root


@pytest.mark.parametrize(("run_number", "segment"), [(1, 0), (1_000, 0), (1_001, 1), (2_000, 1), (2_001, 2)])
def test_a_segment_is_a_thousand_runs(run_number: int, segment: int) -> None:
    assert segment_of(run_number) == segment
    trace = new_trace(sampled=True)
    assert (run_context(trace, run_number).trace_id == trace.trace_id) == (segment == 0)
    assert segment_root(trace, 0) == trace


def test_another_holder_finds_the_same_segments() -> None:
    trace = new_trace(sampled=True)
    later_grant = trace.child()
    for segment in (1, 2, 30):
        assert segment_root(trace, segment) == segment_root(later_grant, segment)


def test_segments_differ_from_each_other_and_between_executions() -> None:
    traces = [new_trace(sampled=True) for _ in range(3)]
    roots = [segment_root(trace, segment) for trace in traces for segment in range(4)]
    assert len({root.trace_id for root in roots}) == len(roots)


def test_runs_of_a_segment_have_spans_of_their_own() -> None:
    trace = new_trace(sampled=True)
    one, other = run_context(trace, 1_001), run_context(trace, 1_002)
    assert one.trace_id == other.trace_id == segment_root(trace, 1).trace_id
    assert one.span_id != other.span_id
