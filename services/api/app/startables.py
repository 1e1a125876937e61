"""Caches the data of a workflow's version and its workspace that a start needs.

A version never changes, but the newest version, the limits and archiving do. So each entry is read again after a few
seconds, and dropped at once when this replica or (by notification) another one changes something.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

from services.api.app import refusals
from services.api.app.checking.children import Checkers
from services.api.app.ports import StartableRecord, Workflows
from services.api.app.refreshing_cache import RefreshingCache
from services.api.core.plain_schemas import PRODUCT_MAX, SCHEMA_BYTES_MAX, is_plain
from services.api.core.tiers import RUNNER_WEIGHTS, TierLimits, in_force
from services.chassis.grpc.errors import Violation
from services.chassis.process.clock import Clock
from windlass.definition.durations import parse_duration
from windlass.definition.input_schemas import compiled

TRUSTED_SECONDS: Final = 5.0
CACHED_MAX: Final = 5_000
VIOLATIONS_MAX: Final = 50


class InputCheck:
    """The schema of one version. It was compiled successfully before it was stored. Plain checks are done here, all
    others in a child."""

    def __init__(self, schema: Any) -> None:
        self._source = orjson.dumps(schema)
        is_cheap = len(self._source) <= SCHEMA_BYTES_MAX and is_plain(schema)
        self._validator = compiled(schema) if is_cheap else None

    async def violations(
        self, checker: Checkers, workspace: str, document: Any, content: bytes, most: int = VIOLATIONS_MAX
    ) -> Sequence[Violation]:
        """Empty when the document fits; `content` is the document as JSON."""
        if self._validator is not None and len(self._source) * len(content) <= PRODUCT_MAX:
            if self._validator.is_valid(document):
                return ()
        return await checker.violations(workspace, self._source, content, most)


class Startable(NamedTuple):
    version_id: str
    version: int
    is_archived: bool
    check: InputCheck | None
    # The timeout in microseconds. 0: none.
    timeout: int
    limits: TierLimits
    runner_weight: int
    workspace_revision: int


class Startables:
    def __init__(self, workflows: Workflows, clock: Clock) -> None:
        self._workflows = workflows
        self._known: RefreshingCache[tuple[str, str, int], Startable] = RefreshingCache(
            self._read, clock, trusted_seconds=TRUSTED_SECONDS, entries_max=CACHED_MAX
        )

    async def get(self, workspace: str, workflow: str, version: int) -> Startable:
        """`version` 0: the newest. Raises a refusal when it cannot be started."""
        known = await self._known.get((workspace, workflow, version))
        if known.is_archived:
            raise refusals.workflow_archived(workflow)
        return known

    def forget(self, workspace: str, workflow: str = "") -> None:
        """Drop the entries of a workflow, or of the whole workspace."""
        self._known.forget_where(lambda key: key[0] == workspace and workflow in ("", key[1]))

    def forget_all(self) -> None:
        self._known.forget_all()

    async def _read(self, key: tuple[str, str, int]) -> Startable:
        workspace, workflow, version = key
        record = await self._workflows.startable(workspace, workflow, version)
        if record is not None:
            return _startable(record)
        if version and await self._workflows.startable(workspace, workflow, 0) is not None:
            raise refusals.version_not_found(workflow, version)
        raise refusals.workflow_not_found(workflow)


def _startable(record: StartableRecord) -> Startable:
    document = orjson.loads(record.definition)
    return Startable(
        version_id=record.version_id,
        version=record.version,
        is_archived=record.is_archived,
        check=InputCheck(document["inputSchema"]) if "inputSchema" in document else None,
        timeout=parse_duration(document.get("timeout", 0)),
        limits=in_force(record.tier, record.executions_max, record.queued_max),
        runner_weight=RUNNER_WEIGHTS.get(record.tier, 1),
        workspace_revision=record.workspace_revision,
    )
