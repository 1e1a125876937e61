"""Reports that cannot be stored: tried again in a while, a few at once, the one with the longest wait first."""

from typing import Any, cast

from services.dispatcher.core.items import Finished
from services.dispatcher.handler.aside import AGAIN_AT_ONCE, AGAIN_SECONDS, ReportsAside
from services.dispatcher.handler.ports import Told


def told(number: int, report_id: str = "r") -> Told:
    return Told(report_id, Finished(f"e{number}", 1), cast("Any", None))


def test_report_is_tried_again_once_its_time_has_come() -> None:
    aside = ReportsAside()
    aside.keep(told(1), 0.0)
    aside.keep(told(2), 1.0)
    assert aside.due(AGAIN_SECONDS - 0.1) == []
    assert aside.due(AGAIN_SECONDS) == [told(1)]
    assert aside.due(AGAIN_SECONDS + 1.0) == [told(2)]
    assert aside.due(3_600.0) == []


def test_report_that_comes_again_takes_the_place_of_the_first() -> None:
    aside = ReportsAside()
    aside.keep(told(1, "on a stream that is gone"), 0.0)
    aside.keep(told(1), 1.0)
    assert aside.due(AGAIN_SECONDS) == []
    assert aside.due(AGAIN_SECONDS + 1.0) == [told(1)]


def test_a_few_are_tried_at_once_and_those_that_fail_wait_behind_the_others() -> None:
    aside = ReportsAside()
    for number in range(AGAIN_AT_ONCE + 1):
        aside.keep(told(number), 0.0)
    first = aside.due(AGAIN_SECONDS)
    assert len(first) == AGAIN_AT_ONCE
    for each in first:
        aside.keep(each, AGAIN_SECONDS)
    assert aside.due(AGAIN_SECONDS) == [told(AGAIN_AT_ONCE)]
