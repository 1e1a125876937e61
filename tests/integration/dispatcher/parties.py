"""A coordinator that follows its test, and an api. Both talk to a dispatcher over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from services.chassis.grpc.client import ChannelPool
from services.chassis.identity.callers import ServiceCredential
from services.chassis.lease.frames import Attach, Grant
from services.chassis.lease.timing import EXECUTION
from services.chassis.session.holder import SessionHolder
from services.dispatcher.config import DispatcherSettings
from services.dispatcher.rpc.sessions import CODEC
from services.dispatcher.wiring import DispatcherService
from tests.support.holder_owner import HolderOwner
from tests.support.live_sessions import live_sessions
from tests.support.postgres import reachable_directory
from tests.support.probe import until
from tests.support.running_services import started
from windlass.dispatcher.v1 import queue_pb2, queue_pb2_grpc, sessions_pb2, sessions_pb2_grpc
from windlass.types.v1 import session_pb2

SECRET = b"a secret of the tests alone"
SCALE = 0.2
SECONDS = 10.0


def secret_file() -> Path:
    path = reachable_directory("windlass-secret-") / "service.secret"
    path.write_bytes(SECRET)
    return path


def channels_of(service: str) -> ChannelPool:
    return ChannelPool(credential=ServiceCredential([SECRET], service))


@contextlib.asynccontextmanager
async def running_dispatcher(url: str, replica: str = "0") -> AsyncIterator[str]:
    """Run a dispatcher in this process. Yields its address."""
    settings = DispatcherSettings(
        grpc_address="127.0.0.1:0",
        metrics_address="",
        database_url=url,
        lease_scale=SCALE,
        replica=replica,
        service_secret_file=secret_file(),
    )
    service = await started("dispatcher", settings, DispatcherService)
    try:
        yield service.address
    finally:
        await service.stop()


class Coordinator(HolderOwner):
    """Collects grants, and sends the reports of the test."""

    def __init__(self, *addresses: str, capacity: int = 100, name: str = "coordinator-t") -> None:
        super().__init__()
        self.grants: list[sessions_pb2.ExecutionGrant] = []
        self.messages: list[sessions_pb2.ExecutionMessage] = []
        self.refuses_with = ""
        self._addresses = addresses
        self._channels = channels_of("coordinator")
        self.holder = SessionHolder(
            attach=Attach(name, capacity=capacity, version="test"),
            timing=EXECUTION.scaled(SCALE),
            codec=CODEC,
            open_stream=lambda address: sessions_pb2_grpc.CoordinatorSessionsStub(
                self._channels.get(address)
            ).Session(),
            owner=self,
        )

    async def __aenter__(self) -> Coordinator:
        self._run = asyncio.create_task(self.holder.run(self._present()))
        await until(lambda: live_sessions(self.holder) >= len(self._addresses), SECONDS, "sessions")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        async with asyncio.timeout(SECONDS):
            await self.holder.stop()
            await self._run
            await self._channels.close()

    async def _present(self) -> AsyncIterator[frozenset[str]]:
        yield frozenset(self._addresses)
        await asyncio.Event().wait()

    # ── commands of a test ───────────────────────────────────────────────────────────────────────────────────────

    async def granted(self, count: int, what: str = "grants") -> list[sessions_pb2.ExecutionGrant]:
        await until(lambda: len(self.grants) >= count, SECONDS, f"{count} {what}, not {len(self.grants)}")
        return self.grants

    async def take(self, api: Api, sent: queue_pb2.EnqueueItem) -> sessions_pb2.ExecutionGrant:
        """The grant of this item, which is the first that comes."""
        await api.enqueue(sent)
        (grant,) = await self.granted(1)
        return grant

    def finish(self, *grants: sessions_pb2.ExecutionGrant) -> None:
        for grant in grants:
            self._report(grant, finished=sessions_pb2.ExecutionReport.Finished())

    async def finished(self, *grants: sessions_pb2.ExecutionGrant) -> None:
        """Finish them, and wait until every report is taken or refused."""
        self.finish(*grants)
        await self.reported()

    def park(self, grant: sessions_pb2.ExecutionGrant, **parked: Any) -> None:
        self._report(grant, parked=sessions_pb2.ExecutionReport.Parked(**parked))

    def release(self, grant: sessions_pb2.ExecutionGrant, **released: Any) -> None:
        self._report(grant, released=sessions_pb2.ExecutionReport.Released(**released))

    def _report(self, grant: sessions_pb2.ExecutionGrant, **body: Any) -> None:
        lease_id, epoch = grant.lease.lease_id, grant.lease.epoch
        report_id = self.holder.new_report_id()
        head = session_pb2.ReportHead(report_id=report_id, lease_id=lease_id, epoch=epoch)
        report = sessions_pb2.ExecutionReport(head=head, **body)
        self.holder.report(report_id, lease_id, epoch, report, ends_lease=True)

    async def reported(self) -> None:
        await until(lambda: not self.holder.rules.reports_unanswered, SECONDS, "acknowledged reports")

    # ── callbacks of the session library ─────────────────────────────────────────────────────────────────────────

    def on_grants(self, grants: list[Grant]) -> None:
        for grant in grants:
            work = grant.work
            assert isinstance(work, sessions_pb2.ExecutionGrant)
            if self.refuses_with:
                self.holder.rules.refuse(grant.lease_id, grant.epoch, self.refuses_with)
            else:
                self.grants.append(work)

    def on_notes(self, address: str, notes: list[Any]) -> None:
        self.messages += notes

    @property
    def ended(self) -> list[str]:
        return [edge for edge in self.edges if edge not in ("fenced", "resumed")]

    def acknowledge_messages(self, *message_ids: str) -> None:
        for address in self._addresses:
            self.holder.post(address, message_ids)


class Api:
    """An enqueue stream and the unary calls of an api."""

    def __init__(self, address: str) -> None:
        self._channels = channels_of("api")
        channel = self._channels.get(address)
        self.queue = queue_pb2_grpc.QueueServiceStub(channel)
        self._stub = queue_pb2_grpc.EnqueueServiceStub(channel)
        self.answers: dict[str, queue_pb2.EnqueueAnswer] = {}
        # The dispatcher has ended the stream in order.
        self.has_ended = False

    async def __aenter__(self) -> Api:
        self._call = self._stub.Enqueue()
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        async with asyncio.timeout(SECONDS):
            self._call.cancel()
            await asyncio.wait([self._reader])
            await self._channels.close()

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            async for response in self._call:
                for answer in response.answers:
                    self.answers[answer.execution_id] = answer
            self.has_ended = True

    async def send(self, *items: queue_pb2.EnqueueItem) -> None:
        await self._call.write(queue_pb2.EnqueueRequest(items=items))

    async def enqueue(self, *items: queue_pb2.EnqueueItem) -> list[queue_pb2.EnqueueAnswer]:
        await self.send(*items)
        ids = [item.start.execution_id for item in items]
        await until(lambda: all(each in self.answers for each in ids), SECONDS, "answers to the enqueue")
        return [self.answers[each] for each in ids]
