"""What loops have in the output store: lists that are too large to be inline, and outputs that are.

`ItemsRequested` and `LoopGathered` make it an obligation of the execution to read a list and to store an output. So
whoever takes the execution over begins anew. The store names a value by its hash, so a second try is harmless.

An output is never in memory as a whole: its parts are the outputs of the items, and those that are in the store
themselves are copied in pieces. A list is, and stays there while its loop is under way, so its size is limited.

Hazard: to parse a list takes long (a tenth of a second for the largest), so one is parsed at a time, in a thread.
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
from services.coordinator.core.commands import Command, FinishLoop, StartLoop
from services.coordinator.core.effects import OfStore, ReadItems
from services.coordinator.core.items import ITEMS_BYTES_MAX, InvalidItems, LoopConfig, loop_config, unread_lists
from services.coordinator.core.loop_outputs import output_parts
from services.coordinator.core.loops import OUTPUT_BYTES_MAX
from services.coordinator.core.state import Execution, Work, WorkLoop
from services.coordinator.core.values import OutputRef, Value

log = logger(__name__)

_RETRY_SECONDS_MAX: Final = 5.0


class Store(Protocol):
    async def put_parts(self, parts: AsyncIterator[bytes], bytes_max: int, owner: str, month: str) -> BlobRef: ...
    async def get(self, ref: NamesBlob, owner: str) -> bytes: ...
    def get_parts(self, ref: NamesBlob, owner: str) -> AsyncIterator[bytes]: ...


class _Asked(NamedTuple):
    owned: OwnedExecution
    effect: OfStore

    @property
    def work(self) -> Work:
        return self.effect.work if isinstance(self.effect, ReadItems) else self.effect.loop.work

    @property
    def is_wanted(self) -> bool:
        """False: the execution has another holder, or the loop was ended."""
        execution = self.owned.execution
        if self.owned.is_dropped or execution is None:
            return False
        return self.work.key in (execution.unread if isinstance(self.effect, ReadItems) else execution.unstored)


class LoopStore:
    """One value at a time. What waits is bounded by the loops of the owned executions."""

    def __init__(self, executions: OwnedExecutions, store: Store) -> None:
        self._executions = executions
        self._store = store
        self._waiting: list[_Asked] = []
        self._level = Level()

    def ask(self, owned: OwnedExecution, effect: OfStore) -> None:
        self._waiting.append(_Asked(owned, effect))
        self._level.set()

    async def read_lists(self, execution: Execution, workspace: str) -> None:
        """After a take-over: the lists that items under way need. Raises BlobMissing or OSError."""
        for loop, ref in unread_lists(execution):
            loop.items = (await self._config(ref, workspace)).items or ()

    async def run(self) -> None:
        backoff = Backoff(cap=_RETRY_SECONDS_MAX)
        while True:
            await self._level.wait()
            while self._waiting:
                asked = self._waiting.pop(0)
                if not asked.is_wanted:
                    continue
                try:
                    command = await self._done(asked)
                except (BlobMissing, OSError) as failure:
                    log.error(
                        "the output store cannot serve a loop",
                        execution_id=asked.owned.execution_id,
                        node=asked.work.key.node,
                        why=type(failure).__name__,
                    )
                    # Others go first, because this may concern one value alone.
                    self._waiting.append(asked)
                    await asyncio.sleep(backoff.next())
                    continue
                backoff.reset()
                if asked.is_wanted:
                    self._executions.put(asked.owned, command)

    async def _done(self, asked: _Asked) -> Command:
        owned, effect = asked
        workspace = owned.start.origin.workspace
        if isinstance(effect, ReadItems):
            ref = effect.work.config
            assert isinstance(ref, OutputRef)
            try:
                return StartLoop(effect.work.key, await self._config(ref, workspace))
            except InvalidItems as fault:
                return StartLoop(effect.work.key, None, str(fault))
        return FinishLoop(effect.loop.work.key, await self._stored(owned, effect.loop))

    async def _config(self, ref: OutputRef, workspace: str) -> LoopConfig:
        if ref.size_bytes > ITEMS_BYTES_MAX:
            raise InvalidItems(f"the items have {ref.size_bytes} bytes together; at most {ITEMS_BYTES_MAX}")
        text = await self._store.get(ref, workspace)
        return await asyncio.to_thread(loop_config, text)

    async def _stored(self, owned: OwnedExecution, loop: WorkLoop) -> OutputRef | None:
        assert owned.execution is not None
        workspace, parts = owned.start.origin.workspace, output_parts(owned.execution, loop)
        month = month_of(owned.execution_id)
        try:
            return OutputRef(
                *await self._store.put_parts(self._pieces(parts, workspace), OUTPUT_BYTES_MAX, workspace, month)
            )
        except BlobTooLarge:
            return None

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
