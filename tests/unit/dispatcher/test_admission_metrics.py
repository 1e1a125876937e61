"""The log lines of admission are limited when nobody could read so many."""

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.dispatcher.app.admission_metrics import LINES_PER_SECOND, AdmissionMetrics
from services.dispatcher.core.items import Claim

BURST = int(LINES_PER_SECOND)
STARTS = 500
Line = MutableMapping[str, Any]


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    with capture_logs() as lines:
        yield lines


def of(lines: list[Line], event: str) -> list[Line]:
    return [line for line in lines if line["event"] == event]


def claims(count: int) -> list[Claim]:
    return [Claim(f"e{number}", "w", number, 0, b"", 0, 0) for number in range(count)]


def start(metrics: AdmissionMetrics, count: int) -> None:
    granted = claims(count)
    metrics.granted(granted)
    metrics.dispatched([(claim.execution_id, claim.epoch) for claim in granted], "coordinator-0")


def test_a_burst_of_grants_leaves_their_takers_as_many_lines(lines: list[Line]) -> None:
    start(AdmissionMetrics(monotonic=lambda: 0.0), STARTS)
    dispatching, dispatched = of(lines, "dispatching item"), of(lines, "dispatched execution")
    assert len(dispatching) == len(dispatched) == BURST
    assert [line["execution_id"] for line in dispatching] == [line["execution_id"] for line in dispatched]


def test_the_next_line_tells_how_many_were_left_out_before_it(lines: list[Line]) -> None:
    now = 0.0
    metrics = AdmissionMetrics(monotonic=lambda: now)
    start(metrics, STARTS)
    assert all("left_out_before" not in line for line in lines)
    now = 1.0
    lines.clear()
    start(metrics, 2)
    for event in ("dispatching item", "dispatched execution"):
        first, second = of(lines, event)
        assert first["left_out_before"] == STARTS - BURST
        assert "left_out_before" not in second
