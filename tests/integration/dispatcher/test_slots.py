"""The hard limit: never more executions going than slots, looked at in every commit.

Here by claimers that the test drives, on the store alone; tests/chaos/test_hard_limit.py does it with processes.
"""

import asyncio
import uuid
from datetime import UTC, datetime

import psycopg

from services.chassis.postgres.arrays import Ints, Texts
from services.chassis.postgres.connection import connect
from services.dispatcher.core.batch import AdmissionBatch
from services.dispatcher.store import admission_statements
from tests.integration.dispatcher.conftest import Rig, new_start, slots_in_use
from tests.support.probe import eventually
from tests.support.slots import most_ever_going, watch_slots

SLOTS = 5
CLAIMERS = 8
EXECUTIONS = 240


async def claim_until_done(rig: Rig, number: int, finished: set[str]) -> None:
    """One replica: brings new starts of its own, claims what waits, finishes what it got."""
    brings = [new_start("contended") for _ in range(EXECUTIONS // CLAIMERS)]
    while len(finished) < EXECUTIONS:
        starts, brings = brings[:3], brings[3:]
        batch = AdmissionBatch(
            now=datetime.now(UTC),
            new_starts=starts,
            new_start_holders=[0] * len(starts),
            workspaces=["contended"],
            claim_holders=[0] * 4,
            holders=[f"holder-{number}"],
        )
        claims = (await rig.queue.commit(batch)).claims
        await asyncio.sleep(0)
        for claim, workspace in zip(claims, await rig.finish(*claims), strict=True) if claims else ():
            assert workspace == "contended"
            assert claim.execution_id not in finished
            finished.add(claim.execution_id)


async def test_eight_claimers_never_fill_more_than_five_slots(empty_rig: Rig) -> None:
    watch_slots(empty_rig.url)
    await empty_rig.limit("contended", SLOTS)
    rigs = [Rig(empty_rig.url) for _ in range(CLAIMERS)]
    finished: set[str] = set()
    async with asyncio.TaskGroup() as group:
        for number, rig in enumerate(rigs):
            group.create_task(claim_until_done(rig, number, finished))
    for rig in rigs:
        await rig.close()
    assert len(finished) == EXECUTIONS
    # They did contend: the limit was reached.
    assert most_ever_going(empty_rig.url) == SLOTS


async def race_two_claims(url: str, workspace: str, statements: list[bytes]) -> int:
    """Two claims, the second begun while the first is not committed; how many slots are in use after both."""
    first, second, watcher = [await connect(url, name="race", statement_seconds=10.0) for _ in range(3)]
    params = {
        admission_statements.LOCK: (Texts([workspace]),),
    }
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
    statements = [admission_statements.LOCK, admission_statements.CLAIM]
    assert await race_two_claims(rig.url, "raced", statements) == SLOTS


async def test_one_statement_that_locks_and_counts_would_overfill(rig: Rig) -> None:
    """Why LOCK is a statement of its own: the count of the naive form is older than its lock."""
    join = b"JOIN dispatcher.tenants t USING (workspace)"
    assert join in admission_statements.CLAIM
    naive = admission_statements.CLAIM.replace(join, b"JOIN locked t USING (workspace)").replace(
        b"WITH tenant AS MATERIALIZED",
        b"WITH locked AS MATERIALIZED (SELECT * FROM dispatcher.tenants WHERE workspace = ANY($1) FOR UPDATE)"
        b", tenant AS MATERIALIZED",
    )
    await filled(rig, "overfilled")
    assert await race_two_claims(rig.url, "overfilled", [naive]) > SLOTS
