"""The dispatcher's stores do the same in memory and in PostgreSQL: the same calls, drawn from a seed, have the same
answers and leave the same rows. So what the simulation shows on the one holds for the other.

Epochs and times are each store's own. An epoch is named by its execution and its rank among those that were seen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

import pytest
import pytest_asyncio

from services.chassis.postgres.connection import PgConnection
from services.chassis.postgres.database import Database
from services.dispatcher.core.batch import AdmissionBatch, BatchResult
from services.dispatcher.core.items import (
    LeaseFinished,
    LeaseParked,
    LeaseReleased,
    MailboxMessage,
    NewStart,
    RowToMake,
    State,
    WorkspaceLimits,
)
from services.dispatcher.rpc.translate import without_input
from services.dispatcher.store.housekeeping import PostgresHousekeeping
from services.dispatcher.store.leases import PostgresLeases
from services.dispatcher.store.mailbox import PostgresMailbox
from services.dispatcher.store.queue import SETTINGS, PostgresQueue
from services.dispatcher.store.reads import PostgresQueueReads
from tests.support.manual_clock import ManualClock
from tests.support.memory_mailbox import MemoryHousekeeping, MemoryMailbox
from tests.support.memory_queue import MemoryLeases, MemoryQueue, MemoryQueueReads, QueueTables
from tests.support.postgres import Database as MigratedDatabase
from windlass.types.v1 import start_pb2

WORKSPACES: Final = ("w0", "w1", "w2")
HOLDERS: Final = ("h0", "h1", "h2")
LIVE: Final = HOLDERS[:2]
LOST_SECONDS, REDELIVER_SECONDS, SCALE = 5.0, 3.0, 0.5
STEPS = 40

Lease = tuple[str, int]


class MemorySide:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.tables = QueueTables(self.clock, is_live=LIVE.__contains__)
        self.queue: Any = MemoryQueue(self.tables)
        self.leases: Any = MemoryLeases(self.tables, lease_scale=SCALE)
        self.mailbox: Any = MemoryMailbox(self.tables, redeliver_seconds=REDELIVER_SECONDS)
        self.housekeeping: Any = MemoryHousekeeping(self.tables, lost_grant_seconds=LOST_SECONDS)
        self.reads: Any = MemoryQueueReads(self.tables)

    def now(self) -> Any:
        return self.clock.now()

    async def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def rows(self) -> list[tuple[Any, ...]]:
        # As in a database, each statement has a time of its own.
        self.clock.advance(0.001)
        return [
            (
                *(row.execution_id, row.workspace, int(row.state), row.priority, row.attempts, row.urgent),
                *(row.ends_only, row.begun, row.reopens, row.epoch, row.holder),
                *(row.granted_time is not None, row.wake_time is not None, row.failure_reason),
            )
            for row in self.tables.queue.values()
        ]

    async def message_ids(self) -> list[str]:
        return sorted(self.tables.mailbox)


class PostgresSide:
    def __init__(self, url: str) -> None:
        self.connection = PgConnection(url, name="contract-queue", settings=SETTINGS)
        self.database = Database(url, name="contract", connections=2)
        self.queue = PostgresQueue(self.connection)
        self.leases = PostgresLeases(self.database, lease_scale=SCALE, without_input=without_input)
        self.mailbox = PostgresMailbox(self.database, redeliver_seconds=REDELIVER_SECONDS)
        self.housekeeping = PostgresHousekeeping(
            self.database, lost_grant_seconds=LOST_SECONDS, request_key_seconds=1e6, dead_letter_seconds=1e6
        )
        self.reads = PostgresQueueReads(self.database)

    def now(self) -> Any:
        return ManualClock().now()

    async def empty(self) -> None:
        for table in ("queue", "tenants", "requests", "mailbox", "coordinator_sessions"):
            await self.database.execute(f"DELETE FROM dispatcher.{table}")
        for holder in LIVE:
            await self.database.execute(
                "INSERT INTO dispatcher.coordinator_sessions"
                " (instance_id, opened_by, holder, version, labels, state, lease_until, heard_time, open_time)"
                " VALUES (%s, 'c', 'c', '1', '{}', 'LIVE', now(), now(), now())",
                (holder,),
            )

    async def wait(self, seconds: float) -> None:
        """The database's clock cannot be moved, so its rows are moved into the past."""
        past = f"interval '{seconds} seconds'"
        columns = ("enqueue_time", "granted_time", "wake_time", "deadline_time", "failure_time")
        moved = ", ".join(f"{column} = {column} - {past}" for column in columns)
        await self.database.execute(f"UPDATE dispatcher.queue SET {moved}")
        await self.database.execute(f"UPDATE dispatcher.mailbox SET create_time = create_time - {past}")

    async def rows(self) -> list[tuple[Any, ...]]:
        return await self.database.fetch(
            "SELECT execution_id::text, workspace, state, priority, attempts, urgent, ends_only, begun, reopens, epoch,"
            " holder, granted_time IS NOT NULL, wake_time IS NOT NULL, coalesce(failure_reason, '')"
            " FROM dispatcher.queue"
        )

    async def message_ids(self) -> list[str]:
        rows = await self.database.fetch("SELECT message_id FROM dispatcher.mailbox")
        return sorted(row[0] for row in rows)

    async def close(self) -> None:
        await self.connection.close()
        await self.database.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def postgres_side(database: MigratedDatabase) -> AsyncIterator[PostgresSide]:
    side = PostgresSide(database.url("dispatcher"))
    yield side
    await side.close()


