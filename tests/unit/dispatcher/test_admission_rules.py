"""Seats, releases, lateness, and how a turn is split: the small rules of admission."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from services.chassis.server import INTERNAL
from services.dispatcher.core import mail
from services.dispatcher.core.items import (
    Finished,
    LateReason,
    LeaseReport,
    Limits,
    Newcomer,
    Parked,
    Released,
    State,
)
from services.dispatcher.core.lateness import Held, late_reason, refusal_of_held
from services.dispatcher.core.releases import BACKOFF_SECONDS, fate_of
from services.dispatcher.core.seats import reach, seat_order, shares
from services.dispatcher.core.turn import Turn, TurnResult

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("room", "order"),
    [([], []), ([3], [0, 0, 0]), ([2, 2], [1, 0, 1, 0]), ([1, 3], [1, 0, 1, 1]), ([0, 2, 1], [1, 2, 1])],
)
def test_seats_alternate_and_those_with_more_room_go_first(room: list[int], order: list[int]) -> None:
    assert seat_order(room) == order


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
    assert fate_of(Released("e", 1), 2) == (State.PENDING, 2, 0.0, "", "")


def test_failed_dispatch_waits_longer_each_time_and_dies_at_the_third() -> None:
    failed = Released("e", 1, is_failed=True, reason="AWAY", message="m")
    first, second, third = (fate_of(failed, before) for before in range(3))
    assert (first.state, first.attempts, first.wake_seconds) == (State.PARKED, 1, BACKOFF_SECONDS)
    assert second.state is State.PARKED
    assert second.wake_seconds > first.wake_seconds
    assert third == (State.FAILED, 3, 0.0, "AWAY", "m")


def test_permanent_failure_dies_at_once_and_has_a_reason() -> None:
    assert fate_of(Released("e", 1, is_permanent=True), 0) == (State.FAILED, 1, 0.0, "DISPATCH_FAILED", "")


ROW = Held(epoch=7, state=State.PARKED, holder=None)


@pytest.mark.parametrize(
    ("report", "row", "reason"),
    [
        (Finished("e", 7), None, None),
        (Finished("e", 7), ROW, LateReason.EPOCH_STALE),
        (Parked("e", 7, None), None, LateReason.LEASE_UNKNOWN),
        (Parked("e", 7, None), ROW, None),
        (Released("e", 6), ROW, LateReason.EPOCH_STALE),
    ],
)
def test_report_without_effect_is_explained(
    report: LeaseReport, row: Held | None, reason: LateReason | None
) -> None:
    assert late_reason(report, row) is reason


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (None, LateReason.LEASE_UNKNOWN),
        (Held(7, State.CLAIMED, "me"), None),
        (Held(7, State.DISPATCHED, "me"), None),
        (Held(8, State.CLAIMED, "me"), LateReason.EPOCH_STALE),
        (Held(7, State.CLAIMED, "other"), LateReason.EPOCH_STALE),
        (Held(7, State.PENDING, None), LateReason.EPOCH_STALE),
    ],
)
def test_held_lease_is_accepted_only_from_its_holder(row: Held | None, reason: LateReason | None) -> None:
    assert refusal_of_held(7, "me", row) is reason


def newcomers(count: int) -> list[Newcomer]:
    return [Newcomer(str(n), "w", 3, None, "", b"", b"", Limits(1, 1, 1)) for n in range(count)]


def turn_of(newcomer_count: int, finished: int = 0, parked: int = 0) -> Turn:
    return Turn(
        now=NOW,
        newcomers=newcomers(newcomer_count),
        newcomer_seats=[-1] * newcomer_count,
        finished=[Finished(str(n), n) for n in range(finished)],
        parked=[Parked(str(n), n, None) for n in range(parked)],
        lanes=["w"],
        lane_seats=[0],
        holders=["h"],
    )


@pytest.mark.parametrize(
    ("newcomer_count", "finished", "parked"),
    [(2, 0, 0), (7, 0, 0), (3, 2, 0), (0, 5, 0), (0, 1, 1), (0, 0, 2), (1, 1, 0)],
)
def test_halves_hold_all_in_order_and_each_has_less(newcomer_count: int, finished: int, parked: int) -> None:
    whole = turn_of(newcomer_count, finished, parked)
    first, second = whole.halves()
    assert 0 < first.items < whole.items
    assert 0 < second.items < whole.items
    assert [*first.newcomers, *second.newcomers] == whole.newcomers
    assert len(first.newcomer_seats) == len(first.newcomers)
    assert [*first.finished, *second.finished] == whole.finished
    assert [*first.parked, *second.parked] == whole.parked


def test_items_and_claims_of_a_turn_stand_apart() -> None:
    whole = replace(turn_of(2, 1, 1), lanes=["v", "w"], lane_seats=[0, 0], ending_seats=[0])
    items = whole.without_claims()
    assert (items.items, items.has_claims) == (4, False)
    lane = whole.claim_of("w", [0])
    assert (lane.items, lane.lanes, lane.lane_seats, lane.ending_seats) == (0, ["w"], [0], ())
    ending = whole.claim_of_ending()
    assert (ending.items, ending.lanes, ending.lane_seats, ending.ending_seats) == (0, (), (), [0])
    assert whole.has_claims
    assert ending.has_claims


def test_results_of_halves_join_in_order() -> None:
    first, second = TurnResult(finished=["a"], woken=["x"]), TurnResult(finished=[None], parked=["b"])
    second.refused_lanes, second.is_ending_refused = ["w"], True
    first.join(second)
    assert (first.refused_lanes, first.is_ending_refused) == (["w"], True)
    assert (first.finished, first.parked, first.woken) == (["a", None], ["b"], ["x"])


def test_turn_without_anything_is_empty() -> None:
    assert Turn(now=NOW).is_empty
    assert not turn_of(0).is_empty


@pytest.mark.parametrize(("places", "lanes", "each"), [(500, 1, 500), (500, 100, 10), (6, 3, 4), (1, 9, 1)])
def test_claim_reaches_at_least_its_fair_share_into_each_lane(places: int, lanes: int, each: int) -> None:
    assert reach(places, lanes) == each


def test_whole_mailbox_goes_with_one_grant_over_a_stream_that_takes_it() -> None:
    assert mail.GRANT_BYTES_MAX >= mail.MAILBOX_BYTES_MAX
    largest = mail.CLAIM_BYTES_MAX + mail.GRANT_BYTES_MAX + mail.MEBIBYTE
    assert largest < INTERNAL.receive_bytes_max
    assert mail.MAILBOX_ENDING_MESSAGES > 0
    assert mail.MAILBOX_ENDING_BYTES > 0
