"""The parameter type of each column of the projections.

The SQL of the append is composed from the column tuples of the core. A new projected column is one line there, one here
and one in a migration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from services.chassis.postgres.arrays import Array, BigInts, Bytes, Floats, Ints, Texts
from services.coordinator.store.arrays import Instants, Labels, Uuids

_KINDS: Final[dict[type[Array], str]] = {
    Uuids: "execution_id",
    Ints: "last_seq fence_seq version priority trigger_type runs retries number iteration generation attempt",
    BigInts: "epoch fence_epoch cost_tokens output_bytes",
    Floats: "progress",
    Instants: "create_time grant_time start_time end_time deadline_time heartbeat_time retry_time",
    Bytes: "events input output inputs_hash config_hash",
    Labels: "labels",
}
_KIND_OF: Final = {name: kind for kind, names in _KINDS.items() for name in names.split()}
# Text on the wire, but not in the table.
_CASTS: Final = {"labels": "jsonb", "summary": "jsonb"}


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
