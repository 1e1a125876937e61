"""Messages for executions: stored in the mailbox, then sent to the holder. An execution without a holder is woken.

Messages are committed in batches, on another connection than the admission loop's. They are sent after the commit; if
that is lost, app/poll_loop.py sends them again. A full mailbox takes no message until its holder has read some.

A command of a person must not overtake an earlier one that was lost on the way, or went by another replica. So the
unread messages before it are sent with it, and the holder skips those that it has. If they are too many for that, the
poll sends them all, in order.

The end of a child is also kept for a parent that is a dead letter: the grant after its requeue brings it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.process.batcher import Batcher
from services.chassis.process.clock import Clock
from services.chassis.process.lifecycle import Loops
from services.chassis.telemetry.logs import logger
from services.dispatcher.app.admission_inbox import AdmissionInbox
from services.dispatcher.app.backlog import Backlog
from services.dispatcher.app.ports import Mailbox
from services.dispatcher.core.items import Delivery, MailboxMessage

log = logger(__name__)
_ACKS_PER_STATEMENT: Final = 2_000
# A statement keeps its rows locked while it is being sent.
_STATEMENT_BYTES_MAX: Final = 8 * 1024 * 1024
# After this time a full mailbox may have been read.
_FULL_RETRY_SECONDS: Final = 1.0


# The answer to one message. None: no such execution is queued or leased.
DeliveryAnswer = Delivery | Exception | None
# Sends messages to an instance that has a session here.
Post = Callable[[str, Sequence[bytes]], None]


class Deliveries:
    def __init__(self, *, mailbox: Mailbox, inbox: AdmissionInbox, post: Post, clock: Clock) -> None:
        self._mailbox = mailbox
        self._inbox = inbox
        self._post = post
        self._batcher: Batcher[MailboxMessage, Delivery | None] = Batcher(self._flush)
        # Messages that their holder has journalled. A deletion lost with this process is asked for again.
        self._journalled = Backlog("acknowledged messages", mailbox.forget, clock, items_per_batch=_ACKS_PER_STATEMENT)

    async def deliver(self, message: MailboxMessage) -> bool:
        """False: there is no such execution. Raises a Refusal while its mailbox is full."""
        return await self._batcher.submit(message) is not None

    def journalled(self, message_ids: Iterable[str]) -> None:
        self._journalled.add(message_ids)

    @property
    def loops(self) -> Loops:
        return [("deliveries", self._batcher.run), (self._journalled.what, self._journalled.run)]

    async def _flush(self, messages: list[MailboxMessage]) -> Sequence[DeliveryAnswer]:
        answers: list[DeliveryAnswer] = []
        for piece in _pieces(messages):
            try:
                answers += await self._bring(piece)
            except DependencyUnavailable as failure:
                # The other pieces are stored, and their senders must hear of it.
                answers += [failure] * len(piece)
        return answers

    async def _bring(self, messages: Sequence[MailboxMessage]) -> list[DeliveryAnswer]:
        deliveries = await self._mailbox.deliver(messages)
        answers: list[DeliveryAnswer] = list(deliveries)
        full: set[str] = set()
        for n, (message, delivery) in enumerate(zip(messages, deliveries, strict=True)):
            if delivery is None:
                continue
            if delivery.is_refused:
                full.add(message.execution_id)
                answers[n] = _full(message)
            elif delivery.was_woken or (message.row is not None and delivery.holder is None):
                self._inbox.work_in(delivery.workspace, is_ends_only=delivery.is_ends_only)
            elif delivery.holder is not None and delivery.unread_before is not None:
                self._post(delivery.holder, [*delivery.unread_before, message.body])
        for execution_id in full:
            log.warning("a mailbox is full", execution_id=execution_id)
        return answers


def _pieces(messages: Sequence[MailboxMessage]) -> Iterable[Sequence[MailboxMessage]]:
    """Split into pieces that fit into a statement, in order. A piece has at least one message."""
    piece: list[MailboxMessage] = []
    size = 0
    for message in messages:
        if piece and size + len(message.body) > _STATEMENT_BYTES_MAX:
            yield piece
            piece, size = [], 0
        piece.append(message)
        size += len(message.body)
    if piece:
        yield piece


def _full(message: MailboxMessage) -> Refusal:
    return Refusal(
        "MAILBOX_FULL",
        "too many messages for this execution wait to be read",
        metadata={"execution_id": message.execution_id, "try": f"windlass get {message.execution_id}"},
        retry_after=_FULL_RETRY_SECONDS,
    )
