"""An answer asks to wait in any form of RFC 9110, by one clock, and never for ever."""

from datetime import UTC, datetime

import pytest

from services.runner.core.failures import seconds_asked
from services.runner.core.untrusted import RETRY_AFTER_SECONDS_MAX

NOW = datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC)
THEN = "Sun, 06 Nov 1994 08:51:07 GMT"


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("0", 0.0),
        ("7", 7.0),
        ("0000000000000007", 7.0),
        ("9" * 5_000, RETRY_AFTER_SECONDS_MAX),
        (THEN, 90.0),
        ("Sunday, 06-Nov-94 08:51:07 GMT", 90.0),
        ("Sun Nov  6 08:51:07 1994", 90.0),
        ("Sun, 06 Nov 1994 08:49:07 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", RETRY_AFTER_SECONDS_MAX),
    ],
)
def test_wait_is_understood_and_bounded(asked: str, seconds: float) -> None:
    assert seconds_asked(asked, "", NOW) == seconds


@pytest.mark.parametrize(
    "asked", ["", "soon", "-5", "1.5", "٣", "Sun, 06 Nov 99999 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 +9999"]
)
def test_what_is_not_understood_asks_for_nothing(asked: str) -> None:
    assert seconds_asked(asked, "", NOW) is None


def test_date_is_counted_by_the_clock_that_wrote_it() -> None:
    of_a_clock_that_is_wrong = "Sun, 06 Nov 1994 08:50:37 GMT"
    assert seconds_asked(THEN, of_a_clock_that_is_wrong, datetime(2026, 11, 19, tzinfo=UTC)) == 30.0


def test_date_is_counted_by_our_clock_when_the_answer_has_no_date_that_is_one() -> None:
    assert seconds_asked(THEN, "some day", NOW) == 90.0
