"""Lanes: who is looked at next, and who costs nothing."""

from services.dispatcher.core.items import LaneView
from services.dispatcher.core.lanes import (
    ASIDE_SECONDS,
    COUNT_TRUSTED_SECONDS,
    COUNTED_PER_SECOND,
    LANES_KEPT_MAX,
    Lanes,
)


def full(workspace: str) -> LaneView:
    return LaneView(workspace, executions_max=5, free=2, taken=2, has_more=True)


def dry(workspace: str) -> LaneView:
    return LaneView(workspace, executions_max=5, free=5, taken=1, has_more=False)


def busy(workspace: str) -> LaneView:
    return LaneView(workspace, executions_max=5, free=5, taken=2, has_more=True)


def lanes_with(*workspaces: str) -> Lanes:
    lanes = Lanes()
    for workspace in workspaces:
        lanes.work(workspace)
    return lanes


def test_lanes_are_served_in_turn() -> None:
    lanes = lanes_with("a", "b", "c")
    assert lanes.take(2) == ["a", "b"]
    assert lanes.take(2) == ["c", "a"]
    assert lanes.take(9) == ["b", "c", "a"]


def test_lane_that_is_aside_is_left_alone_for_a_while() -> None:
    lanes = lanes_with("a", "b")
    lanes.set_aside("a", 5.0)
    lanes.work("a")
    lanes.slot("a")
    lanes.polled(["a"])
    lanes.end_aside(5.0 + ASIDE_SECONDS - 1)
    assert lanes.take(9) == ["b"]
    assert not lanes.takes_newcomers("a")
    lanes.end_aside(5.0 + ASIDE_SECONDS)
    assert lanes.take(9) == ["b", "a"]


def test_full_lane_leaves_the_line_until_a_slot_may_be_free() -> None:
    lanes = lanes_with("a", "b")
    lanes.saw(full("a"), 0.0)
    assert lanes.take(9) == ["b"]
    lanes.work("a")
    assert lanes.take(9) == ["b"]
    lanes.slot("a")
    assert lanes.take(9) == ["b", "a"]


def test_dry_lane_leaves_the_line_until_something_waits() -> None:
    lanes = lanes_with("a")
    lanes.saw(dry("a"), 0.0)
    assert not lanes.has_ready
    lanes.slot("a")
    assert not lanes.has_ready
    lanes.work("a")
    assert lanes.take(1) == ["a"]


def test_poll_has_every_lane_with_work_looked_at_again() -> None:
    lanes = lanes_with("a")
    lanes.saw(full("a"), 0.0)
    lanes.polled(["a", "b"])
    assert lanes.ready_count == 2


def test_capacity_is_told_once_per_change() -> None:
    lanes = lanes_with("a")
    assert lanes.saw(full("a"), 0.0)
    assert not lanes.saw(full("a"), 1.0)
    assert not lanes.saw(busy("a"), 2.0)
    assert lanes.saw(full("a"), 3.0)


def test_full_lane_without_work_is_not_at_capacity() -> None:
    assert not Lanes().saw(LaneView("a", 5, free=1, taken=1, has_more=False), 0.0)


def test_newcomers_go_ahead_where_nobody_waits_and_slots_may_be_free() -> None:
    lanes = Lanes()
    assert lanes.takes_newcomers("unknown")
    lanes.work("a")
    assert not lanes.takes_newcomers("a")
    lanes.saw(dry("a"), 0.0)
    assert lanes.takes_newcomers("a")
    lanes.saw(LaneView("a", 5, free=1, taken=1, has_more=False), 0.0)
    assert not lanes.takes_newcomers("a")


def test_slot_of_an_unknown_workspace_changes_nothing() -> None:
    lanes = Lanes()
    lanes.slot("never heard of")
    assert not lanes.has_ready


