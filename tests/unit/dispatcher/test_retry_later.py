"""Reports that cannot be stored are tried again after a while, a few at once, the longest wait first."""

from typing import Any, cast

from services.dispatcher.app.ports import BatchReport
from services.dispatcher.app.retry_later import AGAIN_AT_ONCE, AGAIN_SECONDS, RetryLater
from services.dispatcher.core.items import LeaseFinished


def told(number: int, report_id: str = "r") -> BatchReport:
    return BatchReport(report_id, LeaseFinished(f"e{number}", 1), cast("Any", None))


def test_report_is_tried_again_once_its_time_has_come() -> None:
    later = RetryLater()
    later.keep(told(1), 0.0)
    later.keep(told(2), 1.0)
    assert later.due(AGAIN_SECONDS - 0.1) == []
    assert later.due(AGAIN_SECONDS) == [told(1)]
    assert later.due(AGAIN_SECONDS + 1.0) == [told(2)]
    assert later.due(3_600.0) == []


def test_report_that_comes_again_takes_the_place_of_the_first() -> None:
    later = RetryLater()
    later.keep(told(1, "on a stream that is gone"), 0.0)
    later.keep(told(1), 1.0)
    assert later.due(AGAIN_SECONDS) == []
    assert later.due(AGAIN_SECONDS + 1.0) == [told(1)]


def test_a_few_are_tried_at_once_and_those_that_fail_wait_behind_the_others() -> None:
    later = RetryLater()
    for number in range(AGAIN_AT_ONCE + 1):
        later.keep(told(number), 0.0)
    first = later.due(AGAIN_SECONDS)
    assert len(first) == AGAIN_AT_ONCE
    for each in first:
        later.keep(each, AGAIN_SECONDS)
    assert later.due(AGAIN_SECONDS) == [told(AGAIN_AT_ONCE)]
