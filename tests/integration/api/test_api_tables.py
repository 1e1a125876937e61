"""Workflows, keys, workspaces and the first keys, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import psycopg
import pytest
import pytest_asyncio

from services.api.app.key_material import key_hash
from services.api.app.ports import Applied, KeyIdTaken, NewKey, NewVersion, WorkflowPage
from services.api.store.audit import forget
from services.api.store.bootstrap import bootstrap
from services.api.store.keys import PostgresKeys
from services.api.store.workflows import CREATED, NEW_VERSION, PAGE_BYTES, UNCHANGED, PostgresWorkflows
from services.api.store.workspaces import PostgresWorkspaces
from services.chassis.grpc.errors import Refusal
from services.chassis.identity.callers import CallerKind, Identity
from services.chassis.postgres.database import Database
from services.chassis.process.config import DAY_SECONDS
from tests.support.postgres import Database as MadeDatabase
from tests.support.probe import some

SYSTEM = Identity(CallerKind.SYSTEM, "system-key")
TEAM = Identity(CallerKind.MEMBER, "team-key", "team")
NO_WORKFLOWS = WorkflowPage([], is_cut=False)
VALUES = {"tier": 2, "executions_max": 0, "queued_max": 0}
RIVAL = Identity(CallerKind.MEMBER, "k", "rival")


class Stores(NamedTuple):
    keys: PostgresKeys
    workspaces: PostgresWorkspaces
    workflows: PostgresWorkflows
    url: str

    async def audit(self) -> list[tuple[str, str, str]]:
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            cursor = await connection.execute("SELECT actor, action, subject FROM api.audit ORDER BY audit_id")
            return [(str(actor), str(action), str(subject)) for actor, action, subject in await cursor.fetchall()]


@pytest_asyncio.fixture(loop_scope="session")
async def stores(database: MadeDatabase) -> AsyncIterator[Stores]:
    """Empty tables with one workspace, `team`."""
    async with await psycopg.AsyncConnection.connect(database.url("api"), autocommit=True) as connection:
        await connection.execute("TRUNCATE workspaces, api_keys, workflows, workflow_versions, audit CASCADE")
    pool = Database(database.url("api"), name="test", connections=8)
    made = Stores(PostgresKeys(pool), PostgresWorkspaces(pool), PostgresWorkflows(pool), database.url("api"))
    assert await made.workspaces.add(SYSTEM, "team", VALUES) is not None
    yield made
    await pool.close()


def new_key(key: str, role: str, workspace: str, title: str = "", expire_time: datetime | None = None) -> NewKey:
    return NewKey(uuid.uuid4(), key_hash(key), role, workspace, title, expire_time)


def new_version(definition: bytes) -> NewVersion:
    return NewVersion(str(uuid.uuid4()), definition, b'{"a":null}', f"# {definition.decode()}", "YAML")


async def applied(stores: Stores, definition: bytes, *, etag: str = "", actor: Identity = TEAM) -> tuple[int, int]:
    answer = await stores.workflows.apply(actor, "intake", new_version(definition), etag)
    assert isinstance(answer, Applied)
    return answer.change, answer.workflow.version


async def test_same_definition_makes_no_version(stores: Stores) -> None:
    assert await applied(stores, b"1") == (CREATED, 1)
    assert await applied(stores, b"1") == (UNCHANGED, 1)
    assert await applied(stores, b"2") == (NEW_VERSION, 2)
    assert await applied(stores, b"1") == (NEW_VERSION, 3)


async def test_many_at_once_make_versions_without_gap_or_repeat(stores: Stores) -> None:
    answers = await asyncio.gather(*(applied(stores, b"%d" % (number % 10)) for number in range(40)))
    versions = sorted(version for change, version in answers if change != UNCHANGED)
    assert versions == list(range(1, len(versions) + 1))
    assert [change for change, _ in answers].count(CREATED) == 1


async def test_stale_etag_is_refused_and_changes_nothing(stores: Stores) -> None:
    nothing = await stores.workflows.apply(TEAM, "intake", new_version(b"1"), "7")
    assert isinstance(nothing, Refusal)
    assert nothing.reason == "ETAG_MISMATCH"
    assert await stores.workflows.page("team", "", 10, with_archived=True) == NO_WORKFLOWS
    await applied(stores, b"1")
    before = some(await stores.workflows.get("team", "intake", 0))
    await applied(stores, b"2")
    answer = await stores.workflows.apply(TEAM, "intake", new_version(b"3"), str(before.revision))
    assert isinstance(answer, Refusal)
    now = some(await stores.workflows.get("team", "intake", 0))
    assert (now.version, now.definition) == (2, b"2")


async def test_archived_workflow_is_hidden_not_startable_and_can_come_back(stores: Stores) -> None:
    await applied(stores, b"{}")
    assert await stores.workflows.set_archived(TEAM, "intake", is_archived=True)
    twice = await stores.workflows.set_archived(TEAM, "intake", is_archived=True)
    assert twice is not None
    assert twice.archive_time is not None
    assert await stores.workflows.page("team", "", 10, with_archived=False) == NO_WORKFLOWS
    startable = some(await stores.workflows.startable("team", "intake", 0))
    assert startable.is_archived
    refused = await stores.workflows.apply(TEAM, "intake", new_version(b"2"), "")
    assert isinstance(refused, Refusal)
    assert refused.reason == "WORKFLOW_ARCHIVED"
    back = await stores.workflows.set_archived(TEAM, "intake", is_archived=False)
    assert back is not None
    assert back.archive_time is None
    archived = [action for _, action, _ in await stores.audit() if action == "ArchiveWorkflow"]
    assert len(archived) == 1  # the repeat changed nothing


async def test_other_workspace_sees_nothing(stores: Stores) -> None:
    await stores.workspaces.add(SYSTEM, "rival", VALUES)
    await applied(stores, b"1")
    assert await stores.workflows.get("rival", "intake", 0) is None
    assert await stores.workflows.startable("rival", "intake", 0) is None
    assert await stores.workflows.page("rival", "", 10, with_archived=True) == NO_WORKFLOWS
    assert await applied(stores, b"other", actor=RIVAL) == (CREATED, 1)


async def test_old_versions_stay_and_pages_follow_each_other(stores: Stores) -> None:
    for number in range(5):
        await applied(stores, b"%d" % number)
    first = await stores.workflows.versions("team", "intake", 0, 3)
    rest = await stores.workflows.versions("team", "intake", first.rows[-1].version, 3)
    assert [row.version for row in (*first.rows, *rest.rows)] == [5, 4, 3, 2, 1]
    assert not first.is_cut
    old = some(await stores.workflows.get("team", "intake", 2))
    assert old.definition == b"1"
    assert await stores.workflows.get("team", "intake", 9) is None


async def test_pages_of_large_definitions_are_short(stores: Stores) -> None:
    large = PAGE_BYTES // 3
    for number in range(5):
        await applied(stores, b"%d" % number * large)
        name = f"w{number}"
        await stores.workflows.apply(TEAM, name, new_version(b"%d" % number * large), "")
    versions = await stores.workflows.versions("team", "intake", 0, 1_000)
    assert ([row.version for row in versions.rows], versions.is_cut) == ([5, 4, 3, 2], True)
    rest = await stores.workflows.versions("team", "intake", 2, 1_000)
    assert ([row.version for row in rest.rows], rest.is_cut) == ([1], False)
    page = await stores.workflows.page("team", "", 1_000, with_archived=False)
    assert ([row.workflow for row in page.rows], page.is_cut) == (["intake", "w0", "w1", "w2"], True)


async def test_version_is_found_by_its_id_with_the_secret_of_its_workspace(stores: Stores) -> None:
    new = new_version(b"{}")
    await stores.workflows.apply(TEAM, "intake", new, "")
    version = some(await stores.workflows.version(new.version_id))
    assert (version.workspace, version.workflow, version.version) == ("team", "intake", 1)
    assert version.template_references == new.template_references
    shown = some(await stores.workflows.get("team", "intake", 0))
    assert (shown.source, shown.source_format) == (new.source, new.source_format)
    assert len(version.effect_secret) == 32
    assert await stores.workflows.version(str(uuid.uuid4())) is None
    assert await stores.workflows.version("no id") is None


async def test_key_is_found_by_its_hash_only(stores: Stores) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    made = some(await stores.keys.add(TEAM, new_key("secret", "VIEWER", "team", "reports", later)))
    found = some(await stores.keys.find(key_hash("secret")))
    assert (found.key_id, found.role, found.workspace, found.title) == (made.key_id, "VIEWER", "team", "reports")
    assert found.expire_time == later
    assert await stores.keys.find(key_hash("Secret")) is None


async def test_same_key_added_again_is_the_same_and_another_under_its_id_is_refused(stores: Stores) -> None:
    new = new_key("secret", "VIEWER", "team")
    first = await stores.keys.add(TEAM, new)
    assert await stores.keys.add(TEAM, new) == first
    with pytest.raises(KeyIdTaken):
        await stores.keys.add(TEAM, new._replace(key_hash=key_hash("other")))
    created = [action for _, action, _ in await stores.audit() if action == "CreateApiKey"]
    assert len(created) == 1


async def test_closing_a_workspace_closes_its_keys_and_it_gets_no_other(stores: Stores) -> None:
    await stores.keys.add(TEAM, new_key("secret", "ADMIN", "team", "", None))
    assert await stores.workspaces.close(SYSTEM, "team")
    found = some(await stores.keys.find(key_hash("secret")))
    assert found.is_workspace_closed
    for workspace in ("team", "ghost"):
        assert await stores.keys.add(SYSTEM, new_key("another", "ADMIN", workspace)) is None


async def test_revoking_is_for_the_own_workspace_and_may_be_repeated(stores: Stores) -> None:
    made = some(await stores.keys.add(TEAM, new_key("secret", "VIEWER", "team", "", None)))
    assert await stores.keys.revoke(RIVAL, made.key_id) is None
    assert await stores.keys.revoke(TEAM, "no id") is None
    first = await stores.keys.revoke(TEAM, made.key_id)
    again = await stores.keys.revoke(SYSTEM, made.key_id)
    assert first is not None
    assert again is not None
    assert first.revoke_time == again.revoke_time is not None


async def test_change_needs_the_present_revision(stores: Stores) -> None:
    changed = some(await stores.workspaces.change(SYSTEM, "team", 1, {"executions_max": 7}))
    assert (changed.tier, changed.executions_max, changed.revision) == (2, 7, 2)
    assert await stores.workspaces.change(SYSTEM, "team", 1, {"tier": 3}) is None
    blind = some(await stores.workspaces.change(SYSTEM, "team", 0, {"tier": 3}))
    assert (blind.tier, blind.executions_max, blind.revision) == (3, 7, 3)


async def test_name_of_a_closed_workspace_is_never_given_again(stores: Stores) -> None:
    assert await stores.workspaces.close(SYSTEM, "team")
    assert not await stores.workspaces.close(SYSTEM, "team")
    assert await stores.workspaces.add(SYSTEM, "team", VALUES) is None
    assert await stores.workspaces.change(SYSTEM, "team", 0, {"tier": 3}) is None
    assert await stores.workspaces.page("", 10) == []


async def test_change_is_unconfirmed_until_its_own_revision_is_confirmed(stores: Stores) -> None:
    await stores.workspaces.confirm("team", 1)
    assert await stores.workspaces.unconfirmed() == []
    await stores.workspaces.change(SYSTEM, "team", 0, {"tier": 3})
    await stores.workspaces.confirm("team", 1)
    assert [record.revision for record in await stores.workspaces.unconfirmed()] == [2]
    await stores.workspaces.confirm("team", 2)
    assert await stores.workspaces.unconfirmed() == []


async def test_every_change_is_in_the_audit_under_who_made_it(stores: Stores) -> None:
    await applied(stores, b"1")
    key = some(await stores.keys.add(TEAM, new_key("secret", "VIEWER", "team", "", None)))
    await stores.keys.revoke(TEAM, key.key_id)
    await stores.workspaces.change(SYSTEM, "team", 0, {"tier": 3})
    await stores.workspaces.close(SYSTEM, "team")
    assert await stores.audit() == [
        ("system-key", "CreateWorkspace", "team"),
        ("team-key", "ApplyWorkflow", "intake"),
        ("team-key", "CreateApiKey", key.key_id),
        ("team-key", "RevokeApiKey", key.key_id),
        ("system-key", "UpdateWorkspace", "team"),
        ("system-key", "DeleteWorkspace", "team"),
    ]


async def test_bootstrap_may_be_repeated_and_keeps_no_key(stores: Stores) -> None:
    first, second = await bootstrap(stores.url), await bootstrap(stores.url)
    assert len({*first, *second}) == 6
    admin = some(await stores.keys.find(key_hash(first.admin)))
    assert (admin.role, admin.workspace) == ("ADMIN", "default")
    runner = some(await stores.keys.find(key_hash(second.runner)))
    assert (runner.role, runner.workspace) == ("RUNNER", "")
    workspace = some(await stores.workspaces.get("default"))
    assert (workspace.tier, workspace.executions_max) == (3, 1_000)
    async with await psycopg.AsyncConnection.connect(stores.url) as connection:
        for table in ("workspaces", "api_keys", "audit"):
            dumped = await (await connection.execute(f"SELECT t::text FROM {table} t")).fetchall()
            assert not any(key in row[0] for row in dumped for key in (*first, *second))


@pytest.mark.parametrize("role", ["SYSTEM", "ADMIN"])
async def test_database_refuses_a_key_whose_role_and_workspace_do_not_fit(stores: Stores, role: str) -> None:
    workspace = "team" if role == "SYSTEM" else None
    async with await psycopg.AsyncConnection.connect(stores.url) as connection:
        with pytest.raises(psycopg.errors.CheckViolation):
            await connection.execute(
                "INSERT INTO api_keys (key_id, key_hash, role, workspace, title) VALUES (%s, %s, %s, %s, '')",
                (uuid.uuid4(), b"x", role, workspace),
            )


async def test_the_audit_forgets_what_is_too_old(stores: Stores) -> None:
    for number in range(4):
        await stores.workspaces.add(SYSTEM, f"w{number}", VALUES)
    actions = await stores.audit()
    async with await psycopg.AsyncConnection.connect(stores.url, autocommit=True) as connection:
        for days, subject in ((366, "w0"), (366, "w1"), (364, "w2")):
            await connection.execute(
                "UPDATE api.audit SET audit_time = now() - make_interval(days => %s) WHERE subject = %s",
                (days, subject),
            )
    database = Database(stores.url, name="test", connections=1)
    assert await forget(database, 365 * DAY_SECONDS) == 2
    assert await forget(database, 365 * DAY_SECONDS) == 0
    await database.close()
    assert await stores.audit() == [each for each in actions if each[2] not in {"w0", "w1"}]
