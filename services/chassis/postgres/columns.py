"""Short declarations of tables: several columns of one type by their names."""

from typing import Any, Final

from sqlalchemy import Column, DateTime
from sqlalchemy.types import TypeEngine

Type = type[TypeEngine[Any]] | TypeEngine[Any]
TIME: Final = DateTime(timezone=True)


def needed(type_: Type, names: str) -> list[Column[Any]]:
    return [Column(name, type_, nullable=False) for name in names.split()]


def optional(type_: Type, names: str) -> list[Column[Any]]:
    return [Column(name, type_) for name in names.split()]


def key(type_: Type, names: str) -> list[Column[Any]]:
    return [Column(name, type_, primary_key=True) for name in names.split()]
