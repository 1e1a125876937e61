"""A coordinator's report as the values that the rules know."""

from datetime import UTC, datetime, timedelta

import pytest

from services.dispatcher.core.items import LeaseParked
from services.dispatcher.rpc.translate import report_of
from windlass.dispatcher.v1.sessions_pb2 import ExecutionReport

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EXECUTION_ID = "01931f3c-7a1b-7c3d-8e4f-1234567890ab"


def parked(*, park_time: datetime | None = None, wake_time: datetime | None = None) -> LeaseParked:
    message = ExecutionReport(parked=ExecutionReport.Parked())
    for field, time in ((message.parked.park_time, park_time), (message.parked.wake_time, wake_time)):
        if time is not None:
            field.FromDatetime(time)
    message.head.lease_id, message.head.epoch = EXECUTION_ID, 7
    report = report_of(message, NOW)
    assert isinstance(report, LeaseParked)
    return report


@pytest.mark.parametrize("offset", [timedelta(hours=-1), timedelta(0), timedelta(hours=1)])
def test_wait_is_counted_from_the_arrival_whatever_the_coordinators_clock(offset: timedelta) -> None:
    theirs = NOW + offset
    wait = timedelta(seconds=20)
    assert parked(park_time=theirs, wake_time=theirs + wait).wake_time == NOW + wait


def test_wake_time_of_a_coordinator_that_does_not_say_when_it_parked_is_taken_as_it_is() -> None:
    assert parked(wake_time=NOW + timedelta(seconds=5)).wake_time == NOW + timedelta(seconds=5)
    assert parked().wake_time is None


@pytest.mark.parametrize("has_park_time", [True, False])
@pytest.mark.parametrize("seconds", [-(2**62), 253_402_304_399, 2**62])
def test_wake_time_that_no_date_holds_is_cut(seconds: int, has_park_time: bool) -> None:
    message = ExecutionReport(parked=ExecutionReport.Parked())
    message.parked.wake_time.seconds = seconds
    if has_park_time:
        message.parked.park_time.FromDatetime(NOW)
    message.head.lease_id, message.head.epoch = EXECUTION_ID, 7
    report = report_of(message, NOW)
    assert isinstance(report, LeaseParked)
    assert report.wake_time == (NOW if seconds < 0 else NOW + timedelta(days=36_500))
