"""The composition of a batch: the new starts that go ahead at once, the claims, and their holders."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from services.dispatcher.core.batch import AdmissionBatch
from services.dispatcher.core.composing import ENDING_PER_BATCH, compose
from services.dispatcher.core.items import LeaseFinished, LeaseParked, NewStart, WorkspaceLimits, WorkspaceView
from services.dispatcher.core.workspace_queues import WorkspaceQueues

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = WorkspaceLimits(5, 1_000, 1)


def start(name: str, workspace: str = "w") -> NewStart:
    return NewStart(name, workspace, 3, None, "", b"h", b"s", LIMITS)


def composed(
    queues: WorkspaceQueues,
    starts: Sequence[NewStart] = (),
    reports: Sequence[LeaseFinished | LeaseParked] = (),
    rooms: Mapping[str, int] | None = None,
    *,
    is_ending_ready: bool = False,
) -> AdmissionBatch:
    return compose(queues, starts, reports, rooms or {}, is_ending_ready=is_ending_ready, now=NOW, monotonic=0.0)


def test_new_starts_go_ahead_while_there_is_credit() -> None:
    batch = composed(WorkspaceQueues(), [start("a"), start("b"), start("c")], rooms={"h": 1, "i": 1})
    assert sorted(batch.new_start_holders) == [-1, 0, 1]
    assert batch.new_start_holders[2] == -1
    assert (batch.holders, batch.workspaces, batch.claim_holders) == (["h", "i"], [], ())


def test_new_start_of_a_workspace_where_others_wait_does_not_go_ahead() -> None:
    queues = WorkspaceQueues()
    queues.work_arrived("busy")
    batch = composed(queues, [start("a", "busy"), start("b", "idle")], rooms={"h": 4})
    assert batch.new_start_holders == [-1, 0]
    assert (batch.workspaces, batch.claim_holders) == (["busy"], [0, 0, 0])


def test_while_others_wait_new_starts_take_at_most_half_of_the_credit() -> None:
    queues = WorkspaceQueues()
    queues.work_arrived("busy")
    batch = composed(queues, [start(name, "idle") for name in "abcd"], rooms={"h": 4})
    assert batch.new_start_holders == [0, 0, -1, -1]
    assert batch.claim_holders == [0, 0]


def test_executions_to_be_ended_are_served_first() -> None:
    queues = WorkspaceQueues()
    queues.work_arrived("busy")
    batch = composed(queues, rooms={"h": ENDING_PER_BATCH}, is_ending_ready=True)
    assert batch.ending_holders == [0] * ENDING_PER_BATCH
    assert not batch.workspaces


def test_known_number_of_waiting_executions_goes_along() -> None:
    queues = WorkspaceQueues()
    queues.limits_stored("w", 1, 1_000)
    queues.update_from(WorkspaceView("w", 5, 1, 1, True, queued=7), 0.0)
    assert composed(queues, [start("a"), start("b", "other")]).waiting == {"w": 7}


def test_reports_lock_rows_in_the_order_of_their_ids() -> None:
    parked = [LeaseParked(name, 1, wake_time=None) for name in "db"]
    finished = [LeaseFinished(name, 1) for name in "ca"]
    batch = composed(WorkspaceQueues(), reports=[parked[0], finished[0], parked[1], finished[1]])
    assert [each.execution_id for each in batch.finished] == ["a", "c"]
    assert [each.execution_id for each in batch.parked] == ["b", "d"]
