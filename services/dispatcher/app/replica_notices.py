"""Notices between replicas: "executions wait in this workspace that I cannot place".

A slot may become free at a replica that does not know of the executions that wait for it. Notices are hints: they are
gathered, and sent at most every 50 ms on a connection of their own, because a NOTIFY inside the batch's transaction
would cost three quarters of its throughput. The poll makes up for a lost notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.batcher import Level
from services.chassis.process.clock import Clock
from services.dispatcher.app.ports import Housekeeping

CHANNEL: Final = "dispatcher_work"
_PAUSE_SECONDS: Final = 0.05
_WORKSPACES_MAX: Final = 1_000


class ReplicaNotices:
    def __init__(self, *, housekeeping: Housekeeping, replica: str, heard: Callable[[str], None], clock: Clock) -> None:
        """`replica` is unique among the processes; it marks our own notices."""
        self._housekeeping = housekeeping
        self._replica = replica
        self._heard = heard
        self._clock = clock
        self._waits: dict[str, None] = {}
        self._level = Level()

    def waits_in(self, workspace: str) -> None:
        if len(self._waits) < _WORKSPACES_MAX:
            self._waits[workspace] = None
            self._level.set()

    def on_notice(self, channel: str, payload: str) -> None:
        """An empty payload means that notices may have been lost; the poll makes up for them."""
        replica, _, workspace = payload.partition(" ")
        if workspace and replica != self._replica:
            self._heard(workspace)

    async def run(self) -> None:
        while True:
            await self._level.wait()
            await self.run_once()
            await self._clock.sleep(_PAUSE_SECONDS)

    async def run_once(self) -> None:
        waits, self._waits = self._waits, {}
        try:
            await self._housekeeping.notify(CHANNEL, [f"{self._replica} {workspace}" for workspace in waits])
        except DependencyUnavailable:
            return
