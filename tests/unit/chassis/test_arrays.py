"""Array parameters in binary, as PostgreSQL reads them: header, then a length and a value per element."""

import struct
from typing import Any

import pytest

from services.chassis.postgres.arrays import BigInts, Bools, Bytes, Floats, Ints, Texts


def elements(array: Any) -> list[bytes | None]:
    type(array)
    data = array.wire()
    dimensions, has_null, _, count, lower = struct.unpack_from("!iiIii", data)
    found: list[bytes | None] = []
    at = 20
    for _ in range(count):
        (length,) = struct.unpack_from("!i", data, at)
        at += 4
        found.append(None if length < 0 else data[at : at + length])
        at += max(length, 0)
    assert (dimensions, lower, at) == (1, 1, len(data))
    assert bool(has_null) == (None in found)
    return found


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (Texts(["a", None, "ä", "a", ""]), [b"a", None, "ä".encode(), b"a", b""]),
        (Bytes([b"\xff\xff\xff\xff", None]), [b"\xff\xff\xff\xff", None]),
        (Ints([1, -2]), [struct.pack("!i", 1), struct.pack("!i", -2)]),
        (Ints([1, None]), [struct.pack("!i", 1), None]),
        (BigInts([2**40] * 700), [struct.pack("!q", 2**40)] * 700),
        (Floats([0.5]), [struct.pack("!d", 0.5)]),
        (Bools([True, False]), [b"\x01", b"\x00"]),
    ],
)
def test_every_element_is_there(array: Any, expected: list[bytes | None]) -> None:
    assert elements(array) == expected


def test_an_empty_array_has_no_dimension() -> None:
    assert struct.unpack("!iiI", Texts([]).wire())[0] == 0
