"""A request to a child, as bytes."""

import struct
from typing import Final, NamedTuple

_HEAD: Final = struct.Struct(">fII")


class CheckRequest(NamedTuple):
    schema: bytes
    document: bytes
    # The number of misfits that are wanted.
    most: int
    cpu_seconds: float

    def encoded(self) -> bytes:
        return _HEAD.pack(self.cpu_seconds, self.most, len(self.schema)) + self.schema + self.document

    @classmethod
    def decoded(cls, frame: bytes) -> "CheckRequest":
        cpu_seconds, most, length = _HEAD.unpack_from(frame)
        end = _HEAD.size + length
        return cls(frame[_HEAD.size : end], frame[end:], most, cpu_seconds)
