"""The loops that commit what gathers outside of the batches: none ends unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from services.chassis.process.clock import SystemClock
from services.chassis.process.lifecycle import Process
from services.dispatcher.app.admission_inbox import AdmissionInbox
from services.dispatcher.app.admission_metrics import AdmissionMetrics
from services.dispatcher.app.deliveries import Deliveries
from services.dispatcher.app.ports import PendingReport
from services.dispatcher.app.returns import Returns
from services.dispatcher.core.items import LeaseReleased, MailboxMessage

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
