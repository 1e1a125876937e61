"""Statements composed with SQLAlchemy Core, as text and parameters for our own connections.

Only the compiler of SQLAlchemy is used: no engine, no pool of its own, no greenlets. So composed statements
have the deadlines and the shield of every other one.
Hazard: types with a result processor (enums of Python, custom types) are not applied; rows are what psycopg
gives.
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
    """One statement with its `bindparam`s, composed once; called with their values it is text and parameters.

    _GET = Composed(select(shoes.c.size).where(shoes.c.name == bindparam("name")))
    await database.fetch(*_GET(name="clog"))

    Lists are given as arrays (`== any_(…)`): how many placeholders `in_` needs is only known with its values.
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
