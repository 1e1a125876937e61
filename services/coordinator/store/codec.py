"""Events to the bytes of the journal and back.

`encode_event` gives the bytes of one event, `seal` the row of a whole append (`windlass.journal.v1.Append`). `unseal`
reads such a row. The last five bytes of a row are its checksum field, so that a flipped bit is found before anything is
believed. `event_table.py` says how each event is stored.

Hazards: `encode_event` runs twice for every step of every workflow. It fills one message by attribute, which is several
times cheaper than constructors with arguments. Stored bytes are for ever: `tests/golden/` holds an event of every type,
and a change that alters the bytes must not alter what the old ones decode to.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from zlib import crc32

from google.protobuf.message import DecodeError

from services.coordinator.core.events import Event, ExecutionStarted
from services.coordinator.core.values import Instant
from services.coordinator.store.event_table import EVENT_TABLE
from windlass.journal.v1.events_pb2 import Event as EventMessage
from windlass.journal.v1.events_pb2 import ExecutionStarted as ExecutionStartedMessage
from windlass.journal.v1.journal_pb2 import Append

SCHEMA_VERSION: Final = 1

# Field 15, four bytes little-endian.
_CHECKSUM: Final = struct.Struct("<BI")
_CHECKSUM_TAG: Final = 15 << 3 | 5

_WRITERS: Final = {row.event: (row.name, row.write) for row in EVENT_TABLE}
_BY_NAME: Final = {row.name: row for row in EVENT_TABLE}


class CorruptRecord(Exception):
    """The stored bytes are not those that were written. None of them may be used."""


@dataclass(slots=True, frozen=True)
class UnknownEvent:
    """A newer version wrote this event. The execution is left alone until a coordinator that knows it takes over."""

    schema_version: int


class Stored(NamedTuple):
    """One event with its place in the journal."""

    execution_id: str
    seq: int
    epoch: int
    event: Event | UnknownEvent


def encode_event(event: Event) -> bytes:
    name, write = _WRITERS[type(event)]
    message = EventMessage()
    write(getattr(message, name), event)
    return message.SerializeToString()


def seal(execution_id: str, first_seq: int, epoch: int, time: Instant, events: Sequence[bytes]) -> bytes:
    """The events of an append were all decided at the same time, by the same holder."""
    append = Append()
    append.schema_version = SCHEMA_VERSION
    append.execution_id = execution_id
    append.first_seq = first_seq
    append.epoch = epoch
    append.time = time
    append.events.extend(events)
    data = append.SerializeToString()
    return data + _CHECKSUM.pack(_CHECKSUM_TAG, crc32(data))


def unseal(data: bytes) -> list[Stored]:
    """Raises CorruptRecord if the bytes are damaged."""
    append, messages = opened(data)
    return [
        Stored(append.execution_id, seq, append.epoch, decoded(message, append.schema_version, append.time))
        for seq, message in enumerate(messages, append.first_seq)
    ]


def opened(data: bytes) -> tuple[Append, list[EventMessage]]:
    """The append and its events as messages. Raises CorruptRecord if the bytes are damaged."""
    body = data[: -_CHECKSUM.size]
    if not body or _CHECKSUM.unpack(data[-_CHECKSUM.size :]) != (_CHECKSUM_TAG, crc32(body)):
        raise CorruptRecord(f"the checksum of a record of {len(data)} bytes does not fit")
    try:
        append = Append.FromString(data)
        return append, [EventMessage.FromString(event) for event in append.events]
    except DecodeError as fault:
        raise CorruptRecord(f"a record of {len(data)} bytes does not parse") from fault


def decoded(message: EventMessage, schema_version: int, time: Instant) -> Event | UnknownEvent:
    name = message.WhichOneof("event")
    if name is None or schema_version > SCHEMA_VERSION:
        return UnknownEvent(schema_version)
    row = _BY_NAME[name]
    return row.event(time=time, **row.read(getattr(message, name)))


def start_order(execution_id: str, started: ExecutionStarted) -> bytes:
    """The StartOrder of an execution, from the first event of its journal."""
    _, write = _WRITERS[ExecutionStarted]
    message = ExecutionStartedMessage()
    write(message, started)
    message.origin.execution_id = execution_id
    return message.origin.SerializeToString()
