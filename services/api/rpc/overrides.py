"""Reads what people lay over the inputs of nodes, and refuses at once a retry that can be seen not to fit.

A coordinator decides. But a journal that has ended records no refusals, so the faults that callers make are looked for
here too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import orjson

from services.api.app import refusals
from services.api.app.ports import ExecutionView
from services.api.rpc.structs import sorted_json, to_dict

OVERRIDES_BYTES_MAX: Final = 256 * 1024


async def node_overrides(given: Any, field: str) -> dict[str, bytes]:
    """The JSON object for each node."""
    overrides = await to_dict(given, field, OVERRIDES_BYTES_MAX)
    if len(orjson.dumps(overrides)) > OVERRIDES_BYTES_MAX:
        raise refusals.invalid_field(field, "TOO_LARGE", f"has more than {OVERRIDES_BYTES_MAX} bytes")
    for node, values in overrides.items():
        if not isinstance(values, dict):
            raise refusals.invalid_field(f"{field}.{node}", "WRONG_TYPE", "must be an object")
    return {node: sorted_json(values) for node, values in overrides.items()}


def judge_retry(execution: ExecutionView, from_node: str, nodes: Collection[str]) -> None:
    """`nodes` are all that the caller names."""
    if not execution.is_final or execution.record is None:
        return
    if execution.state == "SUCCESS" and not from_node:
        raise refusals.execution_not_failed(execution.id)
    summary = execution.record.execution.summary
    known = {*summary.succeeded, *summary.failed, *summary.skipped, *summary.blocked, *summary.cancelled}
    for node in nodes:
        if node not in known and not node.startswith("$"):
            raise refusals.node_not_found(execution.id, node)
