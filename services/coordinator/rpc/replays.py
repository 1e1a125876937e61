"""ReplayService: exports journals part by part, and replays them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from services.chassis.blobs import BlobMissing, DirectoryBlobs
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.grpc.timestamps import put_micros
from services.chassis.process.clock import Clock
from services.coordinator.app.importing import ImportOrder, stored_outputs
from services.coordinator.app.ports import DefinitionRefused, Definitions, Row, Standing
from services.coordinator.app.replays import RecordedRows, Replays
from services.coordinator.core.events import ControlRendered, Event, WorkRendered
from services.coordinator.core.recorded_rows import RowName, RowsHash, hidden_instance, payload_hash, value_text
from services.coordinator.core.replaying import NotReplayable, Replayed
from services.coordinator.core.run_ids import is_execution_id
from services.coordinator.core.values import FINAL_STATES, Instant, OutputRef
from services.coordinator.rpc.export_parts import (
    FORMAT,
    ExportParts,
    after_header,
    beginning,
    compiled,
    heard_out,
    without_rendered,
)
from services.coordinator.rpc.import_parts import ImportDesk
from windlass.api.v1.exports_pb2 import Replay as ReplayMessage
from windlass.coordinator.v1 import replays_pb2 as pb
from windlass.coordinator.v1.replays_pb2_grpc import ReplayServiceServicer
from windlass.journal.v1.export_pb2 import ExportEnd, ExportPart

# A response has at least one part, and is sent when its parts reach this size.
_RESPONSE_BYTES: Final = 64 * 1024
_APPENDS_PER_READ: Final = 100


class Journals(Protocol):
    async def executions(self, execution_ids: Sequence[str]) -> list[Row]: ...
    async def standings(self, execution_ids: Sequence[str]) -> Mapping[str, Standing]: ...
    async def appends(self, execution_id: str, *, after_seq: int, limit: int) -> list[bytes]:
        """Rows of the journal, from the one that holds the event after `after_seq`."""
        ...

    async def imported_definition(self, execution_id: str) -> bytes: ...
    def recorded_rows(self, execution_id: str) -> RecordedRows: ...


class StoredForm(Protocol):
    """Reads the stored form of events (store/codec.py)."""

    def opened(self, data: bytes) -> tuple[Any, Sequence[Any]]:
        """The append, and its events as messages."""
        ...

    def decoded(self, message: Any, schema_version: int, time: Instant) -> Event | object: ...


class ReplayServicer(ReplayServiceServicer):
    def __init__(
        self,
        journals: Journals,
        replays: Replays,
        codec: StoredForm,
        blobs: DirectoryBlobs,
        clock: Clock,
        imports: ImportDesk,
        definitions: Definitions,
    ) -> None:
        self._definitions = definitions
        self._journals = journals
        self._imports = imports
        self._replays = replays
        self._codec = codec
        self._blobs = blobs
        self._clock = clock

    async def ReplayJournal(self, request: pb.ReplayJournalRequest, context: Any) -> pb.ReplayJournalResponse:
        row = await self._row(request.execution_id)
        replayed = None if row is None else await self._replays.of_stored(row)
        return pb.ReplayJournalResponse(replay=None if replayed is None else _message(replayed))

    async def ReplayParts(self, request_iterator: Any, context: Any) -> pb.ReplayPartsResponse:
        requests = aiter(request_iterator)
        first = await beginning(requests)
        header = first.parts[0].header
        async with heard_out(requests), self._replays.place(first.workspace):
            definition = compiled(header.definition, first.template_references)
            parts = ExportParts(self._codec, after_header(first, requests))
            try:
                replayed = await self._replays.of_export(header.execution_id, definition, parts.events_and_rows())
                while await parts.output() is not None:
                    pass
                await parts.end()
            except NotReplayable as fault:
                raise Refusal("INVALID_EXPORT", str(fault)) from None
        return pb.ReplayPartsResponse(replay=_message(replayed))

    async def ImportParts(self, request_iterator: Any, context: Any) -> pb.ImportPartsResponse:
        requests = aiter(request_iterator)
        first = await beginning(requests)
        header = first.parts[0].header
        order = ImportOrder(
            execution_id=first.execution_id,
            imported_execution_id=header.execution_id,
            workspace=first.workspace,
            request_id=first.request_id,
            definition=header.definition,
            references=first.template_references or b"{}",
        )
        async with heard_out(requests), self._replays.place(order.workspace):
            made = await self._imports.take(order, header, after_header(first, requests))
        return pb.ImportPartsResponse(execution_id=made.execution_id, existing=made.is_existing)

    async def ExportJournal(
        self, request: pb.ExportJournalRequest, context: Any
    ) -> AsyncIterator[pb.ExportJournalResponse]:
        row = await self._row(request.execution_id)
        if row is None:
            return
        response, size_bytes = pb.ExportJournalResponse(), 0
        async for part in self._parts(row):
            response.parts.append(part)
            size_bytes += part.ByteSize()
            if size_bytes >= _RESPONSE_BYTES:
                yield response
                response, size_bytes = pb.ExportJournalResponse(), 0
        yield response

    async def _row(self, execution_id: str) -> Row | None:
        rows = await self._journals.executions([execution_id]) if is_execution_id(execution_id) else []
        return rows[0] if rows else None

    async def _parts(self, row: Row) -> AsyncIterator[ExportPart]:
        end = ExportEnd()
        yield await self._header(row)
        outputs: dict[str, OutputRef] = {}
        left_out: dict[RowName, bytes] = {}
        records_inputs: bool | None = None
        async for part, event in self._events(row["execution_id"], row["last_seq"]):
            end.events += 1
            if isinstance(event, ControlRendered | WorkRendered):
                if records_inputs is None:
                    records_inputs = await self._records_inputs(row)
                if not records_inputs:
                    left_out |= without_rendered(part, event)
                    yield part
                    continue
            outputs.update((each.key, each) for each in stored_outputs(event))
            yield part
        if row["state"] in FINAL_STATES:
            async for part in self._rows(row, end, left_out):
                yield part
        for ref in outputs.values():
            end.outputs += 1
            async for part in self._output(ref, row["workspace"]):
                yield part
        yield ExportPart(end=end)

    async def _records_inputs(self, row: Row) -> bool:
        """False if the definition cannot be read, which may say so too."""
        try:
            version = await self._definitions.get(row["version_id"])
        except DefinitionRefused:
            return False
        return version.definition.records_inputs

    async def _header(self, row: Row) -> ExportPart:
        part = ExportPart()
        header = part.header
        header.format, header.execution_id, header.workspace = FORMAT, row["execution_id"], row["workspace"]
        header.workflow, header.version, header.state = row["workflow"], row["version"], row["state"]
        put_micros(header.export_time, self._clock.epoch_ns() // 1_000)
        if row["imported_execution_id"]:
            header.definition = await self._journals.imported_definition(row["execution_id"])
        return part

    async def _events(self, execution_id: str, last_seq: int) -> AsyncIterator[tuple[ExportPart, Event]]:
        seq = 0
        while seq < last_seq:
            before = seq
            for data in await self._journals.appends(execution_id, after_seq=seq, limit=_APPENDS_PER_READ):
                for part, event in _parts_of(self._codec, data):
                    seq = part.event.seq
                    if seq <= last_seq:
                        yield part, event
            if seq == before:
                raise Refusal("INTERNAL", f"the journal ends at event {seq} and its execution at {last_seq}")

    async def _rows(self, row: Row, end: ExportEnd, left_out: Mapping[RowName, bytes]) -> AsyncIterator[ExportPart]:
        """`left_out` has what stands in the place of outputs that are not exported."""
        digest = RowsHash()
        async for name, columns in self._journals.recorded_rows(row["execution_id"]):
            shown = {**columns, "output": payload_hash(left_out[name])} if name in left_out else columns
            text = value_text(shown)
            digest.add(name, text)
            part = ExportPart()
            part.row.table, part.row.number = name
            part.row.columns = text
            yield part
        standing = (await self._journals.standings([row["execution_id"]])).get(row["execution_id"])
        if standing is None or standing.last_seq != row["last_seq"]:
            raise Refusal("CONTENDED", "the execution went on while it was exported; export it again")
        end.rows, end.recorded_hash = digest.count, str(digest)

    async def _output(self, ref: OutputRef, workspace: str) -> AsyncIterator[ExportPart]:
        has_come = False
        try:
            async for data in self._blobs.get_parts(ref, workspace):
                part = ExportPart()
                part.output.key, part.output.data = ref.key, data
                has_come = True
                yield part
        except BlobMissing:
            if has_come:
                raise
            part = ExportPart()
            part.output.key, part.output.is_missing = ref.key, True
            yield part
        except OSError:
            raise DependencyUnavailable("the output store") from None


def _parts_of(codec: StoredForm, data: bytes) -> Iterator[tuple[ExportPart, Event]]:
    append, messages = codec.opened(data)
    for seq, message in enumerate(messages, append.first_seq):
        event = codec.decoded(message, append.schema_version, append.time)
        if not isinstance(event, Event):
            raise Refusal("EVENTS_NOT_KNOWN", f"a newer coordinator has written event {seq}; ask that one")
        part = ExportPart()
        place = part.event
        place.seq, place.epoch, place.schema_version = seq, append.epoch, append.schema_version
        put_micros(place.time, append.time)
        place.event.CopyFrom(message)
        if message.WhichOneof("event") == "run_leased":
            leased = place.event.run_leased
            leased.instance_id = hidden_instance(leased.instance_id)
        yield part, event


def _message(replayed: Replayed) -> ReplayMessage:
    message = ReplayMessage(
        execution_id=replayed.execution_id,
        events=replayed.events,
        recorded_hash=replayed.recorded_hash,
        replayed_hash=replayed.replayed_hash,
        redecided=replayed.redecided,
    )
    for name in ("first_difference", "decided_otherwise"):
        found = getattr(replayed, name)
        if found is not None:
            shown = {field: _clipped(value) for field, value in found._asdict().items()}
            getattr(message, name).MergeFrom(ReplayMessage.Difference(**shown))
    return message


def _clipped(value: Any) -> Any:
    return value[:2_000] if isinstance(value, str) else value
