"""Tells parents of children that have become dead letters. Any other child tells its parent itself, by its coordinator.

The row keeps that its parent does not know, until the message is in the parent's mailbox. So a dispatcher that dies in
between leaves nothing behind, and any replica may do it, also twice: the message has the same id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

from services.chassis.grpc.errors import Refusal
from services.chassis.telemetry.logs import logger
from services.dispatcher.app.ports import Housekeeping
from services.dispatcher.core.items import GivenUp, MailboxMessage

log = logger(__name__)

# One poll looks at this many pages at most, so that many dead letters do not hold up the other steps of the poll.
PAGES_PER_POLL_MAX: Final = 5
# No execution has this id.
_BEFORE_ALL: Final = str(UUID(int=0))

# None: the execution has no parent.
MessageOf = Callable[[GivenUp], MailboxMessage | None]


class ParentNotices:
    def __init__(
        self, *, housekeeping: Housekeeping, deliver: Callable[[MailboxMessage], Awaitable[bool]], message_of: MessageOf
    ) -> None:
        self._housekeeping = housekeeping
        self._deliver = deliver
        self._message_of = message_of
        # The next poll goes on from here, so parents with a full mailbox hold up no others.
        self._after = _BEFORE_ALL

    async def run_once(self) -> None:
        for _ in range(PAGES_PER_POLL_MAX):
            untold = await self._housekeeping.untold(self._after)
            if not untold:
                self._after = _BEFORE_ALL
                return
            self._after = untold[-1].execution_id
            if told := [each.execution_id for each in untold if await self._tell(each)]:
                await self._housekeeping.note_told(told)

    async def _tell(self, given_up: GivenUp) -> bool:
        message = self._message_of(given_up)
        if message is None:
            return True
        try:
            # A parent that is over needs no message.
            await self._deliver(message)
        except Refusal as refusal:
            log.info("a parent cannot be told yet", execution_id=message.execution_id, reason=refusal.reason)
            return False
        return True
