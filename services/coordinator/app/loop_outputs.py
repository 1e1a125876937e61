"""Puts the outputs of loops into the output store, if they are too large to be inline.

`LoopGathered` makes that an obligation of the execution, so it is begun anew by whoever takes the execution over. The
store names a value by its hash, so a second try is harmless. The output is never in memory as a whole: its parts are
the outputs of the items, and those that are in the store themselves are copied in pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple, Protocol

from services.chassis.blobs import PIECE_BYTES, BlobMissing, BlobRef, BlobTooLarge, NamesBlob, month_of
from services.chassis.process.backoff import Backoff
from services.chassis.process.batcher import Level
from services.chassis.telemetry.logs import logger
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.core.commands import FinishLoop
from services.coordinator.core.loop_outputs import output_parts
from services.coordinator.core.loops import OUTPUT_BYTES_MAX
from services.coordinator.core.state import Loop
from services.coordinator.core.values import OutputRef, Value

log = logger(__name__)

_RETRY_SECONDS: Final = 5.0


class PartStore(Protocol):
    async def put_parts(self, parts: AsyncIterator[bytes], bytes_max: int, owner: str, month: str) -> BlobRef: ...

    def get_parts(self, ref: NamesBlob, owner: str) -> AsyncIterator[bytes]: ...


class GatheredLoop(NamedTuple):
    owned: OwnedExecution
    loop: Loop


class LoopOutputs:
    """One output is stored at a time. The list of those that wait is bounded by the owned executions."""

    def __init__(self, executions: OwnedExecutions, store: PartStore) -> None:
        self._executions = executions
        self._store = store
        self._waiting: list[GatheredLoop] = []
        self._level = Level()

    def add(self, owned: OwnedExecution, loop: Loop) -> None:
        self._waiting.append(GatheredLoop(owned, loop))
        self._level.set()

    async def run(self) -> None:
        backoff = Backoff(cap=_RETRY_SECONDS)
        while True:
            await self._level.wait()
            while self._waiting:
                gathered, *self._waiting = self._waiting
                if await self._store_one(gathered):
                    backoff.reset()
                    continue
                # Others may be stored meanwhile: what is missing may concern this one alone.
                self._waiting.append(gathered)
                await asyncio.sleep(backoff.next())

    async def _store_one(self, gathered: GatheredLoop) -> bool:
        """False: it has to be tried again."""
        owned, loop = gathered
        if not _is_wanted(gathered):
            return True
        assert owned.execution is not None
        workspace, parts = owned.start.origin.workspace, output_parts(owned.execution, loop)
        try:
            ref = await self._store.put_parts(
                self._pieces(parts, workspace), OUTPUT_BYTES_MAX, workspace, month_of(owned.execution_id)
            )
            output: OutputRef | None = OutputRef(*ref)
        except BlobTooLarge:
            output = None
        except (BlobMissing, OSError) as failure:
            key, name = loop.work.key, type(failure).__name__
            log.error("the output of a loop cannot be stored", execution_id=owned.execution_id, node=key.node, why=name)
            return False
        if _is_wanted(gathered):
            self._executions.put(owned, FinishLoop(loop.work.key, output))
        return True

    async def _pieces(self, parts: Iterable[Value], workspace: str) -> AsyncIterator[bytes]:
        """The same bytes in pieces that are worth a write."""
        gathered = bytearray()
        for part in parts:
            if isinstance(part, OutputRef):
                async for piece in self._store.get_parts(part, workspace):
                    yield bytes(gathered) + piece
                    gathered.clear()
                continue
            gathered += part
            if len(gathered) >= PIECE_BYTES:
                yield bytes(gathered)
                gathered.clear()
        yield bytes(gathered)


def _is_wanted(gathered: GatheredLoop) -> bool:
    owned, loop = gathered
    execution = owned.execution
    return not owned.is_dropped and execution is not None and execution.unstored.get(loop.work.key) is loop
