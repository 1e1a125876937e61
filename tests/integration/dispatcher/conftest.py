"""A database for each test module, and the shared steps of the queue's tests."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import pytest_asyncio

from services.chassis.postgres.database import Database, PgConnection
from services.dispatcher.core.batch import AdmissionBatch, BatchResult
from services.dispatcher.core.items import Claim, LeaseFinished, LeaseParked, NewStart, WorkspaceLimits
from services.dispatcher.rpc.translate import without_input
from services.dispatcher.store.leases import PostgresLeases
from services.dispatcher.store.mailbox import PostgresMailbox
from services.dispatcher.store.queue import SETTINGS, PostgresQueue
from tests.integration.dispatcher.parties import Api, running_dispatcher
from tests.support.postgres import Database as TestDatabase
from tests.support.postgres import PostgresCluster
from windlass.types.v1 import start_pb2

LIMITS = WorkspaceLimits(executions_max=5, queued_max=1_000, revision=1)


def new_start(
    workspace: str,
    *,
    execution_id: str = "",
    priority: int = 3,
    request_id: str = "",
    request_hash: bytes = b"h",
    deadline_time: datetime | None = None,
    limits: WorkspaceLimits = LIMITS,
) -> NewStart:
    execution_id = execution_id or str(uuid.uuid4())
    order = start_pb2.StartOrder(
        execution_id=execution_id, workspace=workspace, request_id=request_id, priority=priority
    )
    return NewStart(
        execution_id,
        workspace,
        priority,
        deadline_time,
        request_id,
        request_hash,
        order.SerializeToString(),
        limits,
        order,
    )


class Rig:
    """The stores of one replica: the queue, the leases and the mailbox."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = PgConnection(url, name="test-admission_loop", settings=SETTINGS)
        self.database = Database(url, name="test", connections=3)
        self.queue = PostgresQueue(self.connection)
        self.leases = PostgresLeases(self.database, lease_scale=0.1, without_input=without_input)
        self.mailbox = PostgresMailbox(self.database, redeliver_seconds=0.0)

    async def close(self) -> None:
        await self.connection.close()
        await self.database.close()

    async def limit(self, workspace: str, executions_max: int, *, queued_max: int = 1_000, revision: int = 1) -> None:
        await self.queue.store_limits({workspace: WorkspaceLimits(executions_max, queued_max, revision)})

    async def enqueue(self, *new_starts: NewStart, holders: int = 0, holder: str = "holder-a") -> BatchResult:
        """Admit these starts. The first `holders` of them may go ahead to `holder`."""
        return await self.queue.commit(
            AdmissionBatch(
                now=datetime.now(UTC),
                new_starts=new_starts,
                new_start_holders=[0 if number < holders else -1 for number in range(len(new_starts))],
                holders=[holder],
            )
        )

    async def leased(self, workspace: str, count: int = 1, holder: str = "holder-a") -> Sequence[Claim]:
        """The claims of new executions that are alone in their workspace."""
        await self.limit(workspace, 100)
        starts = [new_start(workspace) for _ in range(count)]
        return (await self.enqueue(*starts, holders=count, holder=holder)).claims

    async def park(
        self, claim: Claim, wake_time: datetime | None = None, seen_message_ids: Sequence[str] = ()
    ) -> BatchResult:
        parked = LeaseParked(claim.execution_id, claim.epoch, wake_time, tuple(seen_message_ids))
        return await self.queue.commit(AdmissionBatch(now=datetime.now(UTC), parked=[parked]))

    async def claim(self, *workspaces: str, claims: int, holder: str = "holder-a") -> list[Claim]:
        batch = AdmissionBatch(
            now=datetime.now(UTC), workspaces=workspaces, claim_holders=[0] * claims, holders=[holder]
        )
        return (await self.queue.commit(batch)).claims

    async def finish(self, *leases: Claim | tuple[str, int]) -> Sequence[str | None]:
        """The workspace of each report that took effect, None for the others."""
        reports = [
            LeaseFinished(lease.execution_id, lease.epoch) if isinstance(lease, Claim) else LeaseFinished(*lease)
            for lease in leases
        ]
        result = await self.queue.commit(AdmissionBatch(now=datetime.now(UTC), finished=reports))
        return [result.took_effect.get(report) for report in reports]

    async def fill(self, execution_id: str, *, messages: int, size: int) -> None:
        """Store messages without the limits of the mailbox. Each has `size` bytes and begins with its number."""
        body = "decode(lpad(n::text, 4, '0'), 'escape') || decode(repeat('00', %s - 4), 'hex')"
        await self.database.execute(
            "INSERT INTO dispatcher.mailbox (message_id, execution_id, body)"
            f" SELECT %s || ':' || n, %s::uuid, {body} FROM generate_series(1, %s) n ORDER BY n",
            (execution_id, execution_id, size, messages),
        )

    async def rows(self, columns: str = "execution_id::text, state", where: str = "true") -> list[tuple[object, ...]]:
        return await self.database.fetch(f"SELECT {columns} FROM dispatcher.queue WHERE {where}")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rig(database: TestDatabase) -> AsyncIterator[Rig]:
    made = Rig(database.url("dispatcher"))
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def empty_rig(postgres: PostgresCluster) -> AsyncIterator[Rig]:
    """A rig on a database of the test's own, for tests that look at the whole queue."""
    made = await postgres.database(migrated=True)
    rig = Rig(made.url("dispatcher"))
    yield rig
    await rig.close()
    await postgres.drop(made)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def address(database: TestDatabase) -> AsyncIterator[str]:
    async with running_dispatcher(database.url("dispatcher")) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="session")
async def api(address: str) -> AsyncIterator[Api]:
    async with Api(address) as api:
        yield api
