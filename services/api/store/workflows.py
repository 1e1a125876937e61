"""Workflows and their versions in PostgreSQL.

The row of a workflow is locked while a definition is applied. So versions are 1, 2, 3… without a gap, and the same
definition applied twice at once makes one version.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Integer,
    Text,
    any_,
    bindparam,
    case,
    cast,
    delete,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert

from services.api.app import refusals
from services.api.app.ports import Applied, NewVersion, StartableRecord, VersionRecord, WorkflowPage, WorkflowRecord
from services.api.store.audit import record
from services.api.store.tables import uuid_of, workflows, workspaces
from services.api.store.tables import workflow_versions as versions
from services.chassis.grpc.errors import Refusal
from services.chassis.identity.callers import Identity
from services.chassis.postgres.arrays import Texts
from services.chassis.postgres.compiled import Composed
from services.chassis.postgres.connection import Connection
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point

CREATED, NEW_VERSION, UNCHANGED = range(1, 4)

_IS_NAMED: Final = (workflows.c.workspace == bindparam("in_workspace"), workflows.c.workflow == bindparam("named"))
_MAKE: Final = Composed(
    insert(workflows)
    .values(workspace=bindparam("workspace"), workflow=bindparam("workflow"), version=0)
    .on_conflict_do_nothing()
)
_LOCK: Final = Composed(
    select(workflows.c.version, workflows.c.revision, workflows.c.archive_time.is_not(None))
    .where(*_IS_NAMED)
    .with_for_update()
)
_HASH: Final = Composed(
    select(versions.c.definition_hash).where(
        versions.c.workspace == bindparam("workspace"),
        versions.c.workflow == bindparam("workflow"),
        versions.c.version == bindparam("version"),
    )
)
_INSERT: Final = Composed(
    insert(versions).values({column: bindparam(column.name) for column in versions.c if column.name != "create_time"})
)
_ADVANCE: Final = Composed(
    update(workflows).where(*_IS_NAMED).values(version=bindparam("new_version"), revision=bindparam("new_revision"))
)
_DROP_EMPTY: Final = Composed(delete(workflows).where(*_IS_NAMED, workflows.c.version == 0))

_RECORD: Final = (
    workflows.c.workflow,
    versions.c.version,
    versions.c.definition,
    workflows.c.revision,
    workflows.c.create_time,
    versions.c.create_time,
    workflows.c.archive_time,
)
_WITH_VERSIONS: Final = workflows.join(versions)
# 0 means the newest version.
_WANTED: Final = bindparam("version", type_=Integer)
_IS_WANTED: Final = versions.c.version == case((_WANTED == 0, workflows.c.version), else_=_WANTED)
_GET: Final = Composed(
    select(*_RECORD, versions.c.source, versions.c.source_format)
    .select_from(_WITH_VERSIONS)
    .where(_IS_WANTED, *_IS_NAMED)
)
# A list ends where its definitions reach this size. A definition has up to a mebibyte.
PAGE_BYTES: Final = 4 * 1024 * 1024


def _page(*where: ColumnElement[bool], order: ColumnElement[Any]) -> Composed:
    """A record in each row, and then how many there are with those that are left out. PostgreSQL knows the lengths of
    definitions without reading them."""
    size_bytes = func.octet_length(versions.c.definition)
    bytes_before = func.sum(size_bytes).over(order_by=order, rows=(None, 0)) - size_bytes
    place = func.row_number().over(order_by=order)
    rows = select(*_RECORD, bytes_before.label("bytes_before"), place.label("place")).select_from(_WITH_VERSIONS)
    page = rows.where(*where).order_by(order).limit(bindparam("limit")).cte("page")
    count = select(func.count()).select_from(page).scalar_subquery()
    found = select(*list(page.c)[: len(_RECORD)], count).where(page.c.bytes_before < PAGE_BYTES)
    return Composed(found.order_by(page.c.place))


_PAGE: Final = _page(
    versions.c.version == workflows.c.version,
    workflows.c.workspace == bindparam("in_workspace"),
    workflows.c.workflow > bindparam("after"),
    or_(bindparam("with_archived", type_=Boolean), workflows.c.archive_time.is_(None)),
    order=workflows.c.workflow,
)
_BEFORE: Final = bindparam("before", type_=Integer)
_VERSIONS: Final = _page(*_IS_NAMED, or_(_BEFORE == 0, versions.c.version < _BEFORE), order=versions.c.version.desc())
_IS_ARCHIVED: Final = bindparam("is_archived", type_=Boolean)
_ARCHIVE: Final = Composed(
    update(workflows)
    .where(*_IS_NAMED, workflows.c.archive_time.is_(None) == _IS_ARCHIVED)
    .values(archive_time=case((_IS_ARCHIVED, func.now())), revision=workflows.c.revision + 1)
)
# The columns have the order of StartableRecord.
_STARTABLE: Final = Composed(
    select(
        *(cast(versions.c.version_id, Text), versions.c.version, versions.c.definition),
        workflows.c.archive_time.is_not(None),
        *(workspaces.c[name] for name in ("tier", "executions_max", "queued_max", "revision")),
    )
    .select_from(_WITH_VERSIONS.join(workspaces, workspaces.c.workspace == workflows.c.workspace))
    .where(_IS_WANTED, *_IS_NAMED)
)
_VERSION: Final = Composed(
    select(*((workspaces if name == "effect_secret" else versions).c[name] for name in VersionRecord._fields))
    .select_from(versions.join(workspaces, workspaces.c.workspace == versions.c.workspace))
    .where(versions.c.version_id == bindparam("version_id"))
)


_STARTABLE_NAMES: Final = Composed(
    select(workflows.c.workflow).where(
        workflows.c.workspace == bindparam("in_workspace"),
        workflows.c.workflow == any_(bindparam("names", type_=ARRAY(Text))),
        workflows.c.version > 0,
        workflows.c.archive_time.is_(None),
    )
)


class PostgresWorkflows:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def apply(self, actor: Identity, workflow: str, new: NewVersion, etag: str) -> Applied | Refusal:
        async def work(connection: Connection) -> Applied | Refusal:
            change = await _apply(connection, actor, workflow, new, etag)
            if isinstance(change, Refusal):
                # A refused apply leaves nothing behind, not even the empty row of a new workflow.
                await connection.execute(*_DROP_EMPTY(**_named(actor.workspace, workflow)))
                return change
            newest = await _newest(connection, actor.workspace, workflow)
            assert newest is not None
            return Applied(change, newest)

        return await self._database.transaction(work)

    async def get(self, workspace: str, workflow: str, version: int) -> WorkflowRecord | None:
        row = await self._database.fetch_one(*_GET(version=version, **_named(workspace, workflow)))
        return None if row is None else WorkflowRecord(*row)

    async def page(self, workspace: str, after: str, limit: int, *, with_archived: bool) -> WorkflowPage:
        return await self._paged(_PAGE(in_workspace=workspace, after=after, with_archived=with_archived, limit=limit))

    async def versions(self, workspace: str, workflow: str, before: int, limit: int) -> WorkflowPage:
        return await self._paged(_VERSIONS(before=before, limit=limit, **_named(workspace, workflow)))

    async def _paged(self, page: tuple[Any, ...]) -> WorkflowPage:
        rows = await self._database.fetch(*page)
        return WorkflowPage([WorkflowRecord(*row[:-1]) for row in rows], bool(rows) and rows[0][-1] > len(rows))

    async def set_archived(self, actor: Identity, workflow: str, *, is_archived: bool) -> WorkflowRecord | None:
        async def work(connection: Connection) -> WorkflowRecord | None:
            statement = _ARCHIVE(is_archived=is_archived, **_named(actor.workspace, workflow))
            if (await connection.execute(*statement)).rowcount:
                action = "ArchiveWorkflow" if is_archived else "RestoreWorkflow"
                await record(connection, actor, action, workflow, {}, f"workflow:{actor.workspace}/{workflow}")
            return await _newest(connection, actor.workspace, workflow)

        return await self._database.transaction(work)

    async def startable(self, workspace: str, workflow: str, version: int) -> StartableRecord | None:
        row = await self._database.fetch_one(*_STARTABLE(version=version, **_named(workspace, workflow)))
        return None if row is None else StartableRecord(*row)

    async def version(self, version_id: str) -> VersionRecord | None:
        identity = uuid_of(version_id)
        row = None if identity is None else await self._database.fetch_one(*_VERSION(version_id=identity))
        return None if row is None else VersionRecord(*row)

    async def startable_names(self, workspace: str, workflows: Collection[str]) -> Collection[str]:
        rows = await self._database.fetch(*_STARTABLE_NAMES(in_workspace=workspace, names=Texts(list(workflows))))
        return {row[0] for row in rows}


async def _apply(connection: Connection, actor: Identity, workflow: str, new: NewVersion, etag: str) -> int | Refusal:
    """The change that was made."""
    key = {"workspace": actor.workspace, "workflow": workflow}
    named = _named(actor.workspace, workflow)
    await connection.execute(*_MAKE(**key))
    locked: tuple[Any, ...] | None = await (await connection.execute(*_LOCK(**named))).fetchone()
    assert locked is not None
    version, revision, is_archived = locked
    if is_archived:
        return refusals.workflow_archived(workflow)
    definition_hash = hashlib.sha256(new.definition).digest()
    newest = await (await connection.execute(*_HASH(version=version, **key), binary=True)).fetchone()
    # This is checked before the etag: a caller that repeats a call whose answer was lost has an old etag, and its
    # definition is already stored.
    if newest is not None and newest[0] == definition_hash:
        return UNCHANGED
    if etag and (version == 0 or etag != str(revision)):
        return refusals.etag_mismatch(workflow, f"windlass workflow get {workflow}")
    added = _INSERT(
        **{**new._asdict(), "version_id": uuid.UUID(new.version_id)},
        version=version + 1,
        definition_hash=definition_hash,
        **key,
    )
    await connection.execute(*added)
    await connection.execute(*_ADVANCE(new_version=version + 1, new_revision=revision + min(version, 1), **named))
    tells = f"workflow:{actor.workspace}/{workflow}"
    await record(connection, actor, "ApplyWorkflow", workflow, {"version": version + 1}, tells)
    return NEW_VERSION if version else CREATED


async def _newest(connection: Connection, workspace: str, workflow: str) -> WorkflowRecord | None:
    """The answer to a change, read before the commit."""
    cursor = await connection.execute(*_GET(version=0, **_named(workspace, workflow)), binary=True)
    row = await cursor.fetchone()
    crash_point("api.workflow.before_commit")
    return None if row is None else WorkflowRecord(*row)


def _named(workspace: str, workflow: str) -> dict[str, str]:
    return {"in_workspace": workspace, "named": workflow}
