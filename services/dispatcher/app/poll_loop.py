"""The poll behind every wake-up. It finds work without a wake-up, and lost leases, grants and messages.

A step that fails is tried again in the next round and does not hold up the others. A round without a database logs one
line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.clock import Clock
from services.chassis.telemetry.logs import logger
from services.dispatcher.app.ports import Housekeeping, MailboxUpkeep

log = logger(__name__)


class PollLoop:
    def __init__(
        self,
        *,
        housekeeping: Housekeeping,
        mailbox: MailboxUpkeep,
        polled: Callable[[Sequence[str], bool], None],
        ended: Callable[[Sequence[str]], None],
        ask_holder: Callable[[str, Sequence[tuple[str, int]]], None],
        post: Callable[[str, Sequence[bytes]], None],
        tell_parents: Callable[[], Awaitable[None]],
        clock: Clock,
        every_seconds: float,
    ) -> None:
        """`ask_holder` asks an instance that has a session here whether it holds these leases."""
        self._housekeeping = housekeeping
        self._mailbox = mailbox
        self._polled = polled
        self._ended = ended
        self._ask_holder = ask_holder
        self._post = post
        self._tell_parents = tell_parents
        self._clock = clock
        self._every_seconds = every_seconds
        # Every fourth round polls. The grants of a dead replica must not wait that long, nor messages: a coordinator
        # gives up a run that its runner denies when the mailbox brings no report of it for two seconds.
        self._round = 0

    async def run(self) -> None:
        while True:
            await self.run_once()
            await self._clock.sleep(self._every_seconds / 4)

    async def run_once(self) -> None:
        steps: list[Callable[[], Awaitable[None]]] = [self.ask_for_lost_grants, self.send_again]
        if self._round % 4 == 0:
            steps += [self.poll, self.end_unheld, self.tell_parents]
        self._round += 1
        failed: dict[str, str] = {}
        for step in steps:
            try:
                await step()
            except DependencyUnavailable as failure:
                failed[step.__name__] = str(failure)
        if failed:
            log.info("a round waits for the database", steps=[*failed], error=next(iter(failed.values())))

    async def poll(self) -> None:
        self._polled(*await self._housekeeping.workspaces_with_work())

    async def end_unheld(self) -> None:
        """End leases that were granted at the moment in which their holder's instance ended."""
        gone = await self._housekeeping.holders_gone()
        if gone:
            self._ended(gone)

    async def tell_parents(self) -> None:
        """Parents of children that have become dead letters."""
        await self._tell_parents()

    async def ask_for_lost_grants(self) -> None:
        for holder, leases in (await self._housekeeping.lost_grants()).items():
            self._ask_holder(holder, leases)

    async def send_again(self) -> None:
        for holder, bodies in (await self._mailbox.unread()).items():
            self._post(holder, bodies)
