"""Loads executions that cannot be decided at once: their definition must be fetched, or their journal read and folded.

Each definition is fetched once and by itself, so one that does not come holds up only the executions that need it.

Journals are read in batches, each in one statement with a short time limit, because other executions wait. The fences
are raised first. A batch that failed is split into parts, which are read in alternation with new executions. A journal
that cannot be read alone either is read on another connection with much more time.

While api or the database is away, loading is tried again. An execution that can never be loaded is handed back with the
reason. So is one that had begun and has no rows any more: it never begins anew. One that a newer coordinator may
understand (an unknown event or definition) is handed back after a rest.

Hazard: a lease may be lost while its journal is read. Then the OwnedExecution is dropped, and the journal thrown away.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Final

from services.chassis.blobs import BlobMissing
from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.lease.frames import Lease
from services.chassis.process.backoff import Backoff
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter
from services.coordinator.app.fork_origins import ForkOrigins, OriginGone, OriginNotRead
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.owned_executions import JOURNAL_GONE, OwnedExecutions
from services.coordinator.app.ports import (
    DefinitionRefused,
    Definitions,
    Journal,
    JournalDamaged,
    Loaded,
    SnapshotDamaged,
    TakenUp,
    UnknownEvents,
)
from services.coordinator.core.commands import Adopt
from services.coordinator.core.definition import Definition
from services.coordinator.core.state import Execution

log = logger(__name__)

_LOADS_MAX: Final = 200
# A failed batch is split into this many parts. Each read may take its full time, so few reads must find the bad one.
_PARTS: Final = 14
# A newer coordinator may need a moment to start, and a lease that rests here costs less than one that bounces.
REST_SECONDS: Final = 5.0

_adopted = counter("coordinator_executions_adopted_total", "Executions taken over from another holder.")


# Folds a journal, given the execution's id and what was loaded of it. It raises UnknownEvents or SnapshotDamaged. Any
# other exception means that the journal is damaged.
Fold = Callable[[str, Definition, Loaded], TakenUp]


class JournalLoader:
    def __init__(
        self,
        *,
        executions: OwnedExecutions,
        journal: Journal,
        definitions: Definitions,
        fold: Fold,
        read_lists: Callable[[Execution, str], Awaitable[None]],
        fork_origins: ForkOrigins,
        granted_again: float,
        holder: str,
    ) -> None:
        """`read_lists` reads the lists that loops under way have in the output store of this workspace. It raises
        BlobMissing or OSError."""
        self._executions = executions
        self._journal = journal
        self._definitions = definitions
        self._fold = fold
        self._read_lists = read_lists
        self._fork_origins = fork_origins
        self._granted_again = granted_again
        self._holder = holder
        # The executions that wait for a definition, by version.
        self._without: dict[str, list[OwnedExecution]] = {}
        # The executions that have their definition and wait for their journal.
        self._ready: list[OwnedExecution] = []
        # The number of journals that are read at once. It is less after a failure, because the database may be slow.
        self._loads_max = _LOADS_MAX
        # The parts of batches that could not be read.
        self._parts: deque[list[OwnedExecution]] = deque()
        self._backoff = Backoff()
        self._patient = asyncio.Lock()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                if not self._ready and not self._parts:
                    await self._executions.unloaded_level.wait()
                    self._sort(group)
                # The two take turns, so that new executions and those that failed do not hold each other up.
                if self._ready:
                    count = self._loads_max
                    batch, self._ready = self._ready[:count], self._ready[count:]
                    await self._read(batch, group)
                if self._parts:
                    await self._read(self._parts.popleft(), group)

    async def _read(self, batch: list[OwnedExecution], group: asyncio.TaskGroup) -> None:
        is_read = await self._load(batch, group)
        self._sort(group)
        if is_read:
            if len(batch) >= self._loads_max:
                self._loads_max = min(2 * self._loads_max, _LOADS_MAX)
            self._backoff.reset()
            return
        size = self._loads_max = max(1, len(batch) // _PARTS)
        if len(batch) > 1:
            self._parts += [batch[at : at + size] for at in range(0, len(batch), size)]
        else:
            group.create_task(self._read_patiently(batch[0], group))
        await asyncio.sleep(self._backoff.next())

    async def _read_patiently(self, owned: OwnedExecution, group: asyncio.TaskGroup) -> None:
        """Reads a journal that could not be read alone either. Such journals share a connection."""
        backoff = Backoff()
        while True:
            async with self._patient:
                if await self._load([owned], group, is_patient=True):
                    return
            await asyncio.sleep(backoff.next())

    # ── definitions ──────────────────────────────────────────────────────────────────────────────────────────────

    def _sort(self, group: asyncio.TaskGroup) -> None:
        """Those that have their definition wait for their journal. Each missing definition is asked for once."""
        unloaded, self._executions.unloaded = self._executions.unloaded, []
        for owned in unloaded:
            version_id = owned.start.origin.version_id
            # It may have come since the execution was granted.
            owned.version = owned.version or self._definitions.cached(version_id)
            if owned.version is not None:
                self._ready.append(owned)
            elif version_id in self._without:
                self._without[version_id].append(owned)
            else:
                self._without[version_id] = [owned]
                group.create_task(self._fetch(version_id))

    async def _fetch(self, version_id: str) -> None:
        """Tries until there is an answer, or until no execution waits for it any more."""
        backoff = Backoff()
        while waiting := self._still_without(version_id):
            try:
                version = await self._definitions.get(version_id)
            except DependencyUnavailable as failure:
                count = len(waiting)
                log.warning(
                    "a definition cannot be fetched", version_id=version_id, executions=count, error=str(failure)
                )
                await asyncio.sleep(backoff.next())
                continue
            except DefinitionRefused as refused:
                for owned in self._still_without(version_id):
                    self._go_without(owned, refused)
            else:
                for owned in self._still_without(version_id):
                    owned.version = version
                    self._ready.append(owned)
                self._executions.unloaded_level.set()
            break
        del self._without[version_id]

    def _still_without(self, version_id: str) -> list[OwnedExecution]:
        waiting = [owned for owned in self._without[version_id] if not owned.is_dropped]
        self._without[version_id] = waiting
        return waiting

    def _go_without(self, owned: OwnedExecution, refused: DefinitionRefused) -> None:
        if refused.is_permanent:
            self._executions.return_lease(owned, refused.reason, str(refused), permanent=True)
        else:
            self._rest(owned, refused.reason, str(refused), failed=True)

    # ── journals ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _load(
        self, batch: Sequence[OwnedExecution], group: asyncio.TaskGroup, *, is_patient: bool = False
    ) -> bool:
        """False: the batch must be tried again."""
        known = [owned for owned in batch if not owned.is_dropped]
        if not known:
            return True
        try:
            leases = [Lease(owned.execution_id, owned.epoch) for owned in known]
            loaded = await self._journal.load(leases, is_patient=is_patient)
            live = await self._journal.live_instances(self._granted_again)
        except DependencyUnavailable as failure:
            log.warning("journals cannot be read", executions=len(known), error=str(failure))
            return False
        except JournalDamaged as damaged:
            log.error("a journal is damaged", executions=len(known), first=known[0].execution_id, error=str(damaged))
            if len(known) == 1:
                self._corrupt(known[0])
            return len(known) == 1
        for owned, found in zip(known, loaded, strict=True):
            if not owned.is_dropped:
                await self._arrived(owned, found, live.keys(), group)
                await asyncio.sleep(0)  # a long fold must not keep the beats waiting
        return True

    async def _arrived(
        self, owned: OwnedExecution, found: Loaded, live: Container[str], group: asyncio.TaskGroup
    ) -> None:
        assert owned.version is not None
        if found.epoch == 0 and not owned.has_begun:
            if owned.is_unprepared_fork:
                group.create_task(self._prepare(owned))
            else:
                self._executions.begin(owned)
            return
        if found.epoch > owned.epoch:
            log.warning("fenced while taking over", execution_id=owned.execution_id, epoch=owned.epoch)
            self._executions.drop(owned)
            return
        if not (found.events or found.snapshots):
            self._gone(owned)
            return
        try:
            execution, owned.snapshots = await self._folded(owned, owned.version.definition, found)
            await self._read_lists(execution, owned.start.origin.workspace)
        except (BlobMissing, OSError) as failure:
            log.error("the list of a loop cannot be read", execution_id=owned.execution_id, why=type(failure).__name__)
            self._rest(owned, "OUTPUT_STORE", "the list of a loop cannot be read from the output store", failed=True)
        except DependencyUnavailable as failure:
            log.warning("a journal cannot be read", execution_id=owned.execution_id, error=str(failure))
            self._parts.append([owned])
            # A patient reader may be here while the loop sleeps.
            self._executions.unloaded_level.set()
        except UnknownEvents as unknown:
            log.error("a journal of a newer version", execution_id=owned.execution_id, error=str(unknown))
            self._rest(owned, "EVENT_UNKNOWN", "", failed=False)
        except Exception:
            log.exception("a journal cannot be folded", execution_id=owned.execution_id)
            self._corrupt(owned)
        else:
            if owned.is_dropped:
                return
            owned.execution = execution
            _adopted.inc()
            log.info("took over", execution_id=owned.execution_id, epoch=owned.epoch, seq=execution.seq)
            grant_time = owned.start.grant_time if owned.wake_time else 0
            adopt = Adopt(owned.epoch, self._holder, live, owned.wake_time, grant_time)
            self._executions.resume(owned, adopt)

    # ── forks ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _prepare(self, owned: OwnedExecution) -> None:
        """A fork begins once its origin was read."""
        backoff, failure = Backoff(), None
        while not owned.is_dropped:
            try:
                await self._fork_origins.prepare(owned)
            except DependencyUnavailable as unavailable:
                log.warning("an origin cannot be read", execution_id=owned.execution_id, error=str(unavailable))
                await asyncio.sleep(backoff.next())
                continue
            except Exception as failed:  # noqa: BLE001 - it concerns this fork alone
                failure = failed
            break
        if owned.is_dropped:
            return
        if failure is None:
            self._executions.begin(owned)
        else:
            self._go_without_origin(owned, failure)

    def _go_without_origin(self, owned: OwnedExecution, failure: Exception) -> None:
        origin_id = owned.start.origin.origin_execution_id
        log.error("a fork cannot be prepared", execution_id=owned.execution_id, origin=origin_id, exc_info=failure)
        match failure:
            case OriginGone():
                message = f"the rows of its origin {origin_id} are gone"
                self._executions.return_lease(owned, "ORIGIN_GONE", message, permanent=True)
            case OriginNotRead():
                self._rest(owned, "EVENT_UNKNOWN", "", failed=False)
            case DefinitionRefused():
                self._go_without(owned, failure)
            case BlobMissing() | OSError():
                self._rest(owned, "OUTPUT_STORE", f"an output of its origin {origin_id} cannot be read", failed=True)
            case _:
                message = f"the journal of its origin {origin_id} cannot be read"
                self._rest(owned, "ORIGIN_CORRUPT", message, failed=True)

    async def _folded(self, owned: OwnedExecution, definition: Definition, found: Loaded) -> TakenUp:
        try:
            return self._fold(owned.execution_id, definition, found)
        except SnapshotDamaged as damaged:
            log.error("damaged snapshots are dropped", execution_id=owned.execution_id, error=str(damaged))
        lease = Lease(owned.execution_id, owned.epoch)
        (found,) = await self._journal.load([lease], is_patient=True, drops_snapshots=True)
        return self._fold(owned.execution_id, definition, found)

    def _rest(self, owned: OwnedExecution, reason: str, message: str, *, failed: bool) -> None:
        def rested() -> None:
            if not owned.is_dropped:
                self._executions.return_lease(owned, reason, message, failed=failed)

        asyncio.get_running_loop().call_later(REST_SECONDS, rested)

    def _gone(self, owned: OwnedExecution) -> None:
        """It had begun. To begin it anew would do all its work a second time."""
        log.error("the rows of an execution are gone", execution_id=owned.execution_id, epoch=owned.epoch)
        self._executions.return_lease(owned, *JOURNAL_GONE, permanent=True)

    def _corrupt(self, owned: OwnedExecution) -> None:
        self._executions.return_lease(owned, "JOURNAL_CORRUPT", "the journal of this execution cannot be read")
