"""Executions that cannot be decided at once: their definition must be fetched, or their journal read and folded.

All that wait are served together: each definition is asked for once, and all journals are read in one
statement, under our raised fence. What cannot be served now (api or the database away) waits and is tried
again; what never can is handed back with its reason. A record of a version to come hands the execution back
unharmed: a newer coordinator takes it.

Hazard: a lease may be lost while we read. Then the Held is dropped, and what was read is thrown away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Sequence
from typing import Final, Protocol

from services.chassis.backoff import Backoff
from services.chassis.batcher import Level
from services.chassis.errors import DependencyUnavailable
from services.chassis.lease.frames import Lease
from services.chassis.lease.timing import LeaseTiming
from services.chassis.logs import logger
from services.chassis.metrics import counter
from services.coordinator.core.commands import Adopt
from services.coordinator.core.definition import Definition
from services.coordinator.core.state import Execution
from services.coordinator.handler.carrier import Carrier
from services.coordinator.handler.held import Held
from services.coordinator.handler.ports import (
    DefinitionRefused,
    Definitions,
    Dispatch,
    Journal,
    Loaded,
    Version,
)

log = logger(__name__)

_LOADS_MAX: Final = 200
# A newer coordinator may need a moment to come; a lease that bounces costs more than one that rests.
_UNKNOWN_EVENT_SECONDS: Final = 5.0

_adopted = counter("coordinator_executions_adopted_total", "Executions taken over from another holder.")


class UnknownEvents(Exception):
    """The journal holds a record of a version to come."""


class Fold(Protocol):
    def __call__(self, execution_id: str, definition: Definition, events: Sequence[bytes], /) -> Execution:
        """Raises UnknownEvents; anything else means that the journal is damaged."""
        ...


class ArrivalLoop:
    def __init__(
        self,
        *,
        journal: Journal,
        definitions: Definitions,
        dispatch: Dispatch,
        fold: Fold,
        run_timing: LeaseTiming,
        holder: str,
        carrier: Callable[[], Carrier],
    ) -> None:
        self._journal = journal
        self._definitions = definitions
        self._dispatch = dispatch
        self._fold = fold
        self._granted_again = run_timing.granted_again
        self._holder = holder
        # Both know each other: the carrier hands over what it cannot begin, and gets it back ready.
        self._carrier = carrier
        self._waiting: list[Held] = []
        self._level = Level()

    def add(self, held: Held) -> None:
        self._waiting.append(held)
        self._level.set()

    async def run(self) -> None:
        backoff = Backoff()
        while True:
            await self._level.wait()
            while self._waiting:
                batch, self._waiting = self._waiting[:_LOADS_MAX], self._waiting[_LOADS_MAX:]
                left = await self.serve([held for held in batch if not held.is_dropped])
                if left:
                    self._waiting += left
                    await asyncio.sleep(backoff.next())
                else:
                    backoff.reset()

    async def serve(self, batch: Sequence[Held]) -> list[Held]:
        """Those that must wait for another try."""
        known = await self._with_versions(batch)
        left = [held for held in batch if held not in known and not held.is_dropped and held.is_loading]
        if not known:
            return left
        try:
            loaded = await self._journal.load([Lease(held.execution_id, held.epoch) for held in known])
            live = await self._journal.live_instances(self._granted_again)
        except DependencyUnavailable as failure:
            log.warning("journals cannot be read", executions=len(known), error=str(failure))
            return [*left, *known]
        for held, found in zip(known, loaded, strict=True):
            if not held.is_dropped:
                self._arrived(held, found, live.keys())
                await asyncio.sleep(0)  # a long fold must not keep the beats waiting
        return left

    async def _with_versions(self, batch: Sequence[Held]) -> list[Held]:
        wanted = {held.grant.start.version_id for held in batch}
        ids = sorted(wanted)
        answers = await asyncio.gather(*(self._version(version_id) for version_id in ids))
        versions = dict(zip(ids, answers, strict=True))
        known: list[Held] = []
        for held in batch:
            version = versions[held.grant.start.version_id]
            if isinstance(version, DefinitionRefused):
                self._refuse(held, version.reason, str(version), permanent=True)
            elif version is not None:
                held.version = version
                known.append(held)
        return [held for held in known if not held.is_dropped]

    async def _version(self, version_id: str) -> Version | DefinitionRefused | None:
        try:
            return await self._definitions.get(version_id)
        except DefinitionRefused as refused:
            return refused
        except DependencyUnavailable as failure:
            log.warning("a definition cannot be fetched", version_id=version_id, error=str(failure))
            return None

    def _arrived(self, held: Held, found: Loaded, live: Container[str]) -> None:
        assert held.version is not None
        carrier = self._carrier()
        if found.epoch == 0:
            carrier.begin(held)
            return
        if found.epoch > held.epoch:
            log.warning("fenced while taking over", execution_id=held.execution_id, epoch=held.epoch)
            carrier.drop(held)
            return
        try:
            held.execution = self._fold(held.execution_id, held.version.definition, found.events)
        except UnknownEvents as unknown:
            log.error("a journal of a newer version", execution_id=held.execution_id, error=str(unknown))
            loop = asyncio.get_running_loop()
            loop.call_later(_UNKNOWN_EVENT_SECONDS, self._hand_back, held)
        except Exception:
            log.exception("a journal cannot be folded", execution_id=held.execution_id)
            self._refuse(
                held, "JOURNAL_CORRUPT", "the journal of this execution cannot be read", permanent=False
            )
        else:
            _adopted.inc()
            log.info("took over", execution_id=held.execution_id, epoch=held.epoch, seq=held.execution.seq)
            carrier.resume(held, Adopt(held.epoch, self._holder, live))

    def _hand_back(self, held: Held) -> None:
        if not held.is_dropped:
            self._dispatch.released(held.execution_id, held.epoch, reason="EVENT_UNKNOWN")
            self._carrier().drop(held)

    def _refuse(self, held: Held, reason: str, message: str, *, permanent: bool) -> None:
        self._dispatch.released(
            held.execution_id, held.epoch, failed=True, permanent=permanent, reason=reason, message=message
        )
        self._carrier().drop(held)
