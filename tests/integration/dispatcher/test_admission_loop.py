"""The admission loop on a real database: bad items stand alone, lost commits are repeated, credit is given back."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import cast

import psycopg
import pytest

from services.chassis.lease.frames import Grant, RefusedReport
from services.chassis.postgres.database import CommitUnknown, DatabaseAway
from services.chassis.process.clock import Clock, SystemClock
from services.chassis.process.coalescing import APART_SECONDS_MAX
from services.dispatcher.app.admission_inbox import AdmissionInbox
from services.dispatcher.app.admission_loop import AdmissionLoop
from services.dispatcher.app.admission_metrics import AdmissionMetrics
from services.dispatcher.app.ports import Arrival, PendingReport
from services.dispatcher.app.replica_notices import ReplicaNotices
from services.dispatcher.app.retry_later import AGAIN_SECONDS
from services.dispatcher.app.returns import Returns
from services.dispatcher.app.waking import Waking
from services.dispatcher.core.batch import AdmissionBatch, BatchResult
from services.dispatcher.core.items import Admission, Claim, EnqueueOutcome, LeaseFinished, LeaseParked, NewStart, State
from services.dispatcher.core.mailbox_limits import MEBIBYTE
from services.dispatcher.core.workspace_queues import ASIDE_SECONDS
from services.dispatcher.store.housekeeping import PostgresHousekeeping
from tests.integration.dispatcher.conftest import Rig, new_start
from tests.support.manual_clock import ManualClock
from tests.support.probe import until

SECONDS = 20.0


class Recorder:
    """A holder, all coordinators, and an asker. It records its calls."""

    instance_id = "recorder"

    def __init__(self, credit: int = 10) -> None:
        self.credit = credit
        self.claims: list[Claim] = []
        self.answers: dict[str, Admission] = {}
        self.acknowledged: list[str] = []
        self.refused: list[RefusedReport] = []
        self.is_gone = False

    def with_credit(self) -> list[Recorder]:
        return [self] if self.credit > 0 else []

    def set_demand(self, demand: int) -> None:
        pass

    def take_credit(self, wanted: int) -> int:
        taken = min(wanted, self.credit)
        self.credit -= taken
        return taken

    def give_back(self, count: int) -> None:
        self.credit += count

    def grant(self, grants: Sequence[Grant]) -> bool:
        if not self.is_gone:
            self.claims += [cast("Claim", grant.work) for grant in grants]
        return not self.is_gone

    def acknowledge(self, report_ids: Sequence[str]) -> None:
        self.acknowledged += report_ids

    def refuse_reports(self, refused: Sequence[RefusedReport]) -> None:
        self.refused += refused

    def answered(self, new_start: NewStart, admission: Admission) -> None:
        self.answers[new_start.execution_id] = admission


class Failing:
    """A queue whose next commits raise the given errors, before or after they take place."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.store_limits = rig.queue.store_limits
        self.before: list[Exception] = []
        self.after: list[Exception] = []

    async def commit(self, batch: AdmissionBatch) -> BatchResult:
        if self.before:
            raise self.before.pop()
        result = await self._rig.queue.commit(batch)
        if self.after:
            raise self.after.pop()
        return result


