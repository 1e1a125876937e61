"""The hard limit: a workspace never has more executions under way than slots.

Here two claims race on the store alone; tests/chaos/test_hard_limit.py does it with eight processes.
"""

import asyncio
import uuid
from datetime import UTC, datetime

import psycopg

from services.chassis.postgres.arrays import Ints, Texts
from services.chassis.postgres.connection import connect
from services.dispatcher.store.claim_statements import CLAIM
from services.dispatcher.store.slots import LOCK_WORKSPACES
from tests.integration.dispatcher.conftest import Rig, new_start
from tests.support.probe import eventually
from tests.support.slots import slots_in_use

SLOTS = 5


async def race_two_claims(url: str, workspace: str, statements: list[bytes]) -> int:
    """Begin a second claim before the first is committed. Returns how many slots are in use after both."""
    first, second, watcher = [await connect(url, name="race", statement_seconds=10.0) for _ in range(3)]
    params = {LOCK_WORKSPACES: (Texts([workspace]),)}
    claim = (Texts([workspace]), Ints([0] * SLOTS), SLOTS, Texts(["holder"]), datetime.now(UTC))

    has_claimed, may_commit = asyncio.Event(), asyncio.Event()

    async def run(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
        async with connection.transaction():
            for statement in statements:
                cursor = psycopg.AsyncRawCursor(connection)
                await cursor.execute(statement, params.get(statement, claim))
            if connection is first:
                has_claimed.set()
                await may_commit.wait()

    async def second_waits() -> bool:
        waits = "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted"
        cursor = await watcher.execute(waits, (second.info.backend_pid,))
        return await cursor.fetchone() is not None

    winner = asyncio.create_task(run(first))
    await has_claimed.wait()
    loser = asyncio.create_task(run(second))
    await eventually(second_waits, 10.0, "the second claim to wait for the first")
    may_commit.set()
    await asyncio.gather(winner, loser)
    for connection in (first, second, watcher):
        await connection.close()
    return slots_in_use(url, workspace)


async def filled(rig: Rig, workspace: str) -> None:
    await rig.limit(workspace, SLOTS)
    await rig.enqueue(*[new_start(workspace, execution_id=str(uuid.uuid4())) for _ in range(4 * SLOTS)])


async def test_second_claim_counts_what_the_first_has_committed(rig: Rig) -> None:
    await filled(rig, "raced")
    statements = [LOCK_WORKSPACES, CLAIM]
    assert await race_two_claims(rig.url, "raced", statements) == SLOTS


async def test_one_statement_that_locks_and_counts_would_overfill(rig: Rig) -> None:
    """LOCK_WORKSPACES is a statement of its own, because the count of the naive form is older than its lock."""
    join = b"JOIN dispatcher.tenants t USING (workspace)"
    assert join in CLAIM
    naive = CLAIM.replace(join, b"JOIN locked t USING (workspace)").replace(
        b"WITH tenant AS MATERIALIZED",
        b"WITH locked AS MATERIALIZED (SELECT * FROM dispatcher.tenants WHERE workspace = ANY($1) FOR UPDATE)"
        b", tenant AS MATERIALIZED",
    )
    await filled(rig, "overfilled")
    assert await race_two_claims(rig.url, "overfilled", [naive]) > SLOTS
