"""A batch against PostgreSQL: admission, claims, fences, parks. Each test has a workspace of its own."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from services.dispatcher.app.ports import Unstorable
from services.dispatcher.core.batch import AdmissionBatch
from services.dispatcher.core.items import (
    EnqueueOutcome,
    LateReason,
    LeaseFinished,
    LeaseParked,
    LeaseReleased,
    MailboxMessage,
    WorkspaceLimits,
)
from tests.integration.dispatcher.conftest import Rig, new_start

HASH, OTHER_HASH = b"\x01" * 32, b"\x02" * 32


async def test_new_start_goes_ahead_in_the_commit_that_holds_it(rig: Rig) -> None:
    await rig.limit("ahead", 5)
    came = new_start("ahead")
    result = await rig.enqueue(came, holders=1)
    assert [each.outcome for each in result.admissions] == [EnqueueOutcome.QUEUED]
    (claim,) = result.claims
    assert (claim.execution_id, claim.start, claim.is_resumed) == (came.execution_id, came.order, False)
    assert await rig.rows("state, epoch, holder", f"execution_id = '{came.execution_id}'") == [
        (2, claim.epoch, "holder-a")
    ]


async def test_new_starts_beyond_the_slots_wait(rig: Rig) -> None:
    await rig.limit("narrow", 2)
    result = await rig.enqueue(*[new_start("narrow") for _ in range(5)], holders=5)
    assert len(result.claims) == 2
    (workspace,) = result.workspaces
    assert (workspace.free, workspace.taken, workspace.has_more, workspace.queued) == (2, 2, True, 3)
    assert await rig.claim("narrow", claims=10) == []
    assert await rig.finish(result.claims[0]) == ["narrow"]
    assert len(await rig.claim("narrow", claims=10)) == 1


async def test_new_start_does_not_pass_those_who_wait(rig: Rig) -> None:
    await rig.limit("line", 5)
    await rig.enqueue(new_start("line"))
    result = await rig.enqueue(new_start("line"), holders=1)
    assert result.claims == []
    assert result.workspaces[0].has_more


async def test_claim_takes_urgent_then_priority_then_age(rig: Rig) -> None:
    await rig.limit("order", 10)
    ids = sorted(str(uuid.uuid4()) for _ in range(4))
    await rig.enqueue(
        new_start("order", execution_id=ids[2], priority=3),
        new_start("order", execution_id=ids[0], priority=3),
        new_start("order", execution_id=ids[3], priority=5),
        new_start("order", execution_id=ids[1], priority=1),
    )
    await rig.database.execute("UPDATE dispatcher.queue SET urgent = true WHERE execution_id = %s::uuid", (ids[1],))
    first = await rig.claim("order", claims=2)
    assert {claim.execution_id for claim in first} == {ids[1], ids[3]}
    (third,) = await rig.claim("order", claims=1)
    assert third.execution_id == ids[0]


@pytest.mark.parametrize(("seconds", "is_first"), [(239, False), (241, True)])
async def test_low_priority_waits_at_most_a_minute_for_each_level_above_it(
    rig: Rig, seconds: int, *, is_first: bool
) -> None:
    workspace = f"aging-{seconds}"
    await rig.limit(workspace, 10)
    low, high = new_start(workspace, priority=1), new_start(workspace, priority=5)
    await rig.enqueue(low)
    await rig.database.execute(
        "UPDATE dispatcher.queue SET enqueue_time = enqueue_time - %s * interval '1 second'"
        " WHERE execution_id = %s::uuid",
        (seconds, low.execution_id),
    )
    await rig.enqueue(high)
    (first,) = await rig.claim(workspace, claims=1)
    assert (first.execution_id == low.execution_id) is is_first


async def test_claim_serves_workspaces_round_robin(rig: Rig) -> None:
    for name, count in (("many", 20), ("few", 2), ("one", 1)):
        await rig.limit(name, 100)
        await rig.enqueue(*[new_start(name) for _ in range(count)])
    claims = await rig.claim("many", "few", "one", claims=6)
    by_workspace = {name: sum(claim.workspace == name for claim in claims) for name in ("many", "few", "one")}
    assert by_workspace == {"many": 3, "few": 2, "one": 1}


async def test_finish_is_fenced_by_its_epoch(rig: Rig) -> None:
    (claim,) = await rig.leased("fence")
    assert await rig.finish((claim.execution_id, claim.epoch - 1)) == [None]
    assert await rig.leases.end(["holder-a"])
    assert await rig.finish(claim) == [None]
    (again,) = await rig.claim("fence", claims=1, holder="holder-b")
    assert again.epoch > claim.epoch
    assert again.is_resumed
    assert await rig.finish(claim) == [None]
    assert await rig.finish(again) == ["fence"]
    assert await rig.finish(again) == [None]


async def test_repeated_enqueue_has_the_first_answer_even_when_the_row_is_gone(rig: Rig) -> None:
    await rig.limit("again", 5)
    came = new_start("again", request_id="r-1", request_hash=HASH)
    (claim,) = (await rig.enqueue(came, holders=1)).claims
    result = await rig.enqueue(came, holders=1)
    assert ([each.outcome for each in result.admissions], result.claims) == ([EnqueueOutcome.QUEUED], [])
    await rig.finish(claim)
    result = await rig.enqueue(came, holders=1)
    assert ([each.outcome for each in result.admissions], result.claims) == ([EnqueueOutcome.QUEUED], [])
    other = new_start("again", request_id="r-1", request_hash=HASH)
    (admission,) = (await rig.enqueue(other, holders=1)).admissions
    assert (admission.outcome, admission.existing_execution_id) == (EnqueueOutcome.EXISTING, came.execution_id)


async def test_request_id_with_other_content_is_refused(rig: Rig) -> None:
    await rig.limit("mismatch", 5)
    came = new_start("mismatch", request_id="r-1", request_hash=HASH)
    await rig.enqueue(came)
    result = await rig.enqueue(new_start("mismatch", request_id="r-1", request_hash=OTHER_HASH))
    assert result.admissions[0].outcome is EnqueueOutcome.REQUEST_ID_REUSED
    assert result.admissions[0].existing_execution_id == came.execution_id
    assert len(await rig.rows(where="workspace = 'mismatch'")) == 1


async def test_same_request_id_of_another_workspace_is_another_request(rig: Rig) -> None:
    for name in ("mine", "yours"):
        await rig.limit(name, 5)
        result = await rig.enqueue(new_start(name, request_id="same", request_hash=HASH))
        assert result.admissions[0].outcome is EnqueueOutcome.QUEUED


async def test_queue_is_full_exactly_at_its_limit(rig: Rig) -> None:
    await rig.limit("full", 1, queued_max=3)
    result = await rig.enqueue(*[new_start("full", limits=WorkspaceLimits(1, 3, 1)) for _ in range(6)], holders=6)
    outcomes = [each.outcome for each in result.admissions]
    assert (outcomes.count(EnqueueOutcome.QUEUED), outcomes.count(EnqueueOutcome.QUEUE_FULL)) == (4, 2)
    (admission,) = (await rig.enqueue(new_start("full"), holders=1)).admissions
    assert admission.outcome is EnqueueOutcome.QUEUE_FULL


async def test_known_count_is_taken_instead_of_counting(rig: Rig) -> None:
    await rig.limit("known", 1, queued_max=3)
    arrived = [new_start("known") for _ in range(3)]
    batch = AdmissionBatch(
        now=datetime.now(UTC), new_starts=arrived, new_start_holders=[0, -1, -1], waiting={"known": 2}, holders=["h"]
    )
    result = await rig.queue.commit(batch)
    outcomes = [each.outcome for each in result.admissions]
    assert outcomes == [EnqueueOutcome.QUEUED, EnqueueOutcome.QUEUED, EnqueueOutcome.QUEUE_FULL]
    (workspace,) = result.workspaces
    assert (workspace.added, workspace.queued) == (1, None), "who goes ahead at once has not waited"


async def test_older_limits_never_overwrite_newer(rig: Rig) -> None:
    await rig.limit("limits", 7, revision=3)
    await rig.limit("limits", 1, revision=2)
    rows = await rig.database.fetch("SELECT executions_max FROM dispatcher.tenants WHERE workspace = 'limits'")
    assert rows == [(7,)]


async def test_item_that_cannot_be_stored_fails_the_whole_batch(rig: Rig) -> None:
    await rig.limit("bad", 5)
    good, bad = new_start("bad"), new_start("bad", request_id="nul\x00")
    with pytest.raises(Unstorable):
        await rig.enqueue(good, bad)
    assert await rig.rows(where="workspace = 'bad'") == []


async def test_parked_execution_gives_back_its_slot_and_wakes_by_time(rig: Rig) -> None:
    await rig.limit("park", 1)
    result = await rig.enqueue(new_start("park"), new_start("park"), holders=2)
    (claim,) = result.claims
    later = datetime.now(UTC) + timedelta(hours=1)
    batch = AdmissionBatch(
        now=datetime.now(UTC),
        parked=[parked := LeaseParked(claim.execution_id, claim.epoch, later)],
        workspaces=["park"],
        claim_holders=[0],
        holders=["holder-a"],
    )
    result = await rig.queue.commit(batch)
    assert (result.took_effect, result.woken) == ({parked: "park"}, [])
    assert [each.execution_id != claim.execution_id for each in result.claims] == [True]
    near = "wake_time BETWEEN now() + interval '59 minutes' AND now() + interval '61 minutes'"
    assert await rig.rows(f"state, {near}", f"execution_id = '{claim.execution_id}'") == [(4, True)]


async def test_parking_with_a_time_that_has_passed_wakes_at_once(rig: Rig) -> None:
    (claim,) = await rig.leased("late-park")
    past = datetime.now(UTC) - timedelta(seconds=1)
    assert (await rig.park(claim, past)).woken == ["late-park"]


async def test_message_that_was_handed_over_and_not_understood_wakes_nothing_at_once(rig: Rig) -> None:
    await rig.limit("strange", 5)
    await rig.enqueue(came := new_start("strange"))
    message = MailboxMessage(str(uuid.uuid4()), came.execution_id, "strange", b"of a newer version", is_ending=False)
    await rig.mailbox.deliver([message])
    older = "UPDATE dispatcher.mailbox SET create_time = create_time - interval '6 seconds' WHERE message_id = %s"
    await rig.database.execute(older, (message.message_id,))
    (claim,) = await rig.claim("strange", claims=1)
    assert claim.messages == [message.body]
    result = await rig.park(claim)
    assert ([*result.took_effect.values()], result.woken) == (["strange"], [])
    # Another coordinator may know it, so it is kept and offered again after a rest.
    rest = "wake_time BETWEEN now() + interval '20 seconds' AND now() + interval '31 seconds'"
    assert await rig.rows(f"state, {rest}", f"execution_id = '{claim.execution_id}'") == [(4, True)]
    (delivery,) = await rig.mailbox.deliver([message])
    assert delivery is not None
    assert delivery.was_woken
    assert (await rig.claim("strange", claims=1))[0].messages == [message.body]


async def test_message_that_was_committed_while_the_claim_was_reading_is_looked_at_again_soon(rig: Rig) -> None:
    (claim,) = await rig.leased("crossing")
    # The claim did not see it, though it was stored before the claim began.
    await rig.database.execute(
        "INSERT INTO dispatcher.mailbox (message_id, execution_id, body, create_time) SELECT 'crossing', execution_id,"
        " 'm', granted_time - interval '3 milliseconds' FROM dispatcher.queue WHERE execution_id = %s::uuid",
        (claim.execution_id,),
    )
    assert (await rig.park(claim)).woken == []
    soon = "wake_time < now() + interval '1 second'"
    assert await rig.rows(f"state, {soon}", f"execution_id = '{claim.execution_id}'") == [(4, True)]


@pytest.mark.parametrize("hours", [-1, 1])
async def test_times_in_the_rows_are_the_databases_whatever_the_clock_of_a_replica(rig: Rig, hours: int) -> None:
    now = datetime.now(UTC) + timedelta(hours=hours)
    workspace = f"clock{hours}"
    await rig.limit(workspace, 5)
    arrived, waiting = new_start(workspace), new_start(workspace)
    batch = AdmissionBatch(
        now=now,
        new_starts=[arrived, waiting],
        new_start_holders=[0, -1],
        workspaces=[workspace],
        claim_holders=[0],
        holders=["h"],
    )
    result = await rig.queue.commit(batch)
    assert len(result.claims) == 2
    true = "abs(extract(epoch FROM now() - enqueue_time)) < 60, abs(extract(epoch FROM now() - granted_time)) < 60"
    assert await rig.rows(true, f"workspace = '{workspace}'") == [(True, True)] * 2
    for claim in result.claims:
        assert claim.enqueue_us <= claim.granted_us
    left = now + timedelta(seconds=20)
    parked = [LeaseParked(claim.execution_id, claim.epoch, left) for claim in result.claims]
    assert (await rig.queue.commit(AdmissionBatch(now=now, parked=parked))).woken == []
    near = "wake_time BETWEEN now() + interval '10 seconds' AND now() + interval '21 seconds'"
    assert await rig.rows(near, f"workspace = '{workspace}'") == [(True,)] * 2


async def test_late_reports_have_reasons_and_repeated_ones_have_none(rig: Rig) -> None:
    await rig.limit("late", 5)
    finished, moved = (await rig.enqueue(new_start("late"), new_start("late"), holders=2)).claims
    await rig.finish(finished)
    parked = LeaseParked(moved.execution_id, moved.epoch, None)
    await rig.park(moved)
    assert await rig.leases.reasons(
        [
            LeaseFinished(finished.execution_id, finished.epoch),
            parked,
            LeaseParked(moved.execution_id, moved.epoch - 1, None),
            LeaseReleased(finished.execution_id, finished.epoch),
            LeaseFinished(moved.execution_id, moved.epoch),
        ]
    ) == [None, None, LateReason.EPOCH_STALE, LateReason.LEASE_UNKNOWN, LateReason.EPOCH_STALE]
