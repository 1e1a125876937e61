"""The order in which workspaces are looked at, and the workspaces that are left alone."""

from services.dispatcher.core.items import WorkspaceView
from services.dispatcher.core.workspace_queues import (
    ASIDE_SECONDS,
    COUNT_TRUSTED_SECONDS,
    COUNTED_PER_SECOND,
    QUEUES_KEPT_MAX,
    WorkspaceQueues,
)


def full(workspace: str) -> WorkspaceView:
    return WorkspaceView(workspace, executions_max=5, free=2, taken=2, has_more=True)


def dry(workspace: str) -> WorkspaceView:
    return WorkspaceView(workspace, executions_max=5, free=5, taken=1, has_more=False)


def busy(workspace: str) -> WorkspaceView:
    return WorkspaceView(workspace, executions_max=5, free=5, taken=2, has_more=True)


def queues_with(*workspaces: str) -> WorkspaceQueues:
    queues = WorkspaceQueues()
    for workspace in workspaces:
        queues.work_arrived(workspace)
    return queues


def test_queues_are_served_in_turn() -> None:
    queues = queues_with("a", "b", "c")
    assert queues.take(2) == ["a", "b"]
    assert queues.take(2) == ["c", "a"]
    assert queues.take(9) == ["b", "c", "a"]


def test_queue_that_is_aside_is_left_alone_for_a_while() -> None:
    queues = queues_with("a", "b")
    queues.set_aside("a", 5.0)
    queues.work_arrived("a")
    queues.slot_freed("a")
    queues.polled(["a"])
    queues.end_aside(5.0 + ASIDE_SECONDS - 1)
    assert queues.take(9) == ["b"]
    assert not queues.takes_new_starts("a")
    queues.end_aside(5.0 + ASIDE_SECONDS)
    assert queues.take(9) == ["b", "a"]


def test_full_queue_leaves_the_line_until_a_slot_may_be_free() -> None:
    queues = queues_with("a", "b")
    queues.update_from(full("a"), 0.0)
    assert queues.take(9) == ["b"]
    queues.work_arrived("a")
    assert queues.take(9) == ["b"]
    queues.slot_freed("a")
    assert queues.take(9) == ["b", "a"]


def test_empty_queue_leaves_the_line_until_something_waits() -> None:
    queues = queues_with("a")
    queues.update_from(dry("a"), 0.0)
    assert not queues.has_ready
    queues.slot_freed("a")
    assert not queues.has_ready
    queues.work_arrived("a")
    assert queues.take(1) == ["a"]


def test_poll_has_every_queue_with_work_looked_at_again() -> None:
    queues = queues_with("a")
    queues.update_from(full("a"), 0.0)
    queues.polled(["a", "b"])
    assert queues.ready_count == 2


def test_capacity_is_told_once_per_change() -> None:
    queues = queues_with("a")
    assert queues.update_from(full("a"), 0.0)
    assert not queues.update_from(full("a"), 1.0)
    assert not queues.update_from(busy("a"), 2.0)
    assert queues.update_from(full("a"), 3.0)
    assert not WorkspaceQueues().update_from(WorkspaceView("a", 5, free=1, taken=1, has_more=False), 0.0)


def test_new_starts_go_ahead_where_nobody_waits_and_slots_may_be_free() -> None:
    queues = WorkspaceQueues()
    assert queues.takes_new_starts("unknown")
    queues.work_arrived("a")
    assert not queues.takes_new_starts("a")
    queues.update_from(dry("a"), 0.0)
    assert queues.takes_new_starts("a")
    queues.update_from(WorkspaceView("a", 5, free=1, taken=1, has_more=False), 0.0)
    assert not queues.takes_new_starts("a")


def test_slot_of_an_unknown_workspace_changes_nothing() -> None:
    queues = WorkspaceQueues()
    queues.slot_freed("never heard of")
    assert not queues.has_ready


def test_limits_are_known_from_their_revision_on() -> None:
    queues = WorkspaceQueues()
    assert not queues.knows_limits("a", 3)
    queues.limits_stored("a", 3, 100)
    assert queues.knows_limits("a", 3)
    assert queues.knows_limits("a", 2)
    assert not queues.knows_limits("a", 4)


def test_changed_limits_may_have_opened_slots() -> None:
    queues = queues_with("a")
    queues.update_from(full("a"), 0.0)
    queues.limits_stored("a", 1, 100)
    assert queues.take(1) == ["a"]
    queues.update_from(full("a"), 0.0)
    queues.limits_stored("a", 1, 100)
    assert not queues.has_ready


def counted(waiting: int, queued_max: int) -> WorkspaceQueues:
    """A workspace whose waiting rows were counted at 0.0."""
    queues = WorkspaceQueues()
    queues.limits_stored("a", 1, queued_max)
    queues.update_from(WorkspaceView("a", 5, free=5, taken=0, has_more=True, queued=waiting), 0.0)
    return queues


def test_waiting_is_counted_at_first_and_from_time_to_time_while_far_from_the_limit() -> None:
    queues = WorkspaceQueues()
    assert queues.waiting("a", 1, 0.0) is None
    queues.limits_stored("a", 1, 100)
    assert queues.waiting("a", 1, 0.0) is None
    queues = counted(10, queued_max=100)
    assert queues.waiting("a", 1, COUNT_TRUSTED_SECONDS) == 10
    assert queues.waiting("a", 1, COUNT_TRUSTED_SECONDS + 0.1) is None


def test_near_the_limit_counting_goes_at_most_over_so_many_rows_a_second() -> None:
    near = counted(60, queued_max=100)
    assert near.waiting("a", 1, 0.001) is None, "few rows are counted in about every batch"
    assert counted(10, queued_max=100).waiting("a", 40, 0.001) is None, "all that arrive would come near it"
    full = counted(100_000, queued_max=100_000)
    trusted = 100_000 / COUNTED_PER_SECOND
    assert full.waiting("a", 1, trusted) == 100_000
    assert full.waiting("a", 1, trusted + 0.01) is None


def test_changes_of_a_batch_are_added_to_the_count() -> None:
    queues = counted(10, queued_max=1_000_000)
    queues.update_from(WorkspaceView("a", 5, free=5, taken=2, has_more=True, added=3), 0.1)
    queues.update_from(WorkspaceView("a", 5, free=5, taken=5, has_more=True, added=-5), 0.1)
    assert queues.waiting("a", 1, 0.2) == 8
    queues.update_from(WorkspaceView("a", 5, free=5, taken=5, has_more=True, added=-50), 0.1)
    assert queues.waiting("a", 1, 0.2) == 0


def test_queue_of_an_unknown_workspace_is_dropped() -> None:
    queues = queues_with("a")
    queues.forget("a")
    assert not queues.has_ready
    assert not queues.has_waiting


def test_a_slot_is_wanted_while_anything_waits_in_a_full_queue_too() -> None:
    queues = WorkspaceQueues()
    queues.limits_stored("a", 1, 10)
    queues.polled(["a", "b"])
    queues.update_from(full("a"), 0.0)
    queues.update_from(dry("b"), 0.0)
    assert queues.has_waiting
    queues.update_from(dry("a"), 0.0)
    assert not queues.has_waiting


def test_idle_queues_are_forgotten_when_there_are_too_many() -> None:
    queues = queues_with("keeps")
    for number in range(QUEUES_KEPT_MAX):
        queues.limits_stored(str(number), 1, 10)
    assert queues.knows_limits(str(QUEUES_KEPT_MAX - 1), 1)
    assert not queues.knows_limits("0", 1)
    assert queues.take(1) == ["keeps"]
