"""The parameter type of each column of the projections, and array parameters in the forms of the core: execution ids as
uuid, instants in µs as timestamptz.

The SQL of the append is composed from the column tuples of the core. A new projected column is one line there, one here
and one in a migration.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from services.chassis.postgres.arrays import LONGS, Array, BigInts, Bools, Bytes, Floats, Ints, Texts

_LENGTH: Final = struct.Struct("!i")
_UUID_LENGTH: Final = _LENGTH.pack(16)
# PostgreSQL counts µs from 2000, the core from 1970.
EPOCH_2000: Final = 946_684_800_000_000


@functools.lru_cache(maxsize=2_048)
def _uuid(text: str) -> bytes:
    return _UUID_LENGTH + bytes.fromhex(text.replace("-", ""))


def _uuids(items: Sequence[str]) -> list[bytes]:
    # An execution's id comes with each of its rows, in several columns of one append.
    return list(map(_uuid, items))


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


_KINDS: Final[dict[type[Array], str]] = {
    Uuids: "execution_id",
    Ints: "last_seq fence_seq version priority trigger_type runs retries number iteration generation attempt attempts"
    " required",
    BigInts: "epoch fence_epoch cost_tokens output_bytes",
    Floats: "progress",
    Bools: "is_taken_back is_whole",
    Instants: "create_time grant_time start_time end_time deadline_time heartbeat_time retry_time expire_time"
    " quarantine_time resolve_time",
    Bytes: "data events input output inputs_hash config_hash form rendered",
    Labels: "labels",
}
_KIND_OF: Final = {name: kind for kind, names in _KINDS.items() for name in names.split()}
# These are text on the wire, but not in the table.
_CASTS: Final = dict.fromkeys(("labels", "summary", "assignees", "decisions"), "jsonb")


def kind_of(column: str) -> type[Array]:
    return _KIND_OF.get(column, Texts)


def parameters(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> list[Array]:
    """One array per column. There is at least one row."""
    return [kind_of(column)(values) for column, values in zip(columns, zip(*rows, strict=True), strict=True)]


def unnest(alias: str, columns: Iterable[str]) -> str:
    """`unnest(%s::uuid[], …) AS alias (id, …)`"""
    columns = tuple(columns)
    types = ", ".join(f"%s::{kind_of(column).element}[]" for column in columns)
    return f"unnest({types}) AS {alias} ({', '.join(columns)})"


def read(alias: str, column: str) -> str:
    """The column of an unnested parameter, in the type of the table."""
    cast = _CASTS.get(column)
    return f"{alias}.{column}::{cast}" if cast else f"{alias}.{column}"


def selected(alias: str, columns: Iterable[str]) -> str:
    """The columns in the forms of the core: ids as text, instants as µs since 1970."""
    return ", ".join(_selected(alias, column) for column in columns)


def _selected(alias: str, column: str) -> str:
    kind = kind_of(column)
    if kind is Uuids:
        return f"{alias}.{column}::text"
    if kind is Instants:
        return f"(extract(epoch FROM {alias}.{column}) * 1000000)::int8"
    return f"{alias}.{column}"


def uuid_array(execution_ids: Sequence[str]) -> str:
    """The text form of uuid[], for connections that do not know the types above. Nothing is quoted here, so the caller
    must have checked the form of each id."""
    return "{" + ",".join(execution_ids) + "}"