class Stage:
    def __init__(
        self, rig: Rig, credit: int = 10, clock: Clock | None = None, recorder: Recorder | None = None
    ) -> None:
        clock = clock or SystemClock()
        housekeeping = PostgresHousekeeping(
            rig.database, lost_grant_seconds=1.0, request_key_seconds=1.0, dead_letter_seconds=1.0
        )
        metrics = AdmissionMetrics()
        self.recorder = recorder or Recorder(credit)
        self.queue = Failing(rig)
        self.inbox = AdmissionInbox(clock)
        self.returns = Returns(leases=rig.leases, inbox=self.inbox, metrics=metrics, clock=clock)
        self.admission_loop = AdmissionLoop(
            inbox=self.inbox,
            store=self.queue,
            coordinators=self.recorder,
            returns=self.returns,
            waking=Waking(housekeeping=housekeeping, inbox=self.inbox, clock=clock, poll_seconds=1.0),
            replica_notices=ReplicaNotices(
                housekeeping=housekeeping, replica="me", heard=self.inbox.work_elsewhere, clock=clock
            ),
            grant_of=lambda claim: Grant(claim.execution_id, claim.epoch, claim),
            metrics=metrics,
            clock=clock,
            poll_seconds=1.0,
        )

    def bring(self, *new_starts: NewStart) -> None:
        self.inbox.enqueue([Arrival(each, self.recorder) for each in new_starts])

    async def granted(self, *workspaces: str) -> list[Claim]:
        """The claims of one turn with a new start in each of these workspaces."""
        self.bring(*map(new_start, workspaces))
        await self.admission_loop.run_once()
        return self.recorder.claims

    def report(self, report_id: str, report: LeaseFinished | LeaseParked) -> None:
        self.inbox.report([PendingReport(report_id, report, self.recorder)])

    def finish(self, claim: Claim) -> None:
        self.report("r1", LeaseFinished(claim.execution_id, claim.epoch))

    def outcomes(self, *new_starts: NewStart) -> list[EnqueueOutcome]:
        return [self.recorder.answers[each.execution_id].outcome for each in new_starts]


REFUSES = """
CREATE FUNCTION dispatcher.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'not this one' USING ERRCODE = '{code}';
END $$;
CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON dispatcher.queue
  FOR EACH ROW WHEN (NEW.workspace = 'refused' AND NEW.state = {state}) EXECUTE FUNCTION dispatcher.refuse();
"""
REFUSES_ENDS = """
CREATE FUNCTION dispatcher.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a value is out of range' USING ERRCODE = 'data_exception';
END $$;
CREATE TRIGGER refuse BEFORE {operation} ON dispatcher.queue
  FOR EACH ROW WHEN (OLD.workspace = 'refused') EXECUTE FUNCTION dispatcher.refuse();
"""
REFUSES_NO_MORE = "DROP TRIGGER refuse ON dispatcher.queue"


async def refusing(rig: Rig, state: State, code: str = "program_limit_exceeded") -> None:
    """The database refuses to bring rows of one workspace into this state."""
    await execute(rig, REFUSES.format(state=int(state), code=code))


async def execute(rig: Rig, statements: str) -> None:
    async with await psycopg.AsyncConnection.connect(rig.url, autocommit=True) as connection:
        await connection.execute(statements.encode())


@pytest.mark.parametrize("code", ["program_limit_exceeded", "data_corrupted"])
async def test_item_that_the_database_refuses_by_itself_stands_alone(empty_rig: Rig, code: str) -> None:
    await refusing(empty_rig, State.PENDING, code)
    stage = Stage(empty_rig, credit=0)
    good, bad = new_start("good"), new_start("refused")
    stage.bring(good, bad)
    await stage.admission_loop.run_once()
    assert stage.outcomes(good, bad) == [EnqueueOutcome.QUEUED, EnqueueOutcome.REJECTED]


FAULTS_OF_NO_ITEM = {
    "a right is missing": "REVOKE INSERT, UPDATE, DELETE ON dispatcher.queue FROM CURRENT_USER",
    "a table is missing": "ALTER TABLE dispatcher.queue RENAME TO elsewhere",
    "a column is missing": "ALTER TABLE dispatcher.queue RENAME COLUMN epoch TO elsewhere",
}


@pytest.mark.parametrize("fault", FAULTS_OF_NO_ITEM)
async def test_fault_of_the_database_that_is_no_items_ends_the_loop_and_answers_nobody(
    empty_rig: Rig, fault: str
) -> None:
    stage = Stage(empty_rig)
    first, second = await stage.granted("faulty", "faulty")
    stage.recorder.answers.clear()
    await execute(empty_rig, FAULTS_OF_NO_ITEM[fault])
    stage.bring(new_start("faulty"), new_start("faulty"))
    stage.finish(first)
    stage.report("r2", LeaseParked(second.execution_id, second.epoch, None, ()))
    with pytest.raises(psycopg.ProgrammingError):
        async with asyncio.timeout(SECONDS):
            await stage.admission_loop.run()
    assert (stage.recorder.answers, stage.recorder.acknowledged, stage.recorder.refused) == ({}, [], [])


