"""Executions that cannot be decided at once: their definition must be fetched, or their journal read and folded.

Each definition is asked for once, by itself: one that does not come holds up nobody but those who need it. All journals
of what is then ready are read in one statement, under our raised fence, for which there is little time: others wait.
What failed, perhaps as too much for it, is read in parts, by turns with newcomers, and at last one by one; a journal
that cannot be read even then has all the time it needs, on a connection beside the others'. What cannot be
served now (api or the database away) waits and is tried again; what never can is handed back with its reason. What a
newer coordinator may know (a record or a definition of a version to come) is handed back after a rest.

Hazard: a lease may be lost while we read. Then the Held is dropped, and what was read is thrown away.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Final, Protocol

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.lease.frames import Lease
from services.chassis.lease.timing import LeaseTiming
from services.chassis.process.backoff import Backoff
from services.chassis.process.batcher import Level
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter
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
    JournalDamaged,
    Loaded,
    Version,
)

log = logger(__name__)

_LOADS_MAX: Final = 200
# Of a batch that failed. Few steps lead to the one that is to blame, since each may take all of its time.
_PARTS: Final = 14
# A newer coordinator may need a moment to come; a lease that bounces costs more than one that rests.
_REST_SECONDS: Final = 5.0

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
        # By version: those that need it, while it is being asked for.
        self._without: dict[str, list[Held]] = {}
        self._unasked: list[str] = []
        self._ready: list[Held] = []
        # Of them at once: fewer after what failed, perhaps since all of it is slow.
        self._loads_max = _LOADS_MAX
        # Of batches that could not be read.
        self._parts: deque[list[Held]] = deque()
        self._is_turn_of_parts = False
        # Their journals could not be read, each by itself.
        self._hard: deque[Held] = deque()
        self._level = Level()
        self._hard_level = Level()

    def add(self, held: Held) -> None:
        version_id = held.grant.start.version_id
        held.version = self._definitions.cached(version_id)
        if held.version is not None:
            self._ready.append(held)
        elif version_id in self._without:
            self._without[version_id].append(held)
        else:
            self._without[version_id] = [held]
            self._unasked.append(version_id)
        self._level.set()

    async def run(self) -> None:
        backoff = Backoff()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_hard())
            while True:
                await self._level.wait()
                self._ask(group)
                while self._ready or self._parts:
                    batch = self._next_batch()
                    is_read = await self._load(batch, self._journal.load)
                    self._ask(group)
                    if is_read:
                        if len(batch) >= self._loads_max:
                            self._loads_max = min(2 * self._loads_max, _LOADS_MAX)
                        backoff.reset()
                    else:
                        self._part(batch)
                        await asyncio.sleep(backoff.next())

    async def _run_hard(self) -> None:
        backoff = Backoff()
        while True:
            await self._hard_level.wait()
            while self._hard:
                held = self._hard.popleft()
                if await self._load([held], self._journal.load_hard):
                    backoff.reset()
                else:
                    self._hard.append(held)
                    await asyncio.sleep(backoff.next())

    # ── definitions ──────────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, group: asyncio.TaskGroup) -> None:
        unasked, self._unasked = self._unasked, []
        for version_id in unasked:
            group.create_task(self._fetch(version_id))

    async def _fetch(self, version_id: str) -> None:
        """Until there is an answer, or nobody left who waits for one."""
        backoff = Backoff()
        answer: Version | DefinitionRefused | None = None
        while answer is None and (waiting := self._still_without(version_id)):
            try:
                answer = await self._definitions.get(version_id)
            except DefinitionRefused as refused:
                answer = refused
            except DependencyUnavailable as failure:
                log.warning(
                    "a definition cannot be fetched",
                    version_id=version_id,
                    executions=len(waiting),
                    error=str(failure),
                )
                await asyncio.sleep(backoff.next())
        waiting = self._still_without(version_id)
        del self._without[version_id]
        for held in waiting:
            if isinstance(answer, DefinitionRefused):
                self._go_without(held, answer)
            else:
                held.version = answer
                self._ready.append(held)
        self._level.set()

    def _still_without(self, version_id: str) -> list[Held]:
        waiting = [held for held in self._without[version_id] if not held.is_dropped]
        self._without[version_id] = waiting
        return waiting

    def _go_without(self, held: Held, refused: DefinitionRefused) -> None:
        hand_back = functools.partial(
            self._refuse, held, refused.reason, str(refused), permanent=refused.is_permanent
        )
        if refused.is_permanent:
            hand_back()
        else:
            self._rest(held, hand_back)

    # ── journals ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _next_batch(self) -> list[Held]:
        if self._parts and (self._is_turn_of_parts or not self._ready):
            self._is_turn_of_parts = False
            return self._parts.popleft()
        self._is_turn_of_parts = True
        count = self._loads_max
        batch, self._ready = self._ready[:count], self._ready[count:]
        return batch

    def _part(self, batch: list[Held]) -> None:
        size = self._loads_max = max(1, len(batch) // _PARTS)
        if len(batch) > 1:
            self._parts += [batch[at : at + size] for at in range(0, len(batch), size)]
        else:
            self._hard += batch
            self._hard_level.set()

    async def _load(
        self, batch: Sequence[Held], read: Callable[[Sequence[Lease]], Awaitable[Sequence[Loaded]]]
    ) -> bool:
        """False: they are to be tried again."""
        known = [held for held in batch if not held.is_dropped]
        if not known:
            return True
        try:
            loaded = await read([Lease(held.execution_id, held.epoch) for held in known])
            live = await self._journal.live_instances(self._granted_again)
        except DependencyUnavailable as failure:
            log.warning("journals cannot be read", executions=len(known), error=str(failure))
            return False
        except JournalDamaged as damaged:
            log.error(
                "a journal is damaged", executions=len(known), first=known[0].execution_id, error=str(damaged)
            )
            if len(known) == 1:
                self._corrupt(known[0])
            return len(known) == 1
        for held, found in zip(known, loaded, strict=True):
            if not held.is_dropped:
                self._arrived(held, found, live.keys())
                await asyncio.sleep(0)  # a long fold must not keep the beats waiting
        return True

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
            released, lease = self._dispatch.released, (held.execution_id, held.epoch)
            self._rest(held, functools.partial(released, *lease, reason="EVENT_UNKNOWN"))
        except Exception:
            log.exception("a journal cannot be folded", execution_id=held.execution_id)
            self._corrupt(held)
        else:
            _adopted.inc()
            log.info("took over", execution_id=held.execution_id, epoch=held.epoch, seq=held.execution.seq)
            carrier.resume(held, Adopt(held.epoch, self._holder, live))

    def _rest(self, held: Held, hand_back: Callable[[], None]) -> None:
        def rested() -> None:
            if not held.is_dropped:
                hand_back()
                self._carrier().drop(held)

        asyncio.get_running_loop().call_later(_REST_SECONDS, rested)

    def _corrupt(self, held: Held) -> None:
        self._refuse(held, "JOURNAL_CORRUPT", "the journal of this execution cannot be read", permanent=False)

    def _refuse(self, held: Held, reason: str, message: str, *, permanent: bool) -> None:
        self._dispatch.released(
            held.execution_id, held.epoch, failed=True, permanent=permanent, reason=reason, message=message
        )
        self._carrier().drop(held)
