"""What a start must know of a workflow's version and of its workspace, kept ready for the next one.

A version never changes, but which is the newest does, and so do limits and archiving: each entry is read again after
a few seconds, and dropped at once when this replica or (by notification) another changes something.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

import orjson

from services.api.app import refusals
from services.api.app.ports import StartableRecord, Workflows
from services.api.app.refreshing_cache import RefreshingCache
from services.api.app.schema_reader import InputCheck
from services.api.core.tiers import in_force
from services.chassis.process.clock import Clock
from windlass.definition.durations import parse_duration
from windlass.definition.input_schemas import SchemaFault
from windlass.dispatcher.v1 import queue_pb2

TRUSTED_SECONDS: Final = 5.0
CACHED_MAX: Final = 5_000
# A larger definition may take a good part of a second: in a thread, one at a time, so that all others go on meanwhile.
READ_HERE_BYTES_MAX: Final = 16 * 1024


class _Schema(NamedTuple):
    check: InputCheck | None
    # Of what was stored when more was allowed than is today; empty: it can be started.
    fault: str


class Startable(NamedTuple):
    version_id: str
    version: int
    is_archived: bool
    schema: _Schema
    # In microseconds; 0: none.
    timeout: int
    limits: queue_pb2.TenantLimits


class Startables:
    def __init__(self, workflows: Workflows, clock: Clock) -> None:
        self._workflows = workflows
        self._known: RefreshingCache[tuple[str, str, int], Startable] = RefreshingCache(
            self._read, clock, trusted_seconds=TRUSTED_SECONDS, entries_max=CACHED_MAX
        )
        # By version_id, the oldest first: a version never changes, and its schema is read once.
        self._schemas: dict[str, _Schema] = {}
        self._large_one = asyncio.Semaphore(1)

    async def get(self, workspace: str, workflow: str, version: int) -> Startable:
        """`version` 0: the newest. Refused when it cannot be started."""
        known = await self._known.get((workspace, workflow, version))
        if known.is_archived:
            raise refusals.workflow_archived(workflow)
        if known.schema.fault:
            raise refusals.stored_schema(workflow, known.version, known.schema.fault)
        return known

    def forget(self, workspace: str, workflow: str = "") -> None:
        """What is known of a workflow, or of all of a workspace."""
        self._known.forget_where(lambda key: key[0] == workspace and workflow in ("", key[1]))

    def forget_all(self) -> None:
        self._known.forget_all()

    async def _read(self, key: tuple[str, str, int]) -> Startable:
        workspace, workflow, version = key
        record = await self._workflows.startable(workspace, workflow, version)
        if record is not None:
            return await self._startable(record)
        if version and await self._workflows.startable(workspace, workflow, 0) is not None:
            raise refusals.version_not_found(workflow, version)
        raise refusals.workflow_not_found(workflow)

    async def _startable(self, record: StartableRecord) -> Startable:
        document = orjson.loads(record.definition)
        if len(record.definition) <= READ_HERE_BYTES_MAX:
            schema = self._schemas.get(record.version_id) or self._keep(record, _schema(document))
        else:
            schema = self._schemas.get(record.version_id) or await self._read_aside(record, document)
        limits = in_force(record.tier, record.executions_max, record.queued_max)
        return Startable(
            version_id=record.version_id,
            version=record.version,
            is_archived=record.is_archived,
            schema=schema,
            timeout=parse_duration(document.get("timeout", 0)),
            limits=queue_pb2.TenantLimits(
                executions_max=limits.executions_max,
                queued_max=limits.queued_max,
                revision=record.workspace_revision,
            ),
        )

    async def _read_aside(self, record: StartableRecord, document: dict[str, Any]) -> _Schema:
        async with self._large_one:
            # Asked for by its number and as the newest, a version is read for both at once.
            known = self._schemas.get(record.version_id)
            return known or self._keep(record, await asyncio.to_thread(_schema, document))

    def _keep(self, record: StartableRecord, schema: _Schema) -> _Schema:
        self._schemas[record.version_id] = schema
        if len(self._schemas) > CACHED_MAX:
            del self._schemas[next(iter(self._schemas))]
        return schema


def _schema(document: dict[str, Any]) -> _Schema:
    if "inputSchema" not in document:
        return _Schema(None, "")
    try:
        return _Schema(InputCheck(document["inputSchema"]), "")
    except SchemaFault as fault:
        return _Schema(None, str(fault))
