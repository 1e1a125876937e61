"""Free JSON of any depth, as bytes: protobuf's own objects cannot be copied or read beyond their depth."""

from __future__ import annotations


def varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def nested_struct(depth: int, key: str = "a") -> bytes:
    """A `google.protobuf.Struct` of `{"a": {"a": … true}}`, of so many objects."""
    name = b"\x0a" + varint(len(key)) + key.encode()
    # The pieces are made from the innermost value outwards, and joined in reverse.
    pieces, length = [b"\x20\x01"], 2
    for level in range(depth):
        if level:
            pieces.append(b"\x2a" + varint(length))  # Value.struct_value
            length += len(pieces[-1])
        pieces.append(name + b"\x12" + varint(length))  # the map entry's key, then its value
        length += len(pieces[-1])
        pieces.append(b"\x0a" + varint(length))  # Struct.fields
        length += len(pieces[-1])
    return b"".join(reversed(pieces))


def with_tag(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content
