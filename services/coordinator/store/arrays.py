"""Array parameters in the forms of this schema: execution ids as uuid, instants in µs as timestamptz."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import orjson

from services.chassis.postgres.arrays import LONGS, Array

_LENGTH: Final = struct.Struct("!i")
_UUID_LENGTH: Final = _LENGTH.pack(16)
# PostgreSQL counts µs from 2000, the core from 1970.
EPOCH_2000: Final = 946_684_800_000_000


def _uuids(items: Sequence[str]) -> list[bytes]:
    # The same id comes with each row of its execution.
    known: dict[str, bytes] = {}
    parts: list[bytes] = []
    for item in items:
        part = known.get(item)
        if part is None:
            part = known[item] = _UUID_LENGTH + bytes.fromhex(item.replace("-", ""))
        parts.append(part)
    return parts


def _instants(items: Sequence[int | None]) -> list[bytes]:
    return LONGS([item - EPOCH_2000 if item else None for item in items])


def _labels(items: Sequence[tuple[tuple[str, str], ...]]) -> list[bytes]:
    texts = [orjson.dumps(dict(item)) if item else b"{}" for item in items]
    return [_LENGTH.pack(len(text)) + text for text in texts]


class Uuids(Array):
    """Ids in their text form."""

    element, encode = "uuid", staticmethod(_uuids)


class Instants(Array):
    """µs since 1970; 0 and None are NULL."""

    element, encode = "timestamptz", staticmethod(_instants)


class Labels(Array):
    """Pairs of key and value, as JSON text."""

    element, encode = "text", staticmethod(_labels)


def uuid_array(execution_ids: Sequence[str]) -> str:
    """The text form of uuid[], for connections that do not know the types above. Nothing is quoted here, so the caller
    must have checked the form of each id."""
    return "{" + ",".join(execution_ids) + "}"