@pytest.mark.parametrize("is_parked", [True, False])
async def test_report_that_cannot_be_stored_is_kept_unanswered_until_it_can(empty_rig: Rig, is_parked: bool) -> None:
    clock = ManualClock()
    stage = Stage(empty_rig, clock=clock)
    good, bad = sorted(await stage.granted("good", "refused"), key=lambda claim: claim.workspace)
    await execute(empty_rig, REFUSES_ENDS.format(operation="UPDATE" if is_parked else "DELETE"))
    for name, claim in (("good", good), ("bad", bad)):
        lease = (claim.execution_id, claim.epoch)
        stage.report(name, LeaseParked(*lease, None, ()) if is_parked else LeaseFinished(*lease))
    await stage.admission_loop.run_once()
    stage.inbox.polled([], False)
    assert not stage.admission_loop.has_work, "not before its time"
    clock.advance(AGAIN_SECONDS)
    stage.inbox.polled([], False)
    await stage.admission_loop.run_once()
    assert (stage.recorder.acknowledged, stage.recorder.refused) == (["good"], [])
    assert await empty_rig.rows("epoch", "workspace = 'refused' AND state IN (2, 3)") == [(bad.epoch,)]
    await execute(empty_rig, REFUSES_NO_MORE)
    clock.advance(AGAIN_SECONDS)
    stage.inbox.polled([], False)
    await stage.admission_loop.run_once()
    assert (stage.recorder.acknowledged, stage.recorder.refused) == (["good", "bad"], [])
    assert await empty_rig.rows(where="workspace = 'refused' AND state IN (2, 3)") == []


async def test_queue_whose_claim_is_refused_is_set_aside_and_holds_up_nobody(empty_rig: Rig) -> None:
    for workspace in ("good", "refused", "other"):
        await empty_rig.limit(workspace, 5)
        await empty_rig.enqueue(new_start(workspace))
    await refusing(empty_rig, State.CLAIMED)
    clock = ManualClock()
    stage = Stage(empty_rig, clock=clock)
    stage.inbox.polled(["good", "refused", "other"], False)
    stage.bring(came := new_start("good"))
    await stage.admission_loop.run_once()
    assert stage.outcomes(came) == [EnqueueOutcome.QUEUED]
    while stage.admission_loop.has_work:
        await stage.admission_loop.run_once()
    assert sorted(claim.workspace for claim in stage.recorder.claims) == ["good", "good", "other"]
    assert stage.recorder.credit == 7
    # No hint about it brings it back before its time.
    stage.inbox.work_in("refused")
    stage.inbox.polled(["refused"], False)
    assert not stage.admission_loop.has_work
    await execute(empty_rig, REFUSES_NO_MORE)
    clock.advance(ASIDE_SECONDS)
    stage.inbox.polled([], False)
    await stage.admission_loop.run_once()
    assert stage.recorder.claims[-1].workspace == "refused"


async def test_ends_that_cannot_be_claimed_wait_and_hold_up_nobody(empty_rig: Rig) -> None:
    for workspace in ("good", "refused"):
        await empty_rig.limit(workspace, 5)
        await empty_rig.enqueue(new_start(workspace))
    await execute(empty_rig, "UPDATE dispatcher.queue SET ends_only = true WHERE workspace = 'refused'")
    await refusing(empty_rig, State.CLAIMED)
    clock = ManualClock()
    stage = Stage(empty_rig, clock=clock)
    stage.inbox.polled(["good"], True)
    while stage.admission_loop.has_work:
        await stage.admission_loop.run_once()
    assert [claim.workspace for claim in stage.recorder.claims] == ["good"]
    assert stage.recorder.credit == 9
    stage.inbox.work_in("ends", is_ends_only=True)
    assert not stage.admission_loop.has_work
    await execute(empty_rig, REFUSES_NO_MORE)
    clock.advance(ASIDE_SECONDS)
    await stage.admission_loop.run_once()
    assert stage.recorder.claims[-1].is_ends_only


