"""Reads the parts of an export in their order. Nothing in them is believed: they come from anybody."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Protocol

import orjson

from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.timestamps import micros_of
from services.coordinator.app.export_limits import EventLimits
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.definition import Definition
from services.coordinator.core.events import ControlRendered, Event, WorkRendered
from services.coordinator.core.recorded_rows import RowName
from services.coordinator.core.replaying import NotReplayable
from services.coordinator.core.values import Instant, OutputRef
from windlass.journal.v1.export_pb2 import ExportEnd, ExportPart, OutputPart

FORMAT: Final = 1
# The state that an event makes may be some kilobytes, of which a replay has two.
EVENTS_MAX: Final = 200_000
_NOTHING_RENDERED: Final = b'{"config":{},"inputs":{}}'


class DecodesEvents(Protocol):
    def decoded(self, message: Any, schema_version: int, time: Instant) -> Event | object: ...


class _Request(Protocol):
    @property
    def parts(self) -> Sequence[ExportPart]: ...


async def beginning(requests: AsyncIterator[Any]) -> Any:
    """The first request. Api has made sure that its first part is the header."""
    first = await anext(requests)
    if (given := first.parts[0].header.format) != FORMAT:
        raise Refusal("INVALID_EXPORT", f"the export has the format {given}, and this is {FORMAT}")
    return first


@contextlib.asynccontextmanager
async def heard_out(requests: AsyncIterator[Any]) -> AsyncIterator[None]:
    """A refusal is answered when all requests have come, which api bounds. gRPC's asyncio client may lose an answer
    that comes while it still sends."""
    try:
        yield
    except Refusal:
        async for _ in requests:
            pass
        raise


def without_rendered(part: ExportPart, event: ControlRendered | WorkRendered) -> Mapping[RowName, bytes]:
    """Put an empty document in the place of what a runner has rendered, because the workflow says that its inputs are
    not recorded. What is kept outside has no more than its name here. Returns what stands in the rows then."""
    message = part.event.event
    if isinstance(event, ControlRendered):
        if event.stored is None:
            message.control_rendered.config = _NOTHING_RENDERED
        return {}
    if isinstance(event.rendered, OutputRef):
        return {}
    message.work_rendered.rendered.json = _NOTHING_RENDERED
    return {("runs", event.run): _NOTHING_RENDERED}


def compiled(definition: bytes, references: bytes) -> Definition:
    try:
        return compile_definition(orjson.loads(definition), orjson.loads(references or b"{}"))
    except Exception as failure:
        raise Refusal("INVALID_EXPORT", "the definition cannot be compiled") from failure


async def after_header(first: _Request, requests: AsyncIterator[_Request]) -> AsyncIterator[ExportPart]:
    for part in first.parts[1:]:
        yield part
    async for request in requests:
        for part in request.parts:
            yield part


class ExportParts:
    """The parts of an export, which are asked for in their order. Each method raises NotReplayable."""

    def __init__(self, codec: DecodesEvents, parts: AsyncIterator[ExportPart]) -> None:
        self._codec = codec
        self._parts = parts
        self._counted = ExportEnd()
        self._limits = EventLimits()
        # The first part that has not been asked for, once the events and the rows have come.
        self._next: ExportPart | None = None

    async def events_and_rows(self) -> AsyncIterator[tuple[int, Event] | tuple[RowName, Mapping[str, Any]]]:
        """Raises also a Refusal if they are too many."""
        async for part in self._parts:
            match part.WhichOneof("part"):
                case "event":
                    yield part.event.seq, self._event(part)
                case "row":
                    yield (part.row.table, part.row.number), self._columns(part)
                case _:
                    self._next = part
                    return

    async def output(self, key: str = "") -> OutputPart | None:
        """The next piece of an output, or of the one with this key. None: something else comes."""
        part = self._next
        if part is None or part.WhichOneof("part") != "output" or key not in ("", part.output.key):
            return None
        self._next = await anext(self._parts, None)
        return part.output

    async def end(self) -> ExportEnd:
        """Read the last part. Raises NotReplayable if what it says is not true of the events and the rows."""
        part, counted = self._next, self._counted
        if part is None:
            raise NotReplayable("the export is not whole: its last part, the end, is missing")
        if (kind := part.WhichOneof("part")) != "end":
            raise NotReplayable(f"a part of the kind {kind} is not in its place")
        if await anext(self._parts, None) is not None:
            raise NotReplayable("a part follows the end")
        end = part.end
        if (end.events, end.rows) != (counted.events, counted.rows):
            raise NotReplayable(
                f"the export has {counted.events} events and {counted.rows} rows,"
                f" and its end says {end.events} and {end.rows}"
            )
        return end

    def _event(self, part: ExportPart) -> Event:
        self._counted.events += 1
        if self._counted.events > EVENTS_MAX:
            raise Refusal("EXPORT_TOO_LARGE", f"an export has at most {EVENTS_MAX} events")
        event = _event(self._codec, part)
        self._limits.check(part.event.seq, event)
        return event

    def _columns(self, part: ExportPart) -> Mapping[str, Any]:
        self._counted.rows += 1
        # An event makes a run, an approval and a dead letter at most.
        if self._counted.rows > 3 * (1 + self._counted.events):
            raise NotReplayable("there are more rows than its events can have made")
        return _columns(part)


def _event(codec: DecodesEvents, part: ExportPart) -> Event:
    place = part.event
    try:
        event = codec.decoded(place.event, place.schema_version, micros_of(place.time))
    except Exception as fault:
        raise NotReplayable(f"event {place.seq} is malformed: {fault}") from fault
    if not isinstance(event, Event):
        raise NotReplayable(f"event {place.seq} is of a newer version, or of no known kind")
    return event


def _columns(part: ExportPart) -> Mapping[str, Any]:
    name = f"{part.row.table}.{part.row.number}"
    try:
        columns = json.loads(part.row.columns)
    except (ValueError, RecursionError) as fault:
        raise NotReplayable(f"the row {name} is no JSON: {fault}") from None
    if not isinstance(columns, dict):
        raise NotReplayable(f"the row {name} is no JSON object")
    return columns
