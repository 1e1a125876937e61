"""How a message reaches the mailbox of an execution that another coordinator holds: by any dispatcher."""

from __future__ import annotations

import grpc

from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import ChannelPool
from services.chassis.grpc.errors import DependencyUnavailable, remote_error
from windlass.dispatcher.v1.queue_pb2 import DeliverRequest
from windlass.dispatcher.v1.queue_pb2_grpc import QueueServiceStub
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage


class MailboxFull(Exception):
    """There is too much in it that is not read yet. Later there may be room."""


class DispatcherMailbox:
    def __init__(self, book: AddressBook, channels: ChannelPool) -> None:
        self._book = book
        self._channels = channels

    async def deliver(self, message: ExecutionMessage, workspace: str) -> bool:
        """Durable when it returns; False: no dispatcher knows the execution any more. Raises MailboxFull."""
        request = DeliverRequest(message=message, workspace=workspace)
        failure: Exception | None = None
        for address in sorted(await self._book.read()):
            try:
                answer = await QueueServiceStub(self._channels.get(address)).Deliver(request)
            except grpc.aio.AioRpcError as error:
                if remote_error(error).reason == "MAILBOX_FULL":
                    # It is one mailbox, whichever replica is asked.
                    raise MailboxFull(message.execution_id) from None
                failure = error
            else:
                return bool(answer.found)
        raise DependencyUnavailable("dispatcher", str(failure or "no replica is known"))
