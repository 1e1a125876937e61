"""What the templates of a piece of work see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import orjson


class Seen(Protocol):
    """JSON stays bytes until it is needed."""

    @property
    def execution_id(self) -> str: ...
    @property
    def workflow(self) -> str: ...
    @property
    def version(self) -> int:
        """0: no template reads `execution`."""
        ...

    @property
    def create_time(self) -> str: ...
    @property
    def iteration(self) -> int:
        """The number of the item or the turn of a loop, counted from 1. 0: the work is neither."""
        ...

    @property
    def execution_input(self) -> object:
        """Bytes by the time at which it is rendered."""
        ...

    @property
    def state(self) -> bytes: ...
    @property
    def item(self) -> bytes:
        """Empty: the work is no item of a list."""
        ...

    @property
    def error(self) -> bytes:
        """Why the execution does not end well. Empty: the work undoes no node."""
        ...

    @property
    def outputs(self) -> Mapping[str, object]:
        """The outputs that are no bytes are loaded first."""
        ...

    @property
    def without_output(self) -> Mapping[str, bytes]: ...


def scope_of(seen: Seen) -> dict[str, Any]:
    """Templates see this besides the data."""
    execution: dict[str, Any] = {"id": seen.execution_id, "workflow": seen.workflow}
    if seen.version:
        execution |= {"version": seen.version, "create_time": seen.create_time}
    nodes = {node: {"state": "SUCCESS", "error": None} for node in seen.outputs}
    scope: dict[str, Any] = {"execution": execution, "nodes": nodes}
    return scope | {"index": seen.iteration - 1} if seen.iteration else scope


def data_of(seen: Seen, loaded: Mapping[str, bytes]) -> dict[tuple[str, ...], bytes]:
    """The data that templates see, as JSON by its path. `loaded` has the outputs that had to be fetched, by node."""
    assert isinstance(seen.execution_input, bytes), "it was fetched before"
    data: dict[tuple[str, ...], bytes] = {("input",): seen.execution_input or b"{}", ("state",): seen.state or b"{}"}
    if seen.item:
        data["item",] = seen.item
    if seen.error:
        data["error",] = seen.error
    for node, value in seen.outputs.items():
        data["nodes", node, "output"] = (value if isinstance(value, bytes) else loaded[node]) or b"null"
    for node, other in seen.without_output.items():
        data["nodes", node] = other
    return data


def node_without_output(state: str, error_type: str, error_message: str) -> bytes:
    """A node that has no output, as templates see it."""
    error = {"type": error_type, "message": error_message} if state == "FAILED" else None
    return orjson.dumps({"output": None, "state": state, "error": error})


def execution_error(node: str, type_: str, message: str) -> bytes:
    """Why the execution does not end well, as the templates of a compensation see it."""
    return orjson.dumps({"node": node, "type": type_, "message": message})
