"""What dispatchers are told of a wait."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

from services.chassis.lease.frames import HolderFrame, Report
from services.coordinator.rpc.dispatch import CODEC, SessionDispatch

ID = "01931f3c-7a1b-7c3d-8e4f-1234567890ab"


def left_when_sent(report: Report) -> int:
    """Nanoseconds."""
    (message,) = cast("list[Any]", CODEC.encode_holder_frame(HolderFrame(reports=[report])))
    parked = message.reports[0].parked
    left: int = parked.wake_time.ToNanoseconds() - parked.park_time.ToNanoseconds()
    return left


def test_wait_goes_on_while_its_report_is_kept() -> None:
    """Also when it was sent before, to one that did not answer."""
    kept: list[Report] = []

    def keep(*report: Any, ends_lease: bool) -> None:
        kept.append(Report(*report))

    dispatch = SessionDispatch()
    dispatch.holder = cast("Any", SimpleNamespace(new_report_id=lambda: "1", report=keep))
    wake_time = datetime.now(UTC) + timedelta(hours=1)
    dispatch.parked(ID, 7, wake_time=int(wake_time.timestamp() * 1e6), seen=())
    left = left_when_sent(kept[0])
    assert 0 < left < 3_600 * 10**9
    assert left_when_sent(kept[0]) < left
