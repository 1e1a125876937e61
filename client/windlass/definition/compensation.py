"""Compensation: how a node that has finished is undone when its execution does not end well."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from windlass.definition.faults import Fault
from windlass.definition.modules import CONTROL_MODULES, module_faults

# What a compensation's templates see beside those of its node: why the execution does not end well.
SEEN: Final = ("error",)


def compensation_id(node_id: str) -> str:
    """The name of the work that undoes the node, in runs and in references. No node can have this id."""
    return f"{node_id}$undo"


def compensation_of(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """None: the node has none, or it is another fault."""
    part = node.get("compensate")
    return part if isinstance(part, dict) else None


def compensating_module_faults(module: Any, path: str) -> Iterator[Fault]:
    if isinstance(module, str) and module in CONTROL_MODULES:
        yield Fault(path, "UNSUPPORTED_MODULE", f"{module} undoes nothing; a compensation names a module of a runner")
    else:
        yield from module_faults(module, path)
