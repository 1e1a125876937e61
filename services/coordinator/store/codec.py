"""Events to the bytes of the journal and back: `encode`, `decode`.

A stored record is a `windlass.journal.v1.Record` whose last five bytes are its checksum field, so that a flipped bit is
found before anything is believed. What each event looks like inside is told in `records.py`.

Hazards: `encode` runs twice for every step of every workflow: it fills one message by attribute, which is several
times cheaper than handing messages to constructors. Stored bytes are for ever: `tests/golden/` holds one record of
every type, and a change here that alters them must not alter what old ones decode to.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from services.coordinator.core.events import Event
from services.coordinator.store.records import READERS, WRITERS, micros, put_time
from windlass.journal.v1.journal_pb2 import Record

SCHEMA_VERSION: Final = 1

# Field 15, four bytes little-endian. Numbers of events begin at 16, so that one tag byte names it and nothing else.
_CHECKSUM: Final = struct.Struct("<BI")
_CHECKSUM_TAG: Final = 15 << 3 | 5


class CorruptRecord(Exception):
    """The stored bytes are not what was written. Nothing of them may be used."""


@dataclass(slots=True, frozen=True)
class UnknownEvent:
    """Written by a newer version. The execution is to be left alone, until a coordinator that knows it takes over."""

    # The field number of the event, 0 if it is a known one that now says more.
    type_number: int
    schema_version: int


@dataclass(slots=True, frozen=True)
class Stored:
    execution_id: str
    seq: int
    epoch: int
    event: Event | UnknownEvent


def encode(event: Event, execution_id: str, seq: int, epoch: int) -> bytes:
    record = Record()
    record.schema_version = SCHEMA_VERSION
    record.event_id = f"{execution_id}/{seq}"
    record.seq = seq
    record.epoch = epoch
    put_time(record.time, event.time)
    WRITERS[type(event)](record, event)
    data = record.SerializeToString()
    return data + _CHECKSUM.pack(_CHECKSUM_TAG, crc32(data))


def decode(data: bytes) -> Stored:
    """`CorruptRecord` if the bytes are damaged."""
    record = _parsed(data)
    execution_id = record.event_id.rpartition("/")[0]
    name = record.WhichOneof("event")
    event: Event | UnknownEvent
    if name is None or record.schema_version > SCHEMA_VERSION:
        event = UnknownEvent(0 if name else _unknown_number(record), record.schema_version)
    else:
        event = READERS[name](getattr(record, name), record, micros(record.time))
    return Stored(execution_id, record.seq, record.epoch, event)


def _unknown_number(record: Record) -> int:
    unknown = UnknownFieldSet(record)
    return unknown[0].field_number if len(unknown) else 0


def _parsed(data: bytes) -> Record:
    body = data[: -_CHECKSUM.size]
    if not body or _CHECKSUM.unpack(data[-_CHECKSUM.size :]) != (_CHECKSUM_TAG, crc32(body)):
        raise CorruptRecord(f"the checksum of a record of {len(data)} bytes does not fit")
    try:
        return Record.FromString(data)
    except DecodeError as fault:
        raise CorruptRecord(f"a record of {len(data)} bytes does not parse") from fault
