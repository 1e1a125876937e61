"""Mailboxes against PostgreSQL: how much they hold, and how much of it is sent at once."""

import uuid
from datetime import UTC, datetime

from services.dispatcher.core.batch import AdmissionBatch
from services.dispatcher.core.items import Claim, MailboxMessage, NewStart
from services.dispatcher.core.mailbox_limits import (
    MAILBOX_BYTES_MAX,
    MAILBOX_MESSAGES_MAX,
    MEBIBYTE,
    RESENT_MESSAGES_MAX,
)
from tests.integration.dispatcher.conftest import Rig, new_start


def message(to: NewStart | Claim, body: bytes, *, message_id: str = "", is_ending: bool = False) -> MailboxMessage:
    return MailboxMessage(message_id or str(uuid.uuid4()), to.execution_id, to.workspace, body, is_ending)


async def refusals(rig: Rig, *messages: MailboxMessage) -> list[bool]:
    return [each is not None and each.is_refused for each in await rig.mailbox.deliver(messages)]


def numbers(messages: object) -> list[int]:
    assert isinstance(messages, list)
    return [int(body[:4]) for body in messages]


async def test_mailbox_takes_no_more_bytes_than_it_holds(rig: Rig) -> None:
    await rig.limit("bytes", 5)
    await rig.enqueue(to := new_start("bytes"))
    eighth = bytes(MAILBOX_BYTES_MAX // 8)
    sent = [message(to, eighth) for _ in range(8)]
    assert await refusals(rig, *sent[:7]) == [False] * 7
    beyond = message(to, b"one byte more")
    assert await refusals(rig, sent[7], beyond) == [False, True]
    assert await refusals(rig, sent[0], beyond) == [False, True], "what is there already is taken again"
    assert await refusals(rig, beyond, message(to, b"enough", is_ending=True)) == [True, False]
    await rig.mailbox.forget([sent[0].message_id])
    assert await refusals(rig, beyond) == [False]
    other = new_start("bytes")
    await rig.enqueue(other)
    assert await refusals(rig, message(to, eighth), message(other, eighth)) == [True, False]


async def test_mailbox_takes_no_more_messages_than_it_holds(rig: Rig) -> None:
    await rig.limit("count", 5)
    await rig.enqueue(to := new_start("count"))
    sent = [message(to, b"small") for _ in range(MAILBOX_MESSAGES_MAX + 2)]
    assert await refusals(rig, *sent) == [False] * MAILBOX_MESSAGES_MAX + [True] * 2


async def test_message_that_is_refused_wakes_nobody(rig: Rig) -> None:
    await rig.limit("resting", 5)
    await rig.enqueue(to := new_start("resting"))
    assert not any(await refusals(rig, *[message(to, bytes(MEBIBYTE)) for _ in range(8)]))
    (claim,) = await rig.claim("resting", claims=1)
    await rig.park(claim)
    (delivery,) = await rig.mailbox.deliver([message(to, b"again")])
    assert delivery is not None
    assert (delivery.is_refused, delivery.was_woken) == (True, False)
    assert await rig.rows("state", "workspace = 'resting'") == [(4,)]


async def test_grant_carries_the_oldest_and_the_rest_follows(rig: Rig) -> None:
    await rig.limit("overfull", 5)
    await rig.enqueue(to := new_start("overfull"))
    await rig.fill(to.execution_id, messages=20, size=MEBIBYTE // 2)
    (claim,) = await rig.claim("overfull", claims=1)
    assert numbers(claim.messages) == list(range(1, 17))
    seen = tuple(f"{to.execution_id}:{n}" for n in range(1, 17))
    assert (await rig.park(claim, seen_message_ids=seen)).woken == ["overfull"]
    (claim,) = await rig.claim("overfull", claims=1)
    assert numbers(claim.messages) == list(range(17, 21))


async def test_claim_leaves_for_the_next_what_would_make_it_too_large(rig: Rig) -> None:
    await rig.limit("heavy", 10)
    came = [new_start("heavy") for _ in range(5)]
    await rig.enqueue(*came)
    heavy = sorted(each.execution_id for each in came)[1:4]
    for execution_id in heavy:
        await rig.fill(execution_id, messages=8, size=MEBIBYTE)
    batch = AdmissionBatch(now=datetime.now(UTC), workspaces=["heavy"], claim_holders=[0] * 8, holders=["h"])
    result = await rig.queue.commit(batch)
    assert [len(claim.messages) for claim in result.claims] == [0, 8, 8]
    (workspace,) = result.workspaces
    assert workspace.has_more
    assert [len(claim.messages) for claim in await rig.claim("heavy", claims=8)] == [8, 0]


async def unread(rig: Rig) -> list[bytes]:
    """The messages that are sent again. All executions of a test have the same holder."""
    (bodies,) = (await rig.mailbox.unread()).values()
    return bodies


async def resent(rig: Rig) -> list[int]:
    return numbers(await unread(rig))


async def test_what_is_resent_at_once_is_bounded_and_goes_round(empty_rig: Rig) -> None:
    ids = sorted(each.execution_id for each in await empty_rig.leased("unread", 10))
    for execution_id in ids:
        await empty_rig.fill(execution_id, messages=4, size=MEBIBYTE // 2)
    # The oldest of each is sent, then the second of as many as there is room for, and the third of none.
    assert await resent(empty_rig) == [1] * 10 + [2] * 6
    await empty_rig.mailbox.forget([f"{execution_id}:1" for execution_id in ids[6:]])
    # The executions whose second message has not been sent yet have it sent first.
    assert await resent(empty_rig) == [2] * 4 + [1] * 6 + [3] * 4 + [2] * 2


async def test_full_mailboxes_that_nobody_reads_hold_up_no_other(empty_rig: Rig) -> None:
    *stuck, other = sorted(each.execution_id for each in await empty_rig.leased("unread", 10))
    for execution_id in stuck:
        await empty_rig.fill(execution_id, messages=8, size=MEBIBYTE)
    await empty_rig.fill(other, messages=1, size=8)
    said = [len(body) for _ in range(2) for body in await unread(empty_rig)]
    assert 8 in said


async def test_mailbox_of_many_messages_that_nobody_reads_holds_up_no_other(empty_rig: Rig) -> None:
    stuck, other = sorted(each.execution_id for each in await empty_rig.leased("unread", 2))
    await empty_rig.fill(stuck, messages=RESENT_MESSAGES_MAX + 1, size=4)
    await empty_rig.fill(other, messages=2, size=8)
    bodies = await unread(empty_rig)
    assert len(bodies) == RESENT_MESSAGES_MAX
    assert [n for n, body in enumerate(bodies) if len(body) == 8] == [1, 3]


async def test_command_is_sent_behind_the_unread_messages_that_were_stored_before_it(rig: Rig) -> None:
    (to,) = await rig.leased("commanded", 1)
    pause, resume = (message(to, body)._replace(is_in_order=True) for body in (b"pause", b"resume"))
    report = message(to, b"report")
    (first,) = await rig.mailbox.deliver([pause])
    assert first is not None
    assert first.unread_before == []
    (second, third) = await rig.mailbox.deliver([resume, report])
    assert second is not None
    assert third is not None
    assert (second.unread_before, third.unread_before) == ([b"pause"], []), "nothing has to wait for a report"
    await rig.mailbox.forget([pause.message_id, report.message_id])
    (again,) = await rig.mailbox.deliver([message(to, b"cancel", is_ending=True)._replace(is_in_order=True)])
    assert again is not None
    assert again.unread_before == [b"resume"]


async def test_command_behind_more_than_can_be_sent_at_once_waits_for_the_poll(rig: Rig) -> None:
    (to,) = await rig.leased("commanded-late", 1)
    await rig.fill(to.execution_id, messages=3, size=MEBIBYTE // 2)
    (delivery,) = await rig.mailbox.deliver([message(to, b"pause")._replace(is_in_order=True)])
    assert delivery is not None
    assert delivery.unread_before is None
