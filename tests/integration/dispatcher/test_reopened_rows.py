"""An execution that has ended is queued again by a message that may reopen it."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from services.dispatcher.app.ports import PendingReport
from services.dispatcher.core.batch import AdmissionBatch
from services.dispatcher.core.items import Claim, LeaseFinished, MailboxMessage, NewStart, RowToMake, State
from services.dispatcher.store.housekeeping import PostgresHousekeeping
from tests.integration.dispatcher.conftest import Rig, new_start
from tests.integration.dispatcher.test_admission_loop import Recorder
from tests.integration.dispatcher.test_returns import returns_of


def reopening(to: NewStart, message_id: str = "") -> MailboxMessage:
    row = RowToMake(to.priority, to.start)
    return MailboxMessage(message_id or str(uuid.uuid4()), to.execution_id, to.workspace, b"again", False, row)


async def row_of(rig: Rig, of: NewStart) -> list[tuple[object, ...]]:
    return await rig.rows("state, urgent, begun, reopens", f"execution_id = '{of.execution_id}'")


async def test_message_makes_the_row_again_and_comes_with_the_grant(rig: Rig) -> None:
    await rig.limit("ended", 5)
    await rig.enqueue(ended := new_start("ended"))
    (first,) = await rig.claim("ended", claims=1)
    await rig.finish(first)
    (delivery,) = await rig.mailbox.deliver([reopening(ended)])
    assert delivery is not None
    assert delivery.holder is None
    assert await row_of(rig, ended) == [(State.PENDING, True, True, False)]
    (again,) = await rig.claim("ended", claims=1)
    assert (again.execution_id, again.is_resumed, again.has_begun) == (ended.execution_id, True, True)
    assert again.epoch > first.epoch
    assert (list(again.messages), again.start) == ([b"again"], ended.start)


async def test_it_takes_a_slot_like_any_other(rig: Rig) -> None:
    await rig.limit("one", 1)
    await rig.enqueue(ended := new_start("one"))
    await rig.finish(*await rig.claim("one", claims=1))
    await rig.enqueue(other := new_start("one"))
    (held,) = await rig.claim("one", claims=1)
    assert held.execution_id == other.execution_id
    await rig.mailbox.deliver([reopening(ended)])
    assert await rig.claim("one", claims=1) == []
    await rig.finish(held)
    assert [claim.execution_id for claim in await rig.claim("one", claims=1)] == [ended.execution_id]


async def test_ten_messages_at_once_make_one_row(rig: Rig) -> None:
    await rig.limit("ten", 5)
    await rig.enqueue(ended := new_start("ten"))
    await rig.finish(*await rig.claim("ten", claims=1))
    delivered = await asyncio.gather(*(rig.mailbox.deliver([reopening(ended)]) for _ in range(10)))
    assert all(delivery is not None for (delivery,) in delivered)
    (claim,) = await rig.claim("ten", claims=5)
    assert len(claim.messages) == 10


@pytest.mark.parametrize("lost", ["", "keep_open"])
async def test_row_outlives_the_end_when_the_message_came_just_before(rig: Rig, lost: str) -> None:
    """The holder had forgotten the execution when the message came to it."""
    workspace = f"just-before-{lost}"
    await rig.limit(workspace, 5)
    await rig.enqueue(ending := new_start(workspace))
    (claim,) = await rig.claim(workspace, claims=1)
    (delivery,) = await rig.mailbox.deliver([reopening(ending)])
    assert delivery is not None
    assert delivery.holder == "holder-a"
    assert await rig.finish(claim) == [None], "the row is still there"
    returns, inbox = returns_of(rig, lost)
    holder = Recorder()
    returns.late([PendingReport("r1", LeaseFinished(claim.execution_id, claim.epoch), holder)])
    if lost:
        with pytest.raises(Exception, match="no answer"):
            await returns.run_once()
    await returns.run_once()
    assert [*holder.acknowledged, *holder.refused] != []
    assert await row_of(rig, ending) == [(State.PENDING, True, True, False)]
    assert lost or inbox.queues.take(9) == [workspace]
    (again,) = await rig.claim(workspace, claims=1)
    assert list(again.messages) == [b"again"]
    await rig.finish(again)
    assert await row_of(rig, ending) == [], "now it is gone"


async def test_end_of_an_execution_that_nobody_reopens_is_answered_as_before(rig: Rig) -> None:
    (claim,) = await rig.leased("plain-end")
    await rig.finish(claim)
    returns, _ = returns_of(rig)
    holder = Recorder()
    returns.late([PendingReport("r1", LeaseFinished(claim.execution_id, claim.epoch), holder)])
    await returns.run_once()
    assert list(holder.acknowledged) == ["r1"]


async def to_be_ended(rig: Rig, workspace: str) -> tuple[Claim, NewStart, Claim]:
    """The lease that has the only slot of the workspace; and an execution that was cancelled while it was queued, with
    its lease, which has none."""
    await rig.limit(workspace, 1)
    await rig.enqueue(new_start(workspace))
    (going,) = await rig.claim(workspace, claims=1)
    deadline = datetime.now(UTC) + timedelta(hours=1)
    await rig.enqueue(hasty := new_start(workspace, deadline_time=deadline))
    cancel = MailboxMessage(str(uuid.uuid4()), hasty.execution_id, workspace, b"cancel", is_ending=True)
    await rig.mailbox.deliver([cancel])
    result = await rig.queue.commit(AdmissionBatch(now=datetime.now(UTC), ending_holders=[0], holders=["holder-a"]))
    (ending,) = result.claims
    assert (ending.execution_id, ending.is_ends_only) == (hasty.execution_id, True)
    return going, hasty, ending


async def it_waits_for_the_slot(rig: Rig, going: Claim, hasty: NewStart) -> None:
    found = await rig.rows("state, ends_only", f"execution_id = '{hasty.execution_id}'")
    assert found == [(State.PENDING, False)]
    assert await rig.claim(going.workspace, claims=1) == []
    await rig.finish(going)
    (claim,) = await rig.claim(going.workspace, claims=1)
    assert (claim.execution_id, claim.is_ends_only) == (hasty.execution_id, False)


async def test_an_execution_that_goes_on_although_it_was_to_be_ended_takes_a_slot_at_its_next_grant(rig: Rig) -> None:
    going, hasty, ending = await to_be_ended(rig, "goes-on")
    await rig.park(ending, wake_time=datetime.now(UTC))
    await it_waits_for_the_slot(rig, going, hasty)


async def test_an_execution_that_was_ended_in_the_queue_takes_a_slot_when_it_is_reopened(rig: Rig) -> None:
    """Its deadline counts anew then, and its coordinator knows it."""
    going, hasty, ending = await to_be_ended(rig, "reopened")
    await rig.mailbox.deliver([reopening(hasty)])
    assert await rig.finish(ending) == [None], "the row is still there"
    assert len(await rig.leases.keep_open([(ending.execution_id, ending.epoch)])) == 1
    assert await rig.rows("deadline_time", f"execution_id = '{hasty.execution_id}'") == [(None,)]
    await it_waits_for_the_slot(rig, going, hasty)


async def test_an_execution_that_goes_on_behind_the_deadline_of_its_row_is_not_ended_again_and_again(rig: Rig) -> None:
    """It was reopened by its holder, so its journal has a later deadline than its row."""
    await rig.limit("later", 1)
    await rig.enqueue(hasty := new_start("later", deadline_time=datetime.now(UTC)))
    housekeeping = PostgresHousekeeping(
        rig.database, lost_grant_seconds=60.0, request_key_seconds=60.0, dead_letter_seconds=60.0
    )
    await housekeeping.wake()
    ending_batch = AdmissionBatch(now=datetime.now(UTC), ending_holders=[0], holders=["holder-a"])
    (ending,) = (await rig.queue.commit(ending_batch)).claims
    assert ending.is_ends_only
    await rig.park(ending, wake_time=datetime.now(UTC))
    for _ in range(2):
        await housekeeping.wake()
        assert await rig.rows("state, ends_only", f"execution_id = '{hasty.execution_id}'") == [(State.PENDING, False)]
    (claim,) = await rig.claim("later", claims=1)
    assert (claim.execution_id, claim.is_ends_only) == (hasty.execution_id, False)
