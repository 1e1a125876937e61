"""Sends each change of a workspace's limits to every dispatcher, until all of them have confirmed it.

A dispatcher that is away keeps a change unconfirmed, but does not hold it up: the first dispatcher that gets it stores
it for all.
"""

from __future__ import annotations

import asyncio
from typing import Final

import grpc

from services.api.app.ports import WorkspaceRecord, Workspaces
from services.api.core.tiers import in_force
from services.api.peers.replicas import TRY_SECONDS, Replicas
from services.chassis.grpc.errors import DependencyUnavailable, Refusal, remote_error
from services.chassis.process.backoff import Backoff
from services.chassis.process.batcher import Level
from services.chassis.telemetry.logs import logger
from windlass.dispatcher.v1 import queue_pb2, queue_pb2_grpc

log = logger(__name__)

LIMITS_POLL_SECONDS: Final = 5.0


class LimitsConfigurer:
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
                log.info("limits cannot be sent to dispatchers now", error=str(failure))
                is_done = False
            if is_done:
                backoff.reset()
            pause = LIMITS_POLL_SECONDS if is_done else backoff.next()

    async def run_once(self) -> bool:
        """True when there was no unconfirmed change."""
        records = await self._workspaces.unconfirmed()
        addresses = self._dispatchers.addresses
        if records and not addresses:
            return False
        away: set[str] = set()
        for record in records:
            # A dispatcher that did not answer is left out for this round, because each try may take TRY_SECONDS.
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
            limits=queue_pb2.TenantLimits(**limits._asdict(), revision=record.revision),
            closed=record.close_time is not None,
        )
        stub = queue_pb2_grpc.QueueServiceStub(self._dispatchers.channel(address))
        try:
            await stub.ConfigureWorkspace(request, timeout=TRY_SECONDS)
        except grpc.aio.AioRpcError as failure:
            log.info("limits cannot be sent to dispatchers now", peer=address, error=str(remote_error(failure)))
            return False
        return True