async def test_full_mailboxes_of_what_ends_are_granted_one_after_another(empty_rig: Rig) -> None:
    await empty_rig.limit("ends", 5)
    came = [new_start("ends") for _ in range(3)]
    await empty_rig.enqueue(*came)
    for each in came:
        await empty_rig.fill(each.execution_id, messages=8, size=MEBIBYTE)
    await execute(empty_rig, "UPDATE dispatcher.queue SET ends_only = true")
    stage = Stage(empty_rig)
    stage.inbox.work_in("ends", is_ends_only=True)
    batches = 0
    while stage.admission_loop.has_work:
        await stage.admission_loop.run_once()
        batches += 1
    assert [len(claim.messages) for claim in stage.recorder.claims] == [8, 8, 8]
    assert batches == 2


@pytest.mark.parametrize("is_committed", [True, False])
async def test_batch_of_unknown_outcome_is_repeated_and_answers_the_same(rig: Rig, is_committed: bool) -> None:
    stage = Stage(rig)
    workspace = f"unknown-{is_committed}"
    batch = [new_start(workspace, request_id=f"r{n}") for n in range(3)]
    (stage.queue.after if is_committed else stage.queue.before).append(CommitUnknown("no answer"))
    stage.bring(*batch)
    with pytest.raises(DatabaseAway):
        await stage.admission_loop.run_once()
    assert stage.recorder.credit == 10
    assert not stage.recorder.answers
    await stage.admission_loop.run_once()
    assert stage.outcomes(*batch) == [EnqueueOutcome.QUEUED] * 3
    assert len(await rig.rows(where=f"workspace = '{workspace}'")) == 3


async def test_report_of_unknown_outcome_is_acknowledged_after_its_repetition(rig: Rig) -> None:
    stage = Stage(rig)
    (claim,) = await stage.granted("reported")
    stage.queue.after.append(CommitUnknown("no answer"))
    stage.finish(claim)
    with pytest.raises(DatabaseAway):
        await stage.admission_loop.run_once()
    assert not stage.recorder.acknowledged
    await stage.admission_loop.run_once()
    await stage.returns.run_once()
    assert stage.recorder.acknowledged == ["r1"]


async def test_end_that_frees_a_slot_for_nobody_goes_with_the_next_batch(rig: Rig) -> None:
    stage = Stage(rig)
    (claim,) = await stage.granted("accompanied")
    stage.finish(claim)
    assert not stage.admission_loop.has_work
    stage.bring(new_start("accompanied"))
    await stage.admission_loop.run_once()
    assert stage.recorder.acknowledged == ["r1"]
    assert not stage.admission_loop.has_work


async def test_end_that_nothing_goes_with_has_a_batch_of_its_own(rig: Rig) -> None:
    stage = Stage(rig)
    (claim,) = await stage.granted("alone-at-last")
    turning = asyncio.create_task(stage.admission_loop.run())
    stage.finish(claim)
    await until(lambda: stage.recorder.acknowledged, 10.0, "the acknowledgement")
    turning.cancel()


async def test_end_that_frees_a_slot_for_a_queued_execution_has_a_batch_at_once(rig: Rig) -> None:
    stage = Stage(rig)
    claim, *others = await stage.granted(*["contended"] * 6)
    assert (len(others), stage.recorder.credit) == (4, 5), "the unused credit is given back"
    stage.finish(claim)
    assert stage.admission_loop.has_work
    await stage.admission_loop.run_once()
    await stage.admission_loop.run_once()
    assert len(stage.recorder.claims) == 6


