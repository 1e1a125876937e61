"""Compiles statements composed with SQLAlchemy Core to text and parameters for our own connections.

Only SQLAlchemy's compiler is used, without its engine, pool and greenlets. So composed statements have the same
deadlines and shield as all others.

Hazard: result processors of types (Python enums, custom types) do not run. Rows come as psycopg returns them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Double, Executable, cast, literal_column
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.sql.compiler import SQLCompiler

_dialect = psycopg.dialect()  # type: ignore[no-untyped-call]


def seconds(count: ColumnElement[Any]) -> ColumnElement[Any]:
    """An interval of `count` seconds."""
    return cast(count, Double) * literal_column("interval '1 second'")


class Composed:
    """A statement with `bindparam`s, compiled once. A call with their values returns text and parameters.

    _GET = Composed(select(shoes.c.size).where(shoes.c.name == bindparam("name")))
    await database.fetch(*_GET(name="clog"))

    Give lists as arrays (`== any_(…)`), because the number of placeholders of `in_` depends on its values.
    """

    def __init__(self, statement: Executable) -> None:
        self._sql, self._params = compiled(statement)

    def __call__(self, **values: Any) -> tuple[str, dict[str, Any]]:
        return self._sql, {**self._params, **values}


def compiled(statement: Executable) -> tuple[str, dict[str, Any]]:
    made = statement.compile(  # type: ignore[attr-defined]
        dialect=_dialect, compile_kwargs={"render_postcompile": True}
    )
    assert isinstance(made, SQLCompiler)
    return str(made), dict(made.params)
