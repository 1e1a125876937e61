"""Unanswered reports hold memory until each is answered."""

from services.chassis.lease.frames import REPORT_COST_BYTES, Report
from services.chassis.lease.unanswered import Unanswered


def brought(*reports: tuple[str, int]) -> Unanswered:
    unanswered = Unanswered()
    unanswered.add([Report(report_id, "lease", 1, None, size) for report_id, size in reports])
    return unanswered


def held_by(unanswered: Unanswered) -> tuple[int, int]:
    """The count, and the bytes without the fixed cost of each report."""
    return unanswered.count, unanswered.size_bytes - unanswered.count * REPORT_COST_BYTES


def test_report_holds_its_size_until_it_is_answered():
    unanswered = brought(("1", 10), ("2", 300))
    assert held_by(unanswered) == (2, 310)
    unanswered.answer(["2", "never brought"])
    assert held_by(unanswered) == (1, 10)
    unanswered.answer(["1", "1"])
    assert held_by(unanswered) == (0, 0)
    assert brought(("3", 0)).size_bytes == REPORT_COST_BYTES, "a report without a body costs something too"


def test_of_several_under_one_id_the_largest_is_held_longest():
    unanswered = brought(("1", 300), ("1", 10), ("1", 50))
    left = []
    for _ in range(3):
        unanswered.answer(["1"])
        left.append(held_by(unanswered))
    assert left == [(2, 350), (1, 300), (0, 0)]
