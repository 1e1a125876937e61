"""Timestamp and Duration messages as whole microseconds.

`ToMicroseconds` of protobuf raises for values out of range, which any caller may send. These functions never raise.
"""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp


def micros_of(time: Timestamp | Duration) -> int:
    """The time in microseconds; 0 for a field that is absent."""
    return time.seconds * 1_000_000 + time.nanos // 1_000


def put_micros(time: Timestamp | Duration, micros: int) -> None:
    time.seconds = micros // 1_000_000
    time.nanos = micros % 1_000_000 * 1_000
