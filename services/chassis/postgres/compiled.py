"""Statements composed with SQLAlchemy Core, as text and parameters for our own connections.

Only the compiler of SQLAlchemy is used, without its engine and pool. So composed statements have the same deadlines and
the same protection from cancellation as every other one.
Hazard: result processors of types (enums of Python, custom types) are not applied; rows are what psycopg gives.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Double, Executable, cast, literal_column
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.sql.compiler import SQLCompiler

_dialect = psycopg.dialect()  # type: ignore[no-untyped-call]


def seconds(count: ColumnElement[Any]) -> ColumnElement[Any]:
    """An interval of so many seconds."""
    return cast(count, Double) * literal_column("interval '1 second'")


class Composed:
    """One statement with `bindparam`s, compiled once. A call with their values gives the text and the parameters.

    _GET = Composed(select(shoes.c.size).where(shoes.c.name == bindparam("name")))
    await database.fetch(*_GET(name="clog"))

    Pass lists as arrays (`== any_(…)`): the number of placeholders that `in_` needs depends on its values.
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