async def test_parked_report_goes_at_once(rig: Rig) -> None:
    stage = Stage(rig)
    (claim,) = await stage.granted("parked-at-once")
    parked = LeaseParked(claim.execution_id, claim.epoch, wake_time=None, seen_message_ids=())
    stage.report("r1", parked)
    assert stage.admission_loop.has_work


async def test_places_of_a_holder_that_is_gone_are_given_up(rig: Rig) -> None:
    stage = Stage(rig)
    stage.recorder.is_gone = True
    came = new_start("abandoned")
    stage.bring(came)
    await stage.admission_loop.run_once()
    await stage.returns.run_once()
    assert await rig.rows("state", "workspace = 'abandoned'") == [(State.PENDING,)]


async def test_without_credit_new_starts_are_durable_and_wait(rig: Rig) -> None:
    stage = Stage(rig, credit=0)
    came = new_start("creditless")
    stage.bring(came)
    await stage.admission_loop.run_once()
    assert stage.outcomes(came) == [EnqueueOutcome.QUEUED]
    assert not stage.recorder.claims
    stage.recorder.credit = 1
    await stage.admission_loop.run_once()
    assert [claim.execution_id for claim in stage.recorder.claims] == [came.execution_id]


async def test_ten_thousand_waiting_in_one_workspace_do_not_delay_another(empty_rig: Rig) -> None:
    await empty_rig.limit("crowd", 5, queued_max=20_000)
    await empty_rig.limit("guest", 5)
    for _ in range(20):
        await empty_rig.enqueue(*[new_start("crowd") for _ in range(500)])
    stage = Stage(empty_rig, credit=6)
    stage.inbox.polled(["crowd"], False)
    stage.bring(new_start("guest"))
    await stage.admission_loop.run_once()
    assert sorted({claim.workspace for claim in stage.recorder.claims}) == ["crowd", "guest"]


async def test_bringing_more_waits_while_too_much_is_gathered(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.dispatcher.app.admission_inbox.NEW_STARTS_WAITING_MAX", 3)
    stage = Stage(rig)
    stage.bring(*[new_start("bounded") for _ in range(3)])
    room = asyncio.create_task(stage.inbox.room())
    await asyncio.sleep(0)
    assert not room.done()
    await stage.admission_loop.run_once()
    await room


class Slow(Recorder):
    """A batch that asks it for room takes a while."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(credit=1_000)
        self._clock = clock

    def take_credit(self, wanted: int) -> int:
        self._clock.advance(APART_SECONDS_MAX / 2)
        return super().take_credit(wanted)


async def test_batches_rest_while_many_items_come(rig: Rig) -> None:
    clock = ManualClock()
    stage = Stage(rig, clock=clock, recorder=Slow(clock))
    turning = asyncio.create_task(stage.admission_loop.run())

    def has_answered(brought: Sequence[NewStart]) -> bool:
        is_over = all(each.execution_id in stage.recorder.answers for each in brought)
        if clock.sleepers and not is_over:
            clock.advance(APART_SECONDS_MAX)
        return is_over

    for _ in range(8):
        crowd = [new_start("crowd") for _ in range(20)]
        stage.bring(*crowd)
        await until(functools.partial(has_answered, crowd), 10.0, "the answers of the crowd")
    late = new_start("crowd")
    stage.bring(late)
    await until(lambda: clock.sleepers, 10.0, "a pause")
    assert late.execution_id not in stage.recorder.answers
    await until(functools.partial(has_answered, [late]), 10.0, "the answer of the last")
    turning.cancel()


async def test_new_start_that_is_alone_waits_for_nothing(rig: Rig) -> None:
    stage = Stage(rig, clock=ManualClock())
    turning = asyncio.create_task(stage.admission_loop.run())
    for _ in range(5):
        alone = new_start("one-by-one")
        answers = stage.recorder.answers
        stage.bring(alone)
        await until(functools.partial(answers.get, alone.execution_id), 10.0, "an answer")
    turning.cancel()