def test_limits_are_known_from_their_revision_on() -> None:
    lanes = Lanes()
    assert not lanes.knows_limits("a", 3)
    lanes.limits_stored("a", 3, 100)
    assert lanes.knows_limits("a", 3)
    assert lanes.knows_limits("a", 2)
    assert not lanes.knows_limits("a", 4)


def test_changed_limits_may_have_opened_slots() -> None:
    lanes = lanes_with("a")
    lanes.saw(full("a"), 0.0)
    lanes.limits_stored("a", 1, 100)
    assert lanes.take(1) == ["a"]
    lanes.saw(full("a"), 0.0)
    lanes.limits_stored("a", 1, 100)
    assert not lanes.has_ready


def counted(waiting: int, queued_max: int) -> Lanes:
    """As counted at 0.0."""
    lanes = Lanes()
    lanes.limits_stored("a", 1, queued_max)
    lanes.saw(LaneView("a", 5, free=5, taken=0, has_more=True, queued=waiting), 0.0)
    return lanes


def test_waiting_is_counted_at_first_and_from_time_to_time_while_far_from_the_limit() -> None:
    lanes = Lanes()
    assert lanes.waiting("a", 1, 0.0) is None
    lanes.limits_stored("a", 1, 100)
    assert lanes.waiting("a", 1, 0.0) is None
    lanes = counted(10, queued_max=100)
    assert lanes.waiting("a", 1, COUNT_TRUSTED_SECONDS) == 10
    assert lanes.waiting("a", 1, COUNT_TRUSTED_SECONDS + 0.1) is None


def test_near_the_limit_counting_goes_at_most_over_so_many_rows_a_second() -> None:
    near = counted(60, queued_max=100)
    assert near.waiting("a", 1, 0.001) is None, "few rows are counted in about every turn"
    assert counted(10, queued_max=100).waiting("a", 40, 0.001) is None, "all that arrive would come near it"
    full = counted(100_000, queued_max=100_000)
    trusted = 100_000 / COUNTED_PER_SECOND
    assert full.waiting("a", 1, trusted) == 100_000
    assert full.waiting("a", 1, trusted + 0.01) is None


def test_what_a_turn_adds_or_takes_is_added_to_the_count() -> None:
    lanes = counted(10, queued_max=1_000_000)
    lanes.saw(LaneView("a", 5, free=5, taken=2, has_more=True, added=3), 0.1)
    lanes.saw(LaneView("a", 5, free=5, taken=5, has_more=True, added=-5), 0.1)
    assert lanes.waiting("a", 1, 0.2) == 8
    lanes.saw(LaneView("a", 5, free=5, taken=5, has_more=True, added=-50), 0.1)
    assert lanes.waiting("a", 1, 0.2) == 0


def test_lane_of_an_unknown_workspace_is_dropped() -> None:
    lanes = lanes_with("a")
    lanes.is_unknown("a")
    assert not lanes.has_ready
    assert not lanes.has_waiting


def test_a_slot_is_wanted_while_anything_waits_in_a_full_lane_too() -> None:
    lanes = Lanes()
    lanes.limits_stored("a", 1, 10)
    lanes.polled(["a", "b"])
    lanes.saw(full("a"), 0.0)
    lanes.saw(dry("b"), 0.0)
    assert lanes.has_waiting


def test_a_slot_is_wanted_by_nobody_where_nothing_waits() -> None:
    lanes = lanes_with("a")
    lanes.limits_stored("b", 1, 10)
    lanes.saw(dry("a"), 0.0)
    assert not lanes.has_waiting


def test_idle_lanes_are_forgotten_when_there_are_too_many() -> None:
    lanes = lanes_with("keeps")
    for number in range(LANES_KEPT_MAX):
        lanes.limits_stored(str(number), 1, 10)
    assert lanes.knows_limits(str(LANES_KEPT_MAX - 1), 1)
    assert not lanes.knows_limits("0", 1)
    assert lanes.take(1) == ["keeps"]
