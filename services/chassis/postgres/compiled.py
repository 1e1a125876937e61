"""Statements composed with SQLAlchemy Core, as text and parameters for our own connections.

Only the compiler of SQLAlchemy is used: no engine, no pool of its own, no greenlets. So composed statements
have the deadlines and the shield of every other one. Imported at the first composed statement, for it costs
20 MB.
Hazard: types with a result processor (enums of Python, custom types) are not applied; rows are what psycopg
gives.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Executable
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.sql.compiler import SQLCompiler

_dialect = psycopg.dialect()  # type: ignore[no-untyped-call]


def compiled(statement: Executable) -> tuple[str, dict[str, Any]]:
    made = statement.compile(  # type: ignore[attr-defined]
        dialect=_dialect, compile_kwargs={"render_postcompile": True}
    )
    assert isinstance(made, SQLCompiler)
    return str(made), dict(made.params)
