"""Returns to the queue are kept until they are committed, answered once, and safe to repeat."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from services.chassis.postgres.database import CommitUnknown, DatabaseAway
from services.chassis.process.clock import SystemClock
from services.chassis.process.config import DAY_SECONDS
from services.dispatcher.app.admission_inbox import AdmissionInbox
from services.dispatcher.app.admission_metrics import AdmissionMetrics
from services.dispatcher.app.ports import PendingReport
from services.dispatcher.app.returns import Returns
from services.dispatcher.core.items import Claim, LeaseBegun, LeaseReleased, State
from services.dispatcher.store.housekeeping import PostgresHousekeeping
from tests.integration.dispatcher.conftest import Rig
from tests.integration.dispatcher.test_admission_loop import Recorder, execute


class LosesAnswers:
    """The leases of the database. The answer to the named call is lost once, after its commit."""

    def __init__(self, rig: Rig, lost: str) -> None:
        self._leases = rig.leases
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        async def call(*given: Any) -> Any:
            answer = await getattr(self._leases, name)(*given)
            if name == self._lost:
                self._lost = ""
                raise CommitUnknown("no answer")
            return answer

        return call


def returns_of(rig: Rig, lost: str = "") -> tuple[Returns, AdmissionInbox]:
    clock = SystemClock()
    inbox = AdmissionInbox(clock)
    return Returns(leases=LosesAnswers(rig, lost), inbox=inbox, metrics=AdmissionMetrics(), clock=clock), inbox


async def states(rig: Rig, workspace: str) -> list[State]:
    return [State(row[0]) for row in await rig.rows("state", f"workspace = '{workspace}'")]  # type: ignore[arg-type]


def told(claims: Sequence[Claim], holder: Recorder, **release: Any) -> list[PendingReport[LeaseReleased]]:
    return [
        PendingReport(claim.execution_id, LeaseReleased(claim.execution_id, claim.epoch, **release), holder)
        for claim in claims
    ]


@pytest.mark.parametrize("lost", ["", "hand_back"])
async def test_many_releases_are_answered_once_each(rig: Rig, lost: str) -> None:
    workspace = f"many-{lost}"
    claims = await rig.leased(workspace, 50)
    returns, inbox = returns_of(rig, lost)
    holder = Recorder()
    returns.released(told(claims, holder, reason="DRAINING"))
    if lost:
        with pytest.raises(DatabaseAway):
            await returns.run_once()
        assert not holder.acknowledged
    await returns.run_once()
    assert sorted(holder.acknowledged) == sorted(claim.execution_id for claim in claims)
    assert not holder.refused
    assert await states(rig, workspace) == [State.PENDING] * 50
    assert await rig.rows("DISTINCT attempts", f"workspace = '{workspace}'") == [(0,)]
    assert lost or inbox.queues.take(9) == [workspace]


async def test_failed_dispatch_whose_answer_is_lost_is_charged_once(rig: Rig) -> None:
    (claim,) = await rig.leased("charged")
    returns, _ = returns_of(rig, "fail")
    holder = Recorder()
    returns.released(told([claim], holder, is_failed=True, reason="AWAY"))
    with pytest.raises(DatabaseAway):
        await returns.run_once()
    await returns.run_once()
    assert holder.acknowledged == [claim.execution_id]
    assert await rig.rows("state, attempts", "workspace = 'charged'") == [(State.PARKED, 1)]


@pytest.mark.parametrize("lost", ["", "reasons"])
async def test_late_release_is_refused_and_changes_nothing(rig: Rig, lost: str) -> None:
    workspace = f"stale-{lost}"
    (claim,) = await rig.leased(workspace)
    returns, _ = returns_of(rig, lost)
    holder = Recorder()
    stale = claim._replace(epoch=claim.epoch - 1)
    returns.released(told([stale], holder) + told([stale], holder, is_permanent=True))
    if lost:
        with pytest.raises(DatabaseAway):
            await returns.run_once()
        assert not holder.refused
    await returns.run_once()
    assert holder.refused == [(claim.execution_id, "EPOCH_STALE")] * 2
    assert await states(rig, workspace) == [State.CLAIMED]


async def test_grants_handed_back_wait_again_but_never_anothers(rig: Rig) -> None:
    mine, moved = await rig.leased("handed", 2)
    returns, inbox = returns_of(rig)
    returns.hand_back([(mine.execution_id, mine.epoch), (moved.execution_id, moved.epoch - 1)])
    await returns.run_once()
    assert sorted(await states(rig, "handed")) == [State.PENDING, State.CLAIMED]
    assert inbox.queues.take(9) == ["handed"]


@pytest.mark.parametrize("lost", ["", "end"])
async def test_leases_of_an_ended_instance_wait_again_under_a_higher_epoch(rig: Rig, lost: str) -> None:
    holder = f"ended-{lost}"
    (claim,) = await rig.leased(holder, 1, holder)
    returns, _ = returns_of(rig, lost)
    returns.ended([holder])
    if lost:
        with pytest.raises(DatabaseAway):
            await returns.run_once()
    await returns.run_once()
    ((state, urgent, epoch),) = await rig.rows("state, urgent, epoch", f"workspace = '{holder}'")
    assert (state, urgent) == (State.PENDING, True)
    assert isinstance(epoch, int)
    assert epoch > claim.epoch


async def test_every_grant_has_a_higher_epoch(rig: Rig) -> None:
    (claim,) = await rig.leased("again")
    epochs = [claim.epoch]
    for _ in range(3):
        await rig.leases.hand_back([(claim.execution_id, epochs[-1])])
        (claim,) = await rig.claim("again", claims=1)
        epochs.append(claim.epoch)
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize("release", ["plain", "failed", "parked"])
async def test_an_execution_that_has_begun_is_granted_as_begun_for_ever(rig: Rig, release: str) -> None:
    (claim,) = await rig.leased(f"begun-{release}", 1)
    assert not claim.has_begun
    returns, _ = returns_of(rig)
    if release == "parked":
        await rig.park(claim, datetime.now(UTC))
    else:
        returns.released(told([claim], Recorder(), is_failed=release == "failed", has_begun=True))
        await returns.run_once()
        await execute(rig, f"UPDATE dispatcher.queue SET state = 1 WHERE execution_id = '{claim.execution_id}'")
    for _ in range(2):
        (claim,) = await rig.claim(f"begun-{release}", claims=1)
        assert claim.has_begun
        # A holder that knows less does not take it back.
        returns.released(told([claim], Recorder()))
        await returns.run_once()


async def test_an_execution_that_has_begun_stays_held_and_its_next_holder_hears_of_it(rig: Rig) -> None:
    mine, moved = await rig.leased("noted", 2, "noted-holder")
    returns, _ = returns_of(rig)
    holder = Recorder()
    notes = [LeaseBegun(mine.execution_id, mine.epoch), LeaseBegun(moved.execution_id, moved.epoch - 1)]
    returns.begun(PendingReport(note.execution_id, note, holder) for note in notes)
    await returns.run_once()
    assert sorted(holder.acknowledged) == sorted(note.execution_id for note in notes)
    assert await states(rig, "noted") == [State.CLAIMED] * 2
    returns.ended(["noted-holder"])
    await returns.run_once()
    claims = await rig.claim("noted", claims=2)
    assert {claim.execution_id: claim.has_begun for claim in claims} == {
        mine.execution_id: True,
        moved.execution_id: False,
    }


async def test_dead_letters_are_forgotten_after_their_time_and_nothing_else_is(empty_rig: Rig) -> None:
    rig = empty_rig
    claims = await rig.leased("dead", 4)
    returns, _ = returns_of(rig)
    returns.released(told(claims[:3], Recorder(), is_permanent=True, reason="GONE"))
    await returns.run_once()
    await execute(
        rig,
        "UPDATE dispatcher.queue SET enqueue_time = now() - interval '99 days';"
        f" UPDATE dispatcher.queue SET failure_time = now() - interval '31 days'"
        f" WHERE execution_id IN ('{claims[0].execution_id}', '{claims[1].execution_id}')",
    )
    housekeeping = PostgresHousekeeping(
        rig.database, lost_grant_seconds=1.0, request_key_seconds=1.0, dead_letter_seconds=30 * DAY_SECONDS
    )
    assert await housekeeping.forget_dead_letters() == 2
    assert await housekeeping.forget_dead_letters() == 0
    assert {row[0] for row in await rig.rows()} == {claims[2].execution_id, claims[3].execution_id}
