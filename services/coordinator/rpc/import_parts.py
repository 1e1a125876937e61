"""Takes an export apart into a copy: the events are kept sealed, the rows are compared, and the outputs are stored.

Order matters. No output is stored before the events and the rows have been found whole, and the copy is written last,
in one transaction. The outputs get their names at the end of that transaction. So nothing is left of an import that was
refused, and a workspace cannot fill the output store with what its copies do not count.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from services.chassis.blobs import BlobDiffers, BlobTooLarge, DirectoryBlobs, UnnamedBlobs
from services.chassis.grpc.errors import DependencyUnavailable, QuotaViolation, Refusal
from services.chassis.process.clock import Clock
from services.chassis.process.rests import Rests
from services.coordinator.app.importing import (
    ImportedCopy,
    ImportOrder,
    Imports,
    ImportsFull,
    ResealingCodec,
    copied,
    renamed_output,
    stored_outputs,
)
from services.coordinator.app.replays import Replays
from services.coordinator.core.events import Event
from services.coordinator.core.projection import EXECUTION_COLUMNS
from services.coordinator.core.recorded_rows import RowName
from services.coordinator.core.replaying import NotReplayable, Replayed
from services.coordinator.core.run_ids import is_execution_id
from services.coordinator.core.values import FINAL_STATES, Instant, OutputRef
from services.coordinator.rpc.export_parts import DecodesEvents, ExportParts, compiled
from windlass.journal.v1.export_pb2 import ExportEnd, ExportHeader, ExportPart, OutputPart

# A record of the copy's journal is closed when its events have this size or number. Whoever reads a record reads all of
# it.
_RECORD_BYTES: Final = 64 * 1024
_RECORD_EVENTS: Final = 500


class ImportCodec(ResealingCodec, DecodesEvents, Protocol): ...


class Imported(NamedTuple):
    execution_id: str
    # An earlier call has made it.
    is_existing: bool


class ImportDesk:
    def __init__(
        self,
        replays: Replays,
        imports: Imports,
        codec: ImportCodec,
        blobs: DirectoryBlobs,
        clock: Clock,
        *,
        kept_bytes_max: int,
    ) -> None:
        """`kept_bytes_max`: so many bytes the copies of a workspace have together at most."""
        self._replays = replays
        self._imports = imports
        self._codec = codec
        self._blobs = blobs
        self._clock = clock
        self._kept_bytes_max = kept_bytes_max

    async def take(
        self, order: ImportOrder, header: ExportHeader, parts_after_header: AsyncIterator[ExportPart]
    ) -> Imported:
        """Raises a Refusal that says what is wrong with the parts, and where."""
        definition = compiled(order.definition, order.references)
        taken = _Taken(order, self._codec, await self._room(order))
        parts = ExportParts(self._codec, taken.noted(parts_after_header))
        try:
            if not is_execution_id(order.imported_execution_id):
                raise NotReplayable("the header has no id of an execution")
            events = taken.collected(parts.events_and_rows())
            replayed = await self._replays.of_export(order.imported_execution_id, definition, events)
            _check(replayed)
            copy = await Rests(self._clock).through(copied(order, definition, taken.records, self._codec))
            taken.records.clear()
            _check_header(header, copy, replayed)
            async with self._blobs.unnamed(order.workspace, order.month) as unnamed:
                outputs = await self._stored_outputs(unnamed, taken.named, parts)
                _check_end(await parts.end(), outputs, replayed)
                digest = taken.digest.digest()
                is_new = await self._imports.add(
                    order,
                    digest,
                    copy,
                    size_bytes=taken.size_bytes,
                    kept_bytes_max=self._kept_bytes_max,
                    name_outputs=partial(self._name_outputs, unnamed),
                )
        except NotReplayable as fault:
            raise Refusal("INVALID_EXPORT", str(fault)) from None
        except ImportsFull:
            raise self._full(order.workspace) from None
        return Imported(order.execution_id, False) if is_new else await self._earlier(order, digest)

    async def _room(self, order: ImportOrder) -> int:
        """So many bytes may come. A repeat needs none, because the copy is there."""
        if order.request_id and await self._imports.earlier(order.workspace, order.request_id) is not None:
            return sys.maxsize
        return self._kept_bytes_max - await self._imports.kept_bytes(order.workspace)

    def _full(self, workspace: str) -> Refusal:
        limit = f"the copies of a workspace have at most {self._kept_bytes_max} bytes together"
        return Refusal(
            "IMPORTED_BYTES_EXCEEDED",
            f"{limit}; the oldest are removed with their month",
            metadata={"workspace": workspace, "try": "windlass list --filter 'imported_execution_id:*'"},
            quota=[QuotaViolation(f"workspace:{workspace}", limit)],
        )

    async def _earlier(self, order: ImportOrder, digest: bytes) -> Imported:
        found = await self._imports.earlier(order.workspace, order.request_id)
        if found is None or found[1] != digest:
            raise Refusal("REQUEST_ID_REUSED", "this request_id was used before with another export")
        return Imported(found[0], True)

    async def _stored_outputs(self, unnamed: UnnamedBlobs, named: Mapping[str, OutputRef], parts: ExportParts) -> int:
        """Store the outputs that come, and return their number."""
        come: set[str] = set()
        while (first := await parts.output()) is not None:
            ref = named.get(first.key)
            if ref is None or first.key in come:
                raise NotReplayable(f"the output {first.key!r} is named by no event, or comes twice")
            come.add(first.key)
            if not first.is_missing:
                await self._store(unnamed, ref, _pieces(first, parts))
        return len(come)

    async def _store(self, unnamed: UnnamedBlobs, ref: OutputRef, pieces: AsyncIterator[bytes]) -> None:
        try:
            kept = await self._blobs.put_unnamed(unnamed, pieces, ref.size_bytes, sha256=ref.sha256)
        except BlobTooLarge:
            raise NotReplayable(f"the output {ref.key!r} is larger than its event says") from None
        except BlobDiffers:
            raise NotReplayable(f"the output {ref.key!r} is not the one that its event names") from None
        except OSError:
            raise DependencyUnavailable("the output store") from None
        if kept.size_bytes != ref.size_bytes:
            raise NotReplayable(f"the output {ref.key!r} is smaller than its event says")

    async def _name_outputs(self, unnamed: UnnamedBlobs) -> None:
        try:
            await self._blobs.name_all(unnamed)
        except OSError:
            raise DependencyUnavailable("the output store") from None


class _Taken:
    """The events of an export that have come so far."""

    def __init__(self, order: ImportOrder, codec: ImportCodec, room: int) -> None:
        """Raises ImportsFull when more bytes than `room` have come."""
        self.size_bytes = 0
        self._room = room
        self.records: list[bytes] = []
        # The outputs that the events name, by their keys.
        self.named: dict[str, OutputRef] = {}
        # The digest of all parts but the outputs.
        self.digest = hashlib.sha256(order.imported_execution_id.encode() + b"\0" + order.definition)
        self._order = order
        self._codec = codec
        # The lease of the event that came last.
        self._epoch = 0
        # The lease and the time of the record that is not closed yet, its first event, and its events with their size.
        self._lease: tuple[int, Instant] = (0, 0)
        self._first = 1
        self._open: list[bytes] = []
        self._open_bytes = 0

    async def noted(self, parts: AsyncIterator[ExportPart]) -> AsyncIterator[ExportPart]:
        self._count(len(self._order.definition))
        async for part in parts:
            self._count(part.ByteSize())
            kind = part.WhichOneof("part")
            if kind != "output":
                self.digest.update(part.SerializeToString(deterministic=True))
            if kind == "event":
                self._epoch = part.event.epoch
            yield part

    def _count(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        if self.size_bytes > self._room:
            raise ImportsFull

    async def collected(
        self, found: AsyncIterator[tuple[int, Event] | tuple[RowName, Mapping[str, Any]]]
    ) -> AsyncIterator[tuple[int, Event] | tuple[RowName, Mapping[str, Any]]]:
        async for name, value in found:
            if isinstance(name, int) and isinstance(value, Event):
                self._add(name, value)
                yield name, value
            elif isinstance(name, tuple) and isinstance(value, Mapping):
                yield name, value
        self._close()

    def _add(self, seq: int, event: Event) -> None:
        for ref in stored_outputs(event):
            renamed_output(ref, self._order)  # it can be stored
            if self.named.setdefault(ref.key, ref) != ref:
                raise NotReplayable(f"event {seq} says otherwise of the output {ref.key!r} than one before it")
        lease = (self._epoch, event.time)
        if lease != self._lease or self._open_bytes >= _RECORD_BYTES or len(self._open) >= _RECORD_EVENTS:
            self._close()
            self._lease, self._first = lease, seq
        self._open.append(encoded := self._codec.encode_event(event))
        self._open_bytes += len(encoded)

    def _close(self) -> None:
        if self._open:
            epoch, time = self._lease
            self.records.append(
                self._codec.seal(self._order.imported_execution_id, self._first, epoch, time, self._open)
            )
            self._open, self._open_bytes = [], 0


async def _pieces(first: OutputPart, parts: ExportParts) -> AsyncIterator[bytes]:
    """The pieces of one output."""
    piece: OutputPart | None = first
    while piece is not None:
        yield piece.data
        piece = await parts.output(first.key)


def _check(replayed: Replayed) -> None:
    if found := replayed.first_difference:
        raise NotReplayable(
            f"event {found.seq} ({found.event_type}) does not add up to what was recorded:"
            f" {found.field or 'the event itself'} was {found.recorded[:200]} and is {found.replayed[:200]}"
        )
    if replayed.events == 0:
        raise NotReplayable("there are no events")


def _check_end(end: ExportEnd, outputs: int, replayed: Replayed) -> None:
    if outputs not in (0, end.outputs):
        raise NotReplayable(f"the export has {outputs} outputs, and its end says {end.outputs}")
    if replayed.recorded_hash != end.recorded_hash:
        raise NotReplayable("the rows are not those that its end has the hash of")


def _check_header(header: ExportHeader, copy: ImportedCopy, replayed: Replayed) -> None:
    row = dict(zip(EXECUTION_COLUMNS, copy.execution, strict=False))
    if (header.workflow, header.version) != (row["workflow"], row["version"]):
        raise NotReplayable("its header and its first event name different versions")
    if (row["state"] in FINAL_STATES) != bool(replayed.recorded_hash):
        raise NotReplayable(
            f"the state is {row['state']}; an export has rows if the execution has ended, and else none"
        )
