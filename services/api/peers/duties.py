"""Background duties: each has `run_once`, and a loop that goes on after any failure of what it depends on."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc

from services.api.app.authenticator import Authenticator
from services.api.app.executions import Executions
from services.api.app.ports import WorkspaceRecord, Workspaces
from services.api.app.startables import Startables
from services.api.core.tiers import in_force
from services.api.peers.replicas import TRY_SECONDS, Replicas
from services.api.peers.watch_streams import WatchStreams
from services.chassis.grpc.errors import DependencyUnavailable, Refusal, remote_error
from services.chassis.process.backoff import Backoff
from services.chassis.process.batcher import Level
from services.chassis.telemetry.logs import logger
from windlass.dispatcher.v1 import queue_pb2, queue_pb2_grpc

log = logger(__name__)

LIMITS_POLL_SECONDS: Final = 5.0
# An admission fails after seconds of trying: there is no hurry to find out.
ADMISSIONS_SECONDS: Final = 2.0


class LimitsConfigurer:
    """Tells every dispatcher of each change of a workspace, until all have confirmed its newest revision.

    One that is away keeps a change unconfirmed, but not from the others: the first that hears it puts it into force.
    """

    def __init__(self, workspaces: Workspaces, dispatchers: Replicas, changed: Level) -> None:
        self._workspaces = workspaces
        self._dispatchers = dispatchers
        self._changed = changed

    async def run(self) -> None:
        backoff = Backoff(first=0.1, cap=LIMITS_POLL_SECONDS)
        pause = LIMITS_POLL_SECONDS
        while True:
            await self._changed.wait(pause)
            try:
                is_done = await self.run_once()
            except (DependencyUnavailable, Refusal) as failure:
                log.info("limits are told later", error=str(failure))
                is_done = False
            if is_done:
                backoff.reset()
            pause = LIMITS_POLL_SECONDS if is_done else backoff.next()

    async def run_once(self) -> bool:
        """Whether there is nothing left to tell."""
        records = await self._workspaces.unconfirmed()
        addresses = self._dispatchers.addresses
        if records and not addresses:
            return False
        away: set[str] = set()
        for record in records:
            # Not asked again in this round: each try may take its whole time.
            asked = [address for address in addresses if address not in away]
            told = await asyncio.gather(*(self._has_told(address, record) for address in asked))
            away.update(address for address, has_heard in zip(asked, told, strict=True) if not has_heard)
            if not away:
                await self._workspaces.confirm(record.workspace, record.revision)
        return not records

    async def _has_told(self, address: str, record: WorkspaceRecord) -> bool:
        limits = in_force(record.tier, record.executions_max, record.queued_max)
        request = queue_pb2.ConfigureWorkspaceRequest(
            workspace=record.workspace,
            limits=queue_pb2.TenantLimits(
                executions_max=limits.executions_max,
                queued_max=limits.queued_max,
                revision=record.revision,
            ),
            closed=record.close_time is not None,
        )
        stub = queue_pb2_grpc.QueueServiceStub(self._dispatchers.channel(address))
        try:
            await stub.ConfigureWorkspace(request, timeout=TRY_SECONDS)
        except grpc.aio.AioRpcError as failure:
            log.info("limits are told later", peer=address, error=str(remote_error(failure)))
            return False
        return True


class AdmissionReader:
    """Finds out for those who wait that an execution was given up: no coordinator will ever tell of it."""

    def __init__(self, watches: WatchStreams, executions: Executions) -> None:
        self._watches = watches
        self._executions = executions

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ADMISSIONS_SECONDS)
            try:
                await self.run_once()
            except (DependencyUnavailable, Refusal) as failure:
                log.info("admissions are read later", error=str(failure))

    async def run_once(self) -> None:
        waiting = self._watches.waiting_since(asyncio.get_running_loop().time() - ADMISSIONS_SECONDS)
        if not waiting:
            return
        for record in await self._executions.given_up(waiting):
            self._watches.final(record)


class Changes:
    """What another replica (or this one) has changed, as the database tells it; "" = anything may have."""

    def __init__(self, authenticator: Authenticator, startables: Startables, limits_changed: Level) -> None:
        self._authenticator = authenticator
        self._startables = startables
        self._limits_changed = limits_changed

    def heard(self, channel: str, payload: str) -> None:
        kind, _, name = payload.partition(":")
        try:
            self._forget(kind, name)
        except ValueError:
            # Of a version to come, perhaps.
            self._forget("", "")

    def _forget(self, kind: str, name: str) -> None:
        match kind:
            case "key":
                self._authenticator.forget(bytes.fromhex(name))
            case "workflow":
                self._startables.forget(*name.split("/", 1))
            case "workspace":
                self._authenticator.forget_all()
                self._startables.forget(name)
                self._limits_changed.set()
            case _:
                self._authenticator.forget_all()
                self._startables.forget_all()
                self._limits_changed.set()
