"""No loop that commits items outside of the batches ends unnoticed, and none of them ends the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.clock import SystemClock
from services.chassis.process.lifecycle import Process
from services.dispatcher.app.admission_inbox import AdmissionInbox
from services.dispatcher.app.admission_metrics import AdmissionMetrics
from services.dispatcher.app.deliveries import Deliveries
from services.dispatcher.app.ports import PendingReport
from services.dispatcher.app.returns import Returns
from services.dispatcher.core.items import Delivery, LeaseReleased, MailboxMessage

CLOCK = SystemClock()


async def waits_for_what_is_cancelled(*_: object) -> Any:
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    answer.cancel()
    await answer


class Cancelled:
    """A store whose every answer is cancelled."""

    def __getattr__(self, name: str) -> Any:
        return waits_for_what_is_cancelled


def message(number: int, size: int) -> MailboxMessage:
    return MailboxMessage(f"m{number}", f"e{number}", "", bytes(size), is_ending=False)


def pending() -> list[PendingReport[Any]]:
    return [PendingReport("r", LeaseReleased("e", 1), cast("Any", None))]


WORK: dict[str, Callable[[Returns, Deliveries], object]] = {
    "ended": lambda returns, _: returns.ended(["i"]),
    "handed back": lambda returns, _: returns.hand_back([("e", 1)]),
    "released": lambda returns, _: returns.released(pending()),
    "late": lambda returns, _: returns.late(pending()),
    "delivered": lambda _, deliveries: asyncio.ensure_future(deliveries.deliver(message(1, 1))),
    "journalled": lambda _, deliveries: deliveries.journalled(["m"]),
}


@pytest.mark.parametrize("work", WORK)
async def test_loop_whose_wait_others_cancel_takes_the_process_with_it(work: str) -> None:
    store, inbox = cast("Any", Cancelled()), AdmissionInbox(CLOCK)
    returns = Returns(leases=store, inbox=inbox, metrics=AdmissionMetrics(), clock=CLOCK)
    deliveries = Deliveries(mailbox=store, inbox=inbox, post=lambda *_: None, clock=CLOCK)
    process = Process("dispatcher")
    for name, run in (*returns.loops, *deliveries.loops):
        process.loop(name, run)

    async def wire(_: Process) -> None:
        begun.append(WORK[work](returns, deliveries))

    begun: list[object] = []
    async with asyncio.timeout(10):
        assert await process.run(wire) == 1
    assert len(begun) == 1


class FailsOnce:
    """A mailbox that is away for the statement with this message."""

    def __init__(self, message_id: str) -> None:
        self._message_id = message_id

    async def deliver(self, messages: Sequence[MailboxMessage]) -> Sequence[Delivery | None]:
        if any(each.message_id == self._message_id for each in messages):
            raise DependencyUnavailable("the database", "stopped by the test")
        return [Delivery("w", "holder", was_woken=False, is_ends_only=False) for _ in messages]

    async def forget(self, message_ids: Sequence[str]) -> None: ...


async def test_messages_that_are_stored_are_answered_though_others_of_their_batch_are_not() -> None:
    posted: list[str] = []
    deliveries = Deliveries(
        mailbox=FailsOnce("m2"), inbox=AdmissionInbox(CLOCK), post=lambda holder, _: posted.append(holder), clock=CLOCK
    )
    size = 5 * 1024 * 1024  # two do not fit into a statement
    asked = [asyncio.create_task(deliveries.deliver(message(number, size))) for number in (1, 2, 3)]
    await asyncio.sleep(0)
    running = [asyncio.ensure_future(run()) for _, run in deliveries.loops]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    for task in running:
        task.cancel()
    assert [each if each is True else type(each) for each in answers] == [True, DependencyUnavailable, True]
    assert posted == ["holder"] * 2


class HasUnread:
    """A mailbox in which an earlier message is unread, or too many of them."""

    def __init__(self, unread_before: Sequence[bytes] | None) -> None:
        self._unread_before = unread_before

    async def deliver(self, messages: Sequence[MailboxMessage]) -> Sequence[Delivery | None]:
        found = Delivery("w", "holder", was_woken=False, is_ends_only=False, unread_before=self._unread_before)
        return [found for _ in messages]

    async def forget(self, message_ids: Sequence[str]) -> None: ...


@pytest.mark.parametrize(("unread_before", "sent"), [([], [[b"\x00"]]), ([b"a"], [[b"a", b"\x00"]]), (None, [])])
async def test_message_goes_behind_those_that_were_stored_before_it(
    unread_before: Sequence[bytes] | None, sent: list[list[bytes]]
) -> None:
    posted: list[list[bytes]] = []
    deliveries = Deliveries(
        mailbox=HasUnread(unread_before),
        inbox=AdmissionInbox(CLOCK),
        post=lambda _, bodies: posted.append([*bodies]),
        clock=CLOCK,
    )
    asked = asyncio.create_task(deliveries.deliver(message(1, 1)))
    await asyncio.sleep(0)
    running = [asyncio.ensure_future(run()) for _, run in deliveries.loops]
    assert await asked is True
    for task in running:
        task.cancel()
    assert posted == sent