Side = MemorySide | PostgresSide


class Epochs:
    """Names the epochs of one side."""

    def __init__(self) -> None:
        self._seen: dict[str, list[int]] = {}

    def name(self, execution_id: str, epoch: int) -> int:
        """Its rank among the epochs of this execution. 0: it was never granted."""
        if not epoch:
            return 0
        seen = self._seen.setdefault(execution_id, [])
        if epoch not in seen:
            assert not seen or epoch > max(seen), "an epoch falls"
            seen.append(epoch)
        return seen.index(epoch) + 1

    def of(self, lease: Lease) -> Lease:
        """The lease under its real epoch. One that nobody has is stale."""
        execution_id, rank = lease
        seen = self._seen.get(execution_id, [])
        return execution_id, seen[rank - 1] if 0 < rank <= len(seen) else 0


# A call of the stores: what is done on one side, whose epochs are given.
Call = Callable[[Side, Epochs], Any]


class Script:
    """Draws calls. It knows the rows that are there, by the names of their epochs."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.rows: list[tuple[Any, ...]] = []
        self.ids: list[str] = []
        self.messages: list[str] = []

    def _id(self) -> str:
        if self.ids and self.random.random() < 0.15:
            return self.random.choice(self.ids)
        self.ids.append(str(UUID(int=self.random.getrandbits(128), version=4)))
        return self.ids[-1]

    def _leases(self) -> list[Lease]:
        """Mostly of rows that are held, under their epochs or stale ones."""
        rows = self.random.sample(self.rows, min(len(self.rows), self.random.randint(0, 3)))
        return sorted((row[0], max(0, row[9] - (self.random.random() < 0.15))) for row in rows)

    def draw(self) -> Call:
        calls: Sequence[Callable[[], Call]] = (
            *[self.batch] * 6,
            *[self.deliver] * 3,
            self.limits,
            self.hand_back,
            self.keep_open,
            self.note_begun,
            self.end,
            self.fail,
            self.mark,
            self.wake,
            self.wake_parked,
            self.look,
            self.forget,
            self.reasons,
            self.tell,
            self.wait,
        )
        return self.random.choice(calls)()

    def limits(self) -> Call:
        random = self.random
        limits = {
            workspace: WorkspaceLimits(random.randint(1, 4), random.choice([2, 5, 100]), random.randint(1, 9))
            for workspace in random.sample(WORKSPACES, random.randint(1, 3))
        }
        return lambda side, epochs: side.queue.store_limits(limits)

    def batch(self) -> Call:
        random = self.random
        holders = random.sample(HOLDERS, random.randint(1, 3))
        starts = {start.execution_id: start for start in (self._start() for _ in range(random.randint(0, 4)))}
        # One statement cannot judge two items with the same key.
        keyed = {(start.workspace, start.request_id or start.execution_id): start for start in starts.values()}
        new_starts = list(keyed.values())
        offered = [random.choice([-1, *range(len(holders))]) for _ in new_starts]
        reports = [(lease, random.choice(["finished", "parked", "later", "seen"])) for lease in self._leases()]
        workspaces = random.sample(WORKSPACES, random.randint(0, 3))
        claims = [random.randrange(len(holders)) for _ in range(random.randint(1, 4))] if workspaces else []
        ending = [random.randrange(len(holders)) for _ in range(random.randint(0, 2))]
        seen = random.sample(self.messages, min(len(self.messages), random.randint(0, 2)))
        waiting = {each.workspace: random.randint(0, 3) for each in new_starts if random.random() < 0.2}

        async def call(side: Side, epochs: Epochs) -> Any:
            now = side.now()
            wake = {"parked": None, "later": now + timedelta(seconds=20), "seen": now - timedelta(seconds=1)}
            leases = [(epochs.of(lease), kind) for lease, kind in reports]
            batch = AdmissionBatch(
                now,
                new_starts,
                offered,
                waiting,
                [LeaseFinished(*lease) for lease, kind in leases if kind == "finished"],
                [
                    LeaseParked(*lease, wake[kind], tuple(seen) if kind == "seen" else ())
                    for lease, kind in leases
                    if kind != "finished"
                ],
                workspaces,
                claims,
                ending,
                holders,
            )
            return _plain(await side.queue.commit(batch), epochs)

        return call

    def _start(self) -> NewStart:
        random = self.random
        id_, workspace = self._id(), random.choice([*WORKSPACES, "unknown"])
        request_id = random.choice(["", "", f"r{random.randint(1, 6)}"])
        order = start_pb2.StartOrder(execution_id=id_, workspace=workspace)
        return NewStart(
            id_,
            workspace,
            random.randint(1, 5),
            None,
            request_id,
            random.choice([b"h", b"h", b"other"]),
            order.SerializeToString(),
            WorkspaceLimits(1, 1, 1),
            order,
        )

    def deliver(self) -> Call:
        random = self.random
        messages = []
        for _ in range(random.randint(1, 3)):
            if self.messages and random.random() < 0.2:
                message_id = random.choice(self.messages)
            else:
                message_id = f"m{len(self.messages):04}"
                self.messages.append(message_id)
            row = random.choice(self.rows) if self.rows and random.random() < 0.8 else None
            id_, workspace = (row[0], row[1]) if row is not None else (self._id(), random.choice(WORKSPACES))
            to_make = RowToMake(random.randint(1, 5), b"start") if random.random() < 0.2 else None
            named = workspace if to_make is not None else random.choice(["", workspace, "w2"])
            is_ending, is_in_order = random.random() < 0.15, random.random() < 0.5
            body = message_id.encode() * random.choice([1, 3])
            waits = not is_ending and to_make is None and random.random() < 0.3
            messages.append(MailboxMessage(message_id, id_, named, body, is_ending, to_make, is_in_order, waits))
        # Messages of one call are stored in this order.
        messages = list({message.message_id: message for message in messages}.values())
        messages.sort(key=lambda message: message.message_id)
        return lambda side, epochs: side.mailbox.deliver(messages)

    def forget(self) -> Call:
        gone = self.random.sample(self.messages, min(len(self.messages), 2))
        return lambda side, epochs: side.mailbox.forget(gone)

    def hand_back(self) -> Call:
        leases = self._leases()
        begun = {execution_id for execution_id, _ in leases if self.random.random() < 0.5}
        return lambda side, epochs: _sorted(side.leases.hand_back([epochs.of(lease) for lease in leases], begun))

    def keep_open(self) -> Call:
        leases = self._leases()
        return lambda side, epochs: _sorted(side.leases.keep_open([epochs.of(lease) for lease in leases]))

    def note_begun(self) -> Call:
        leases = self._leases()
        return lambda side, epochs: side.leases.note_begun([epochs.of(lease) for lease in leases])

    def mark(self) -> Call:
        leases = self._leases()
        return lambda side, epochs: side.housekeeping.mark_dispatched([epochs.of(lease) for lease in leases])

    def end(self) -> Call:
        holders = self.random.sample(HOLDERS, 1)
        return lambda side, epochs: _sorted(side.leases.end(holders))

    def fail(self) -> Call:
        leases = self._leases() or [("00000000-0000-4000-8000-000000000000", 1)]
        is_permanent, has_begun = self.random.random() < 0.2, self.random.random() < 0.5

        def call(side: Side, epochs: Epochs) -> Any:
            report = LeaseReleased(*epochs.of(leases[0]), True, is_permanent, "REASON", "message", has_begun)
            return side.leases.fail(report)

        return call

    def reasons(self) -> Call:
        leases = self._leases()
        kinds = [self.random.choice([LeaseFinished, LeaseReleased]) for _ in leases]
        return lambda side, epochs: side.leases.reasons(
            [kind(*epochs.of(lease)) for kind, lease in zip(kinds, leases, strict=True)]
        )

    def wake(self) -> Call:
        async def call(side: Side, epochs: Epochs) -> Any:
            woken, following = await side.housekeeping.wake()
            return sorted(woken), following is None

        return call

    def wake_parked(self) -> Call:
        leases, workspace = self._leases(), self.random.choice(WORKSPACES)
        if parked := [row for row in self.rows if row[2] == int(State.PARKED)]:
            row = self.random.choice(parked)
            leases, workspace = [*leases, (row[0], row[9])], row[1]

        async def call(side: Side, epochs: Epochs) -> Any:
            woken, held = await side.housekeeping.wake_parked(workspace, [epochs.of(lease) for lease in leases])
            return sorted(woken), sorted(held)

        return call

    def look(self) -> Call:
        async def call(side: Side, epochs: Epochs) -> Any:
            lost = await side.housekeeping.lost_grants()
            unread = await side.mailbox.unread()
            used = await side.reads.requests("w0", [f"r{n}" for n in range(1, 7)])
            return (
                await side.housekeeping.workspaces_with_work(),
                {
                    holder: sorted((id_, epochs.name(id_, epoch)) for id_, epoch in each)
                    for holder, each in lost.items()
                },
                {holder: sorted(bodies) for holder, bodies in unread.items()},
                sorted(await side.housekeeping.holders_gone()),
                sorted(each[:3] for each in await side.housekeeping.measure()),
                sorted(used),
                sorted(row[:5] for row in await side.reads.get(self.ids)),
            )

        return call

    def tell(self) -> Call:
        dead = [row[0] for row in self.rows if row[2] == 5][:1]

        async def call(side: Side, epochs: Epochs) -> Any:
            untold = await side.housekeeping.untold(str(UUID(int=0)))
            if dead:
                await side.housekeeping.note_told(dead)
            return [each[:4] for each in untold]

        return call

    def wait(self) -> Call:
        seconds = self.random.choice([1.0, 4.0, 7.0, 31.0])
        return lambda side, epochs: side.wait(seconds)


async def _sorted(answer: Any) -> Any:
    return sorted(await answer)


def _plain(result: BatchResult, epochs: Epochs) -> Any:
    """What a batch has answered, without times."""
    claims = [
        (
            *(*claim[:2], epochs.name(claim[0], claim.epoch), claim.holder_index),
            *(*claim[7:10], tuple(claim.messages), claim.wake_us > 0),
        )
        for claim in result.claims
    ]
    took_effect = sorted((type(each).__name__, each.execution_id, to) for each, to in result.took_effect.items())
    return result.admissions, took_effect, sorted(result.woken), sorted(claims), sorted(result.workspaces, key=repr)


async def state_of(side: Side, epochs: Epochs) -> Any:
    rows = [(*row[:9], epochs.name(row[0], row[9]), *row[10:]) for row in sorted(await side.rows())]
    return rows, await side.message_ids()


@pytest.mark.parametrize("seed", range(25))
async def test_both_stores_do_the_same(postgres_side: PostgresSide, seed: int) -> None:
    await postgres_side.empty()
    script = Script(Random(seed))
    sides: list[tuple[Side, Epochs]] = [(MemorySide(), Epochs()), (postgres_side, Epochs())]
    for step in range(STEPS):
        call = script.limits() if not step else script.draw()
        in_memory, in_postgres = [await call(*side) for side in sides]
        assert in_memory == in_postgres, f"step {step}: {call.__qualname__}"
        in_memory, in_postgres = [await state_of(*side) for side in sides]
        assert in_memory == in_postgres, f"after step {step}: {call.__qualname__}"
        script.rows = in_memory[0]
