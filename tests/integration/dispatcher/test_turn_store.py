"""A turn against PostgreSQL: admission, claims, fences, parks. Each test has a workspace of its own."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from services.dispatcher.core.items import LateReason, Limits, Outcome, Parked, Released
from services.dispatcher.core.turn import Turn
from services.dispatcher.handler.ports import Unstorable
from tests.integration.dispatcher.conftest import Rig, newcomer

HASH, OTHER_HASH = b"\x01" * 32, b"\x02" * 32


async def test_newcomer_goes_ahead_in_the_commit_that_holds_it(rig: Rig) -> None:
    await rig.limit("ahead", 5)
    came = newcomer("ahead")
    result = await rig.enqueue(came, seats=1)
    assert [each.outcome for each in result.admissions] == [Outcome.QUEUED]
    (place,) = result.places
    assert (place.execution_id, place.start, place.is_resumed) == (came.execution_id, came.order, False)
    assert await rig.rows("state, epoch, holder", f"execution_id = '{came.execution_id}'") == [
        (2, place.epoch, "holder-a")
    ]


async def test_newcomers_beyond_the_slots_wait(rig: Rig) -> None:
    await rig.limit("narrow", 2)
    result = await rig.enqueue(*[newcomer("narrow") for _ in range(5)], seats=5)
    assert len(result.places) == 2
    (lane,) = result.lanes
    assert (lane.free, lane.taken, lane.has_more, lane.queued) == (2, 2, True, 3)
    assert await rig.claim("narrow", places=10) == []
    assert await rig.finish(result.places[0]) == ["narrow"]
    assert len(await rig.claim("narrow", places=10)) == 1


async def test_newcomer_does_not_pass_those_who_wait(rig: Rig) -> None:
    await rig.limit("line", 5)
    await rig.enqueue(newcomer("line"))
    result = await rig.enqueue(newcomer("line"), seats=1)
    assert result.places == []
    assert result.lanes[0].has_more


async def test_claim_takes_urgent_then_priority_then_age(rig: Rig) -> None:
    await rig.limit("order", 10)
    ids = sorted(str(uuid.uuid4()) for _ in range(4))
    await rig.enqueue(
        newcomer("order", execution_id=ids[2], priority=3),
        newcomer("order", execution_id=ids[0], priority=3),
        newcomer("order", execution_id=ids[3], priority=5),
        newcomer("order", execution_id=ids[1], priority=1),
    )
    await rig.database.execute(
        "UPDATE dispatcher.queue SET urgent = true WHERE execution_id = %s::uuid", (ids[1],)
    )
    first = await rig.claim("order", places=2)
    assert {place.execution_id for place in first} == {ids[1], ids[3]}
    (third,) = await rig.claim("order", places=1)
    assert third.execution_id == ids[0]


async def test_claim_serves_workspaces_round_robin(rig: Rig) -> None:
    for name, count in (("many", 20), ("few", 2), ("one", 1)):
        await rig.limit(name, 100)
        await rig.enqueue(*[newcomer(name) for _ in range(count)])
    places = await rig.claim("many", "few", "one", places=6)
    by_workspace = {name: sum(place.workspace == name for place in places) for name in ("many", "few", "one")}
    assert by_workspace == {"many": 3, "few": 2, "one": 1}


async def test_finish_is_fenced_by_its_epoch(rig: Rig) -> None:
    await rig.limit("fence", 5)
    (place,) = (await rig.enqueue(newcomer("fence"), seats=1)).places
    assert await rig.finish((place.execution_id, place.epoch - 1)) == [None]
    assert await rig.leases.end(["holder-a"])
    assert await rig.finish(place) == [None]
    (again,) = await rig.claim("fence", places=1, holder="holder-b")
    assert again.epoch > place.epoch
    assert again.is_resumed
    assert await rig.finish(place) == [None]
    assert await rig.finish(again) == ["fence"]
    assert await rig.finish(again) == [None]


async def test_repeated_enqueue_has_the_first_answer_even_when_the_row_is_gone(rig: Rig) -> None:
    await rig.limit("again", 5)
    came = newcomer("again", request_id="r-1", request_hash=HASH)
    (place,) = (await rig.enqueue(came, seats=1)).places
    result = await rig.enqueue(came, seats=1)
    assert ([each.outcome for each in result.admissions], result.places) == ([Outcome.QUEUED], [])
    await rig.finish(place)
    result = await rig.enqueue(came, seats=1)
    assert ([each.outcome for each in result.admissions], result.places) == ([Outcome.QUEUED], [])
    other = newcomer("again", request_id="r-1", request_hash=HASH)
    (admission,) = (await rig.enqueue(other, seats=1)).admissions
    assert (admission.outcome, admission.existing_execution_id) == (Outcome.EXISTING, came.execution_id)


async def test_request_id_with_other_content_is_refused(rig: Rig) -> None:
    await rig.limit("mismatch", 5)
    came = newcomer("mismatch", request_id="r-1", request_hash=HASH)
    await rig.enqueue(came)
    result = await rig.enqueue(newcomer("mismatch", request_id="r-1", request_hash=OTHER_HASH))
    assert result.admissions[0].outcome is Outcome.REQUEST_ID_REUSED
    assert result.admissions[0].existing_execution_id == came.execution_id
    assert len(await rig.rows(where="workspace = 'mismatch'")) == 1


async def test_same_request_id_of_another_workspace_is_another_request(rig: Rig) -> None:
    for name in ("mine", "yours"):
        await rig.limit(name, 5)
        result = await rig.enqueue(newcomer(name, request_id="same", request_hash=HASH))
        assert result.admissions[0].outcome is Outcome.QUEUED


async def test_queue_is_full_exactly_at_its_limit(rig: Rig) -> None:
    await rig.limit("full", 1, queued_max=3)
    result = await rig.enqueue(*[newcomer("full", limits=Limits(1, 3, 1)) for _ in range(6)], seats=6)
    outcomes = [each.outcome for each in result.admissions]
    assert (outcomes.count(Outcome.QUEUED), outcomes.count(Outcome.QUEUE_FULL)) == (4, 2)
    (admission,) = (await rig.enqueue(newcomer("full"), seats=1)).admissions
    assert admission.outcome is Outcome.QUEUE_FULL


async def test_older_limits_never_overwrite_newer(rig: Rig) -> None:
    await rig.limit("limits", 7, revision=3)
    await rig.limit("limits", 1, revision=2)
    rows = await rig.database.fetch(
        "SELECT executions_max FROM dispatcher.tenants WHERE workspace = 'limits'"
    )
    assert rows == [(7,)]


async def test_item_that_cannot_be_stored_fails_the_turn_whole(rig: Rig) -> None:
    await rig.limit("bad", 5)
    good, bad = newcomer("bad"), newcomer("bad", request_id="nul\x00")
    with pytest.raises(Unstorable):
        await rig.enqueue(good, bad)
    assert await rig.rows(where="workspace = 'bad'") == []


async def test_parked_execution_gives_back_its_slot_and_wakes_by_time(rig: Rig) -> None:
    await rig.limit("park", 1)
    result = await rig.enqueue(newcomer("park"), newcomer("park"), seats=2)
    (place,) = result.places
    later = datetime.now(UTC) + timedelta(hours=1)
    turn = Turn(
        now=datetime.now(UTC),
        parked=[Parked(place.execution_id, place.epoch, later)],
        lanes=["park"],
        lane_seats=[0],
        holders=["holder-a"],
    )
    result = await rig.queue.turn(turn)
    assert (result.parked, result.woken) == (["park"], [])
    assert [each.execution_id != place.execution_id for each in result.places] == [True]
    assert await rig.rows("state, wake_time", f"execution_id = '{place.execution_id}'") == [(4, later)]


async def test_parking_with_a_time_that_has_passed_wakes_at_once(rig: Rig) -> None:
    await rig.limit("late-park", 1)
    (place,) = (await rig.enqueue(newcomer("late-park"), seats=1)).places
    past = datetime.now(UTC) - timedelta(seconds=1)
    result = await rig.queue.turn(Turn(now=past, parked=[Parked(place.execution_id, place.epoch, past)]))
    assert result.woken == ["late-park"]


async def test_late_reports_have_reasons_and_repeated_ones_have_none(rig: Rig) -> None:
    await rig.limit("late", 5)
    finished, moved = (await rig.enqueue(newcomer("late"), newcomer("late"), seats=2)).places
    await rig.finish(finished)
    parked = Parked(moved.execution_id, moved.epoch, None)
    await rig.queue.turn(Turn(now=datetime.now(UTC), parked=[parked]))
    from services.dispatcher.core.items import Finished

    assert await rig.leases.reasons(
        [
            Finished(finished.execution_id, finished.epoch),
            parked,
            Parked(moved.execution_id, moved.epoch - 1, None),
            Released(finished.execution_id, finished.epoch),
            Finished(moved.execution_id, moved.epoch),
        ]
    ) == [None, None, LateReason.EPOCH_STALE, LateReason.LEASE_UNKNOWN, LateReason.EPOCH_STALE]
