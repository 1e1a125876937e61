"""The modules a runner knows, by name and version.

`@module` registers in the process-wide `registry`; a file given with `--modules` is imported once and registers what it
declares. Two modules under one name are a mistake that is told at start, not at the first run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from windlass.sdk.context import Context

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*@[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Branch:
    """Returned by a module that decides: edges with `when: <label>` are taken, other labels are not."""

    label: str
    output: Any = None


Returned = dict[str, Any] | list[Any] | str | int | float | bool | Branch | None
Function = Callable[[Context, Any, Any], Returned | Awaitable[Returned]]


@dataclass(frozen=True, slots=True)
class Module:
    """Code that can do the work of a node."""

    name: str
    function: Function
    # A second attempt under the same effect key changes nothing more: when its runner is gone, the work is elsewhere at
    # once, and may be done by two for a while.
    idempotent: bool
    is_async: bool
    # Short and never blocking: run on the event loop without a task of its own.
    inline: bool
    # Config keys handed over as written, their templates unresolved.
    raw_config: frozenset[str]


class Registry:
    """Modules by name."""

    def __init__(self) -> None:
        self._modules: dict[str, Module] = {}

    def add(self, module: Module) -> None:
        """Take a module in; a second one of the name is refused."""
        if not _NAME.fullmatch(module.name):
            raise ValueError(f"module name {module.name!r} is not like 'billing.charge@2'")
        if module.name in self._modules:
            raise ValueError(f"module {module.name} is declared twice")
        self._modules[module.name] = module

    def get(self, name: str) -> Module | None:
        """The module of this name and version, if this runner has it."""
        return self._modules.get(name)

    @property
    def idempotent(self) -> list[str]:
        """The names of those whose work may be done twice."""
        return sorted(name for name, module in self._modules.items() if module.idempotent)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._modules))

    def declare(
        self,
        name: str,
        *,
        idempotent: bool = False,
        inline: bool = False,
        raw_config: frozenset[str] = frozenset(),
    ) -> Callable[[Function], Function]:
        """Decorator that registers here."""

        def register(function: Function) -> Function:
            is_async = inspect.iscoroutinefunction(function)
            self.add(Module(name, function, idempotent, is_async, inline and not is_async, raw_config))
            return function

        return register


registry = Registry()


def module(name: str, *, idempotent: bool = False) -> Callable[[Function], Function]:
    """Declare a function as a module of this process's runner. Plain functions run off the event loop.

    `idempotent`: doing it twice under one `ctx.effect_key` does no harm, also at the same time. Its work then goes
    elsewhere at once when its runner is gone, whatever its node says; other work only when its lease has run out."""
    return registry.declare(name, idempotent=idempotent)
