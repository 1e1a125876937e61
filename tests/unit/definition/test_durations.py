"""Durations and times as authors write them."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.definition.durations import TIME_MAX, parse_duration, parse_time

SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("3600s", 3600 * SECOND),
        ("1.5s", SECOND * 3 // 2),
        ("500ms", SECOND // 2),
        ("2m", 120 * SECOND),
        ("3h", 3 * 3600 * SECOND),
        ("1d", 86_400 * SECOND),
        ("0s", 0),
        ("7", 7 * SECOND),
        (" 7s ", 7 * SECOND),
        (7, 7 * SECOND),
        (0.25, SECOND // 4),
        ("30", 30 * SECOND),
        ("365d", 365 * 86_400 * SECOND),
        (365 * 86_400, 365 * 86_400 * SECOND),
        ("0.000001s", 1),
    ],
)
def test_duration_is_read(text, span):
    assert parse_duration(text) == span


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1 s", "1y", "1e3s", "nan", "1.s", "٣s", "366d", "999999999999d", None, True, [], {},
             -1, 1e300, 10**400, float("inf"), float("nan")],
)  # fmt: skip
def test_anything_else_is_no_duration(text):
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-02T00:00:01.5Z", 86_401_500_000),
        ("2026-11-18T12:59:00Z", 1_795_006_740 * SECOND),
        ("2026-11-18T13:59:00+01:00", 1_795_006_740 * SECOND),
        ("2026-11-18t11:29:00-01:30", 1_795_006_740 * SECOND),
        ("2026-11-18 12:59Z", 1_795_006_740 * SECOND),
        ("2024-02-29T00:00:00Z", 1_709_164_800 * SECOND),
        ("2000-02-29T00:00:00Z", 951_782_400 * SECOND),
        ("2026-11-18T12:58:60Z", 1_795_006_740 * SECOND),
        ("1960-01-01T00:00:00Z", 0),
        ("9999-12-31T23:59:59Z", TIME_MAX),
        ("9999-12-31T23:59:59+01:00", TIME_MAX - 3600 * SECOND),
    ],
)
def test_instant_is_read(text, instant):
    assert parse_time(text) == instant


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "2026-11-18", "2026-11-18T12:59:00", "2026-13-01T00:00:00Z", "2026-01-32T00:00:00Z",
             "2026-02-30T00:00:00Z", "2025-02-29T00:00:00Z", "1900-02-29T00:00:00Z",
             "2026-01-01T00:00:61Z", "2026-01-01T24:00:00Z", "2026-01-01T00:60:00Z", None, 5],
)  # fmt: skip
def test_anything_else_is_no_instant(text):
    with pytest.raises(ValueError, match="time"):
        parse_time(text)


@pytest.mark.parametrize(
    "text",
    ["9999-12-31T23:59:59-01:00", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:60Z", "9999-12-31T23:59:59-99:59"],
)
def test_time_that_no_timestamp_holds_is_refused(text):
    with pytest.raises(ValueError, match="at most 9999"):
        parse_time(text)


@given(
    st.datetimes(
        min_value=EPOCH.replace(tzinfo=None),
        max_value=(EPOCH + timedelta(microseconds=TIME_MAX)).replace(tzinfo=None),
        timezones=st.just(UTC),
    )
)
def test_instants_agree_with_the_calendar(moment):
    assert parse_time(moment.isoformat()) == (moment - EPOCH) // timedelta(microseconds=1)
