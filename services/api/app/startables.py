"""Caches the data of a workflow's version and its workspace that a start needs.

A version never changes, but the newest version, the limits and archiving do. So each entry is read again after a few
seconds, and dropped at once when this replica or (by notification) another one changes something.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson

from services.api.app import refusals
from services.api.app.ports import StartableRecord, Workflows
from services.api.app.refreshing_cache import RefreshingCache
from services.api.app.schema_reader import InputCheck
from services.api.core.tiers import TierLimits, in_force
from services.chassis.process.clock import Clock
from windlass.definition.durations import parse_duration

TRUSTED_SECONDS: Final = 5.0
CACHED_MAX: Final = 5_000


class Startable(NamedTuple):
    version_id: str
    version: int
    is_archived: bool
    check: InputCheck | None
    # In microseconds; 0: no timeout.
    timeout: int
    limits: TierLimits
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
        workspace_revision=record.workspace_revision,
    )
