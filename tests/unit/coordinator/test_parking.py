"""A dispatcher is told how long a parked execution still waits."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

from services.chassis.lease.frames import HolderFrame, Report
from services.chassis.process.clock import SystemClock
from services.coordinator.peers.dispatch import SessionDispatch, codec
from services.coordinator.rpc.run_messages import forwarded_command

ID = "01931f3c-7a1b-7c3d-8e4f-1234567890ab"


def left_when_sent(report: Report) -> int:
    """In nanoseconds."""
    (message,) = cast("list[Any]", codec(SystemClock()).encode_holder_frame(HolderFrame(reports=[report])))
    parked = message.reports[0].parked
    left: int = parked.wake_time.ToNanoseconds() - parked.park_time.ToNanoseconds()
    return left


def parked(wake_time: int) -> Report:
    kept: list[Report] = []

    def keep(*report: Any, ends_lease: bool) -> None:
        kept.append(Report(*report))

    dispatch = SessionDispatch("c1", forwarded_command)
    dispatch.holder = cast("Any", SimpleNamespace(new_report_id=lambda: "1", report=keep))
    dispatch.parked(ID, 7, wake_time=wake_time, seen=())
    return kept[0]


def test_wait_goes_on_while_its_report_is_kept() -> None:
    """This holds as well if it was sent before to a dispatcher that did not answer."""
    wake_time = datetime.now(UTC) + timedelta(hours=1)
    report = parked(int(wake_time.timestamp() * 1e6))
    left = left_when_sent(report)
    assert 0 < left < 3_600 * 10**9
    assert left_when_sent(report) < left
