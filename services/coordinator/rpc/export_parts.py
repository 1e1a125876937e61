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
from services.coordinator.core.events import Event
from services.coordinator.core.recorded_rows import RowName
from services.coordinator.core.replaying import NotReplayable
from services.coordinator.core.values import Instant
from windlass.journal.v1.export_pb2 import ExportEnd, ExportPart

FORMAT: Final = 1
# The state that an event makes may be some kilobytes, of which a replay has two.
EVENTS_MAX: Final = 200_000


class DecodesEvents(Protocol):
    def decoded(self, message: Any, schema_version: int, time: Instant) -> Event | object: ...


class _Request(Protocol):
    @property
    def parts(self) -> Sequence[ExportPart]: ...


async def beginning(requests: AsyncIterator[Any]) -> Any:
    """The first request, which has the header as its first part."""
    first = await anext(requests, None)
    if first is None or not first.parts or first.parts[0].WhichOneof("part") != "header":
        raise Refusal("INVALID_EXPORT", "the first part of an export is its header")
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


async def read(
    codec: DecodesEvents, parts: AsyncIterator[ExportPart]
) -> AsyncIterator[tuple[int, Event] | tuple[RowName, Mapping[str, Any]]]:
    """The events, and then the rows. Raises NotReplayable, also after the last part if there are not as many as the end
    says."""
    end: ExportEnd | None = None
    counted, limits = ExportEnd(), EventLimits()
    async for part in parts:
        if end is not None:
            raise NotReplayable("a part follows the end")
        match part.WhichOneof("part"):
            case "event":
                counted.events += 1
                if counted.events > EVENTS_MAX:
                    raise Refusal("EXPORT_TOO_LARGE", f"an export has at most {EVENTS_MAX} events")
                event = _event(codec, part)
                limits.check(part.event.seq, event)
                yield part.event.seq, event
            case "row":
                counted.rows += 1
                # An event makes a run, an approval and a dead letter at most.
                if counted.rows > 3 * (1 + counted.events):
                    raise NotReplayable("there are more rows than its events can have made")
                yield (part.row.table, part.row.number), _columns(part)
            case "end":
                end = part.end
            case "output":
                pass
            case other:
                raise NotReplayable(f"a part of the kind {other} is not in its place")
    if end is None:
        raise NotReplayable("the export is not whole: its last part, the end, is missing")
    if (end.events, end.rows) != (counted.events, counted.rows):
        raise NotReplayable(
            f"the export has {counted.events} events and {counted.rows} rows,"
            f" and its end says {end.events} and {end.rows}"
        )


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
