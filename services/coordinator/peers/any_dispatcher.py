"""Asks any dispatcher for what it does for executions that this coordinator does not hold.

A dispatcher puts messages into their mailboxes: reports of runs whose execution another coordinator holds, the end of a
child for its parent, and cancels of children. It also wakes executions that were parked here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc

from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import ChannelPool
from services.chassis.grpc.errors import DependencyUnavailable, remote_error
from services.chassis.grpc.timestamps import put_micros
from services.chassis.process.clock import Clock
from services.coordinator.app.owned_execution import ReceivedReport
from services.coordinator.app.parked_waits import ParkedWait
from services.coordinator.app.ports import MailboxFull
from services.coordinator.core.fold.answers import DIGEST_CHARACTERS
from services.coordinator.core.results import ERROR_MESSAGE_MAX, ERROR_TYPE_MAX
from services.coordinator.core.state import Execution
from services.coordinator.core.values import Instant
from services.coordinator.peers.children import end_message
from windlass.coordinator.v1 import sessions_pb2 as pb
from windlass.dispatcher.v1.queue_pb2 import DeliverRequest, WakeParkedRequest
from windlass.dispatcher.v1.queue_pb2_grpc import QueueServiceStub
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage

# This is enough for an inline output and everything else in a report.
REPORT_BYTES_MAX: Final = 1024 * 1024
_HASH_BYTES: Final = 32


class AnyDispatcher:
    """Implements `Relatives` and `ParkedQueue`, and brings reports to their holders."""

    def __init__(self, book: AddressBook, channels: ChannelPool, clock: Clock) -> None:
        self._book = book
        self._channels = channels
        self._clock = clock
        self._answered = ""

    async def deliver(self, report: ReceivedReport, workspace: str) -> bool:
        """The report is durable if it returns True. False: no dispatcher knows its execution. Raises MailboxFull."""
        return await self._deliver(_message(report, self._now()), workspace)

    async def tell_parent(self, execution: Execution) -> None:
        message = end_message(execution)
        put_micros(message.create_time, self._now())
        await self._deliver(message, execution.origin.workspace)

    async def cancel_child(self, execution: Execution, child_execution_id: str) -> None:
        reason = f"its parent {execution.execution_id} ended before it"
        # A successor sends it under the same id, with a digest of its content as api's, so it is carried out once.
        request = f"cancel:{child_execution_id}:{execution.execution_id}"
        digest = hashlib.sha256(reason.encode()).hexdigest()[:DIGEST_CHARACTERS]
        message = ExecutionMessage(message_id=f"{request}#{digest}", execution_id=child_execution_id)
        put_micros(message.create_time, self._now())
        message.cancel.reason = reason
        message.cancel.caller = execution.origin.caller
        await self._deliver(message, execution.origin.workspace)

    async def wake(self, workspace: str, waits: Sequence[ParkedWait]) -> frozenset[str]:
        leases = [WakeParkedRequest.Lease(execution_id=each.execution_id, epoch=each.epoch) for each in waits]
        request = WakeParkedRequest(workspace=workspace, leases=leases)
        return frozenset((await self._ask(lambda queue: queue.WakeParked(request))).held_execution_ids)

    def _now(self) -> Instant:
        return self._clock.epoch_ns() // 1_000

    async def _deliver(self, message: ExecutionMessage, workspace: str) -> bool:
        request = DeliverRequest(message=message, workspace=workspace)
        return bool((await self._ask(lambda queue: queue.Deliver(request))).found)

    async def _ask(self, call: Callable[[Any], Awaitable[Any]]) -> Any:
        """The answer of any dispatcher. Raises MailboxFull or DependencyUnavailable."""
        failure: Exception | None = None
        # The one that answered last comes first. Another may hang, and each call would wait for it.
        for address in sorted(await self._book.read(), key=lambda each: (each != self._answered, each)):
            try:
                answer = await call(QueueServiceStub(self._channels.get(address)))
            except grpc.aio.AioRpcError as error:
                if remote_error(error).reason == "MAILBOX_FULL":
                    # All replicas share the mailbox.
                    raise MailboxFull from None
                failure = error
            else:
                self._answered = address
                return answer
        raise DependencyUnavailable("dispatcher", str(failure or "no replica is known"))


def _message(report: ReceivedReport, now: Instant) -> ExecutionMessage:
    body = report.message
    assert isinstance(body, pb.RunReport)
    # It is the same for every forwarder and every repetition. It names the instance, so no other can take its place.
    message_id = f"report:{report.lease_id}:{report.epoch}:{report.instance_id}"
    message = ExecutionMessage(message_id=message_id, execution_id=report.execution_id)
    put_micros(message.create_time, now)
    message.run_report = fit_to_post(body).SerializeToString()
    return message


def fit_to_post(report: pb.RunReport) -> pb.RunReport:
    """The report, if it is small enough for a mailbox. Otherwise a failed report that says that it was too large."""
    if report.ByteSize() <= REPORT_BYTES_MAX:
        return report
    fitting = pb.RunReport(cost_tokens=report.cost_tokens)
    for name in ("lease_id", "epoch", "instance_id"):
        setattr(fitting.head, name, getattr(report.head, name))
    fitting.start_time.CopyFrom(report.start_time)
    fitting.end_time.CopyFrom(report.end_time)
    fitting.inputs_hash, fitting.config_hash = (report.inputs_hash[:_HASH_BYTES], report.config_hash[:_HASH_BYTES])
    if report.WhichOneof("outcome") == "failed":
        failed = report.failed
        setattr(fitting.failed, "class", getattr(failed, "class"))
        fitting.failed.type = failed.type[:ERROR_TYPE_MAX]
        fitting.failed.message = failed.message[:ERROR_MESSAGE_MAX]
    else:
        setattr(fitting.failed, "class", pb.ERROR_CLASS_PERMANENT)
        fitting.failed.type = "REPORT_TOO_LARGE"
        fitting.failed.message = f"a report has at most {REPORT_BYTES_MAX} bytes"
    return fitting
