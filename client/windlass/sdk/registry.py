"""The modules that a runner knows, by name and version.

`@module` registers in the process-wide `registry`. A file given with `--modules` is imported once, at start, and a
second module of the same name fails that start.
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
    """A module returns this to choose a branch: edges with `when: <label>` are taken, those with other labels not."""

    label: str
    output: Any = None


Returned = dict[str, Any] | list[Any] | str | int | float | bool | Branch | None
Function = Callable[[Context, Any, Any], Returned | Awaitable[Returned]]


@dataclass(frozen=True, slots=True)
class Module:
    """Code that can do the work of a node."""

    name: str
    function: Function
    # A second attempt under the same effect key changes nothing more. When its runner is gone, another runner begins
    # the work at once, so two may do it at the same time.
    idempotent: bool
    is_async: bool
    # It is short and never blocks, so it runs on the runner's own event loop, without a task of its own.
    inline: bool
    # Config keys whose templates are not rendered: the module gets them as written.
    raw_config: frozenset[str] = frozenset()
    # A later attempt goes on from the last cursor, so a long run may be stopped when other work waits for its place.
    resumable: bool = False
    # The target that every run of it calls. "": a run names it by `ctx.target`, or calls nothing that has a circuit.
    target: str = ""


class Registry:
    """Modules by name."""

    def __init__(self) -> None:
        self._modules: dict[str, Module] = {}

    def add(self, module: Module) -> None:
        """Register a module. Raises ValueError for a malformed name and for one that is taken."""
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
        """The names of the modules whose work may be done twice."""
        return sorted(name for name, module in self._modules.items() if module.idempotent)

    def modules(self) -> list[Module]:
        return list(self._modules.values())

    def __iter__(self) -> Iterator[str]:
        """The names of all modules, sorted."""
        return iter(sorted(self._modules))

    def declare(
        self,
        name: str,
        *,
        idempotent: bool = False,
        resumable: bool = False,
        inline: bool = False,
        raw_config: frozenset[str] = frozenset(),
        target: str = "",
    ) -> Callable[[Function], Function]:
        """Decorate a function to register it here."""

        def register(function: Function) -> Function:
            is_async = inspect.iscoroutinefunction(function)
            is_inline = inline and not is_async
            is_resumable = resumable and is_async
            self.add(Module(name, function, idempotent, is_async, is_inline, raw_config, is_resumable, target))
            return function

        return register


registry = Registry()


def module(
    name: str, *, idempotent: bool = False, resumable: bool = False, target: str = ""
) -> Callable[[Function], Function]:
    """Declare a function as a module of this process's runner. A plain function runs in a thread of its own. All
    async functions share an event loop, so none of them may block.

    `idempotent`: doing the work twice under one `ctx.effect_key` does no harm, even at the same time. When its runner
    is gone, another runner gets such work at once, whatever its node says, and other work when its lease has ended.

    `resumable`: the work goes on from `ctx.cursor`. When other work has waited for a place, a run of such a module is
    cancelled after a minute at the earliest, and a later attempt goes on. Only async modules can be cancelled.

    `target`: what every run of the module calls, if it is always the same, as for `ctx.target`."""
    return registry.declare(name, idempotent=idempotent, resumable=resumable, target=target)
