"""The small rules of admission: holders of places, releases, late reports, and how a batch is split."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from services.chassis.grpc.limits import INTERNAL
from services.dispatcher.core import mailbox_limits
from services.dispatcher.core.batch import AdmissionBatch, BatchResult
from services.dispatcher.core.composing import holder_order, reach, shares
from services.dispatcher.core.items import (
    LateReason,
    LeaseFinished,
    LeaseParked,
    LeaseReleased,
    LeaseReport,
    NewStart,
    State,
    WorkspaceLimits,
)
from services.dispatcher.core.late_reasons import LeasedRow, late_reason, lease_refusal
from services.dispatcher.core.releases import BACKOFF_SECONDS, fate_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("room", "order"),
    [([], []), ([3], [0, 0, 0]), ([2, 2], [1, 0, 1, 0]), ([1, 3], [1, 0, 1, 1]), ([0, 2, 1], [1, 2, 1])],
)
def test_places_alternate_and_holders_with_more_room_go_first(room: list[int], order: list[int]) -> None:
    assert holder_order(room) == order


@pytest.mark.parametrize(
    ("room", "wanted", "shared"),
    [
        ([], 5, []),
        ([10], 3, [3]),
        ([10, 10], 5, [2, 3]),
        ([1, 10], 6, [1, 5]),
        ([2, 2], 9, [2, 2]),
        ([5, 5], 0, [0, 0]),
    ],
)
def test_credit_is_reserved_evenly(room: list[int], wanted: int, shared: list[int]) -> None:
    assert shares(room, wanted) == shared


def test_release_without_failure_charges_nothing() -> None:
    assert fate_of(LeaseReleased("e", 1), 2) == (State.PENDING, 2, 0.0, "", "")


def test_failed_dispatch_waits_longer_each_time_and_dies_at_the_third() -> None:
    failed = LeaseReleased("e", 1, is_failed=True, reason="AWAY", message="m")
    first, second, third = (fate_of(failed, before) for before in range(3))
    assert (first.state, first.attempts, first.wake_seconds) == (State.PARKED, 1, BACKOFF_SECONDS)
    assert second.state is State.PARKED
    assert second.wake_seconds > first.wake_seconds
    assert third == (State.FAILED, 3, 0.0, "AWAY", "m")


def test_permanent_failure_dies_at_once_and_has_a_reason() -> None:
    assert fate_of(LeaseReleased("e", 1, is_permanent=True), 0) == (State.FAILED, 1, 0.0, "DISPATCH_FAILED", "")


ROW = LeasedRow(epoch=7, state=State.PARKED, holder=None)


@pytest.mark.parametrize(
    ("report", "row", "reason"),
    [
        (LeaseFinished("e", 7), None, None),
        (LeaseFinished("e", 7), ROW, LateReason.EPOCH_STALE),
        (LeaseParked("e", 7, None), None, LateReason.LEASE_UNKNOWN),
        (LeaseParked("e", 7, None), ROW, None),
        (LeaseReleased("e", 6), ROW, LateReason.EPOCH_STALE),
    ],
)
def test_report_without_effect_is_explained(
    report: LeaseReport, row: LeasedRow | None, reason: LateReason | None
) -> None:
    assert late_reason(report, row) is reason


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (None, LateReason.LEASE_UNKNOWN),
        (LeasedRow(7, State.CLAIMED, "me"), None),
        (LeasedRow(7, State.DISPATCHED, "me"), None),
        (LeasedRow(8, State.CLAIMED, "me"), LateReason.EPOCH_STALE),
        (LeasedRow(7, State.CLAIMED, "other"), LateReason.EPOCH_STALE),
        (LeasedRow(7, State.PENDING, None), LateReason.EPOCH_STALE),
    ],
)
def test_held_lease_is_accepted_only_from_its_holder(row: LeasedRow | None, reason: LateReason | None) -> None:
    assert lease_refusal(7, "me", row) is reason


def new_starts(count: int) -> list[NewStart]:
    return [NewStart(str(n), "w", 3, None, "", b"", b"", WorkspaceLimits(1, 1, 1)) for n in range(count)]


def batch_of(new_start_count: int, finished: int = 0, parked: int = 0) -> AdmissionBatch:
    return AdmissionBatch(
        now=NOW,
        new_starts=new_starts(new_start_count),
        new_start_holders=[-1] * new_start_count,
        finished=[LeaseFinished(str(n), n) for n in range(finished)],
        parked=[LeaseParked(str(n), n, None) for n in range(parked)],
        workspaces=["w"],
        claim_holders=[0],
        holders=["h"],
    )


@pytest.mark.parametrize(
    ("new_start_count", "finished", "parked"),
    [(2, 0, 0), (7, 0, 0), (3, 2, 0), (0, 5, 0), (0, 1, 1), (0, 0, 2), (1, 1, 0)],
)
def test_halves_hold_all_in_order_and_each_has_less(new_start_count: int, finished: int, parked: int) -> None:
    whole = batch_of(new_start_count, finished, parked)
    first, second = whole.halves()
    assert 0 < first.items < whole.items
    assert 0 < second.items < whole.items
    assert [*first.new_starts, *second.new_starts] == whole.new_starts
    assert len(first.new_start_holders) == len(first.new_starts)
    assert [*first.finished, *second.finished] == whole.finished
    assert [*first.parked, *second.parked] == whole.parked


def test_items_and_claims_of_a_batch_are_split() -> None:
    whole = replace(batch_of(2, 1, 1), workspaces=["v", "w"], claim_holders=[0, 0], ending_holders=[0])
    items = whole.without_claims()
    assert (items.items, items.is_claiming) == (4, False)
    workspace = whole.claim_of("w", [0])
    assert (workspace.items, workspace.workspaces) == (0, ["w"])
    assert (workspace.claim_holders, workspace.ending_holders) == ([0], ())
    ending = whole.claim_of_ending()
    assert (ending.items, ending.workspaces, ending.claim_holders, ending.ending_holders) == (0, (), (), [0])
    assert whole.is_claiming
    assert ending.is_claiming
    assert AdmissionBatch(now=NOW).is_empty
    assert not whole.is_empty


def test_results_of_halves_join_in_order() -> None:
    finished, parked = LeaseFinished("a", 1), LeaseParked("b", 1, None)
    first, second = BatchResult(took_effect={finished: "v"}, woken=["x"]), BatchResult(took_effect={parked: "w"})
    second.refused_workspaces, second.is_ending_refused = ["w"], True
    first.join(second)
    assert (first.refused_workspaces, first.is_ending_refused) == (["w"], True)
    assert (first.took_effect, first.woken) == ({finished: "v", parked: "w"}, ["x"])


@pytest.mark.parametrize(("claims", "workspaces", "each"), [(500, 1, 500), (500, 100, 10), (6, 3, 4), (1, 9, 1)])
def test_claim_reaches_at_least_its_fair_share_into_each_workspace(claims: int, workspaces: int, each: int) -> None:
    assert reach(claims, workspaces) == each


def test_whole_mailbox_goes_with_one_grant_over_a_stream_that_takes_it() -> None:
    assert mailbox_limits.GRANT_BYTES_MAX >= mailbox_limits.MAILBOX_BYTES_MAX
    largest = mailbox_limits.CLAIM_BYTES_MAX + mailbox_limits.GRANT_BYTES_MAX + mailbox_limits.MEBIBYTE
    assert largest < INTERNAL.receive_bytes_max
    assert mailbox_limits.MAILBOX_ENDING_MESSAGES > 0
    assert mailbox_limits.MAILBOX_ENDING_BYTES > 0
