"""One append is limited in size, and an append that fails is repeated in smaller parts."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from services.chassis.postgres.connection import CommitUnknown, DatabaseAway
from services.chassis.postgres.database import Database
from services.coordinator.app import commit_loop
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.app.ports import Append, Fence
from services.coordinator.core.values import INLINE_BYTES_MAX
from services.coordinator.store.journal import PostgresJournal
from tests.integration.coordinator.test_running_executions import line
from tests.support.coordinator_stage import Stage, StageRunner, eventually

COUNT = 48
LARGE = {"text": "x" * (INLINE_BYTES_MAX - 100)}


class Appends:
    """The real journal, which a test watches and disturbs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[Sequence[Append]] = []
        # An append of more executions than this fails, before or after it is written.
        self.most = 1_000
        self.is_written = False
        self.open = asyncio.Event()
        self.open.set()
        # The ids of the reports that have come, since one that waits for long may come twice.
        self.reported: set[str] = set()
        self.original, self.original_reported = PostgresJournal.append, OwnedExecutions.reported
        monkeypatch.setattr(PostgresJournal, "append", lambda *given: self.append(*given))
        monkeypatch.setattr(OwnedExecutions, "reported", lambda *given: self.count(*given))

    def count(self, carrier: OwnedExecutions, session: Any, reports: Sequence[Any]) -> None:
        self.original_reported(carrier, session, reports)
        self.reported.update(each.report_id for each in reports)

    async def append(self, journal: PostgresJournal, appends: Sequence[Append]) -> Mapping[int, Fence]:
        self.seen.append(appends)
        await self.open.wait()
        if len(appends) <= self.most:
            return await self.original(journal, appends)
        if self.is_written:
            await self.original(journal, appends)
            raise CommitUnknown("the answer was lost")
        raise DatabaseAway("not in time")

    @property
    def most_bytes(self) -> int:
        return max(sum(len(each.entry) for each in appends) for appends in self.seen)


async def all_answered_in_one_batch(appends: Appends, runner: StageRunner, answers: int, output: Any) -> None:
    """All runs that the runner was granted end while one append is under way."""
    await eventually(lambda: len(runner.grants) == answers)
    appends.open.clear()
    appends.seen.clear()
    for number, grant in enumerate(runner.grants):
        runner.answer(grant, output)
        if number == 0:
            await eventually(lambda: appends.seen)
    await eventually(lambda: len(appends.reported) == answers)
    appends.open.set()


@pytest.mark.parametrize("is_written", [False, True], ids=["not written", "answer lost"])
async def test_append_that_fails_is_repeated_in_halves(
    on_stage: Stage, tables: Database, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    appends = Appends(monkeypatch)
    version = on_stage.catalog.add("v-line", **line(2))
    session, _ = await on_stage.with_runner()
    orders = [on_stage.dispatcher.order(version) for _ in range(COUNT)]
    appends.most, appends.is_written = 4, is_written
    on_stage.dispatcher.grant(session, orders)
    await eventually(lambda: len(on_stage.dispatcher.finished) == COUNT)
    assert any(len(each) > appends.most for each in appends.seen)
    ids = [order.lease.lease_id for order in orders]
    rows = await tables.fetch(
        "SELECT e.state, e.last_seq, max(j.last_seq), e.runs, (SELECT count(*) FROM runs r"
        " WHERE r.execution_id = e.execution_id) FROM executions e JOIN journal j USING (execution_id)"
        " WHERE e.execution_id = ANY(%s::uuid[]) GROUP BY e.execution_id",
        [ids],
    )
    assert len(rows) == COUNT
    for state, last_seq, journalled_seq, runs, run_rows in rows:
        assert (state, last_seq, runs) == ("SUCCESS", journalled_seq, run_rows)
        assert runs == 2


@pytest.mark.parametrize("nodes", [1, COUNT], ids=["many executions", "one execution"])
async def test_one_append_has_a_bound_in_bytes(on_stage: Stage, monkeypatch: pytest.MonkeyPatch, nodes: int) -> None:
    appends = Appends(monkeypatch)
    fan = {"name": "w", "nodes": [{"id": f"n{n}", "module": "noop@1"} for n in range(nodes)]}
    version = on_stage.catalog.add("v-fan", **fan)
    session, runner = await on_stage.with_runner(is_silent=True)
    orders = [on_stage.dispatcher.order(version) for _ in range(COUNT // nodes)]
    on_stage.dispatcher.grant(session, orders)
    await all_answered_in_one_batch(appends, runner, COUNT, LARGE)
    await eventually(lambda: len(on_stage.dispatcher.finished) == len(orders))
    # The last output that fitted may exceed the limit. It may also be stored again as the output of its execution.
    assert 4 * INLINE_BYTES_MAX < appends.most_bytes <= commit_loop.BYTES_MAX + 2 * INLINE_BYTES_MAX
    await eventually(lambda: len(runner.taken) == COUNT)
    assert not runner.refused
