"""What comes back into the queue: kept until it is committed, answered once, safe to repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from services.chassis.clock import SystemClock
from services.chassis.database import CommitUnknown, DatabaseAway
from services.dispatcher.core.items import Place, Released, State
from services.dispatcher.handler.returns import Returns, ToldReleased
from services.dispatcher.handler.tally import Tally
from tests.integration.dispatcher.conftest import Rig, newcomer
from tests.integration.dispatcher.test_turns import Recorder


class Wakes:
    """Writes down where to look again."""

    def __init__(self) -> None:
        self.workspaces: list[str] = []
        self.endings = 0

    def work_in(self, workspace: str) -> None:
        self.workspaces.append(workspace)

    def ending_waits(self) -> None:
        self.endings += 1


class LosesAnswers:
    """The leases of the database; the answer to the named call is lost once, after its commit."""

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


def returns_of(rig: Rig, lost: str = "") -> tuple[Returns, Wakes]:
    wakes = Wakes()
    return Returns(leases=LosesAnswers(rig, lost), turns=wakes, tally=Tally(), clock=SystemClock()), wakes


async def granted(rig: Rig, workspace: str, count: int) -> Sequence[Place]:
    await rig.limit(workspace, 100)
    return (await rig.enqueue(*[newcomer(workspace) for _ in range(count)], seats=count)).places


async def states(rig: Rig, workspace: str) -> list[State]:
    return [State(row[0]) for row in await rig.rows("state", f"workspace = '{workspace}'")]  # type: ignore[arg-type]


def told(places: Sequence[Place], holder: Recorder, **release: Any) -> list[ToldReleased]:
    return [
        ToldReleased(place.execution_id, Released(place.execution_id, place.epoch, **release), holder)
        for place in places
    ]


@pytest.mark.parametrize("lost", ["", "hand_back"])
async def test_many_releases_are_answered_once_each(rig: Rig, lost: str) -> None:
    workspace = f"many-{lost}"
    places = await granted(rig, workspace, 50)
    returns, wakes = returns_of(rig, lost)
    holder = Recorder()
    returns.released(told(places, holder, reason="DRAINING"))
    if lost:
        with pytest.raises(DatabaseAway):
            await returns.run_once()
        assert not holder.acknowledged
    await returns.run_once()
    assert sorted(holder.acknowledged) == sorted(place.execution_id for place in places)
    assert not holder.refused
    assert await states(rig, workspace) == [State.PENDING] * 50
    assert lost or set(wakes.workspaces) == {workspace}


async def test_failed_dispatch_whose_answer_is_lost_is_charged_once(rig: Rig) -> None:
    (place,) = await granted(rig, "charged", 1)
    returns, _ = returns_of(rig, "fail")
    holder = Recorder()
    returns.released(told([place], holder, is_failed=True, reason="AWAY"))
    with pytest.raises(DatabaseAway):
        await returns.run_once()
    await returns.run_once()
    assert holder.acknowledged == [place.execution_id]
    assert await rig.rows("state, attempts", "workspace = 'charged'") == [(State.PARKED, 1)]


async def test_late_release_is_refused_and_changes_nothing(rig: Rig) -> None:
    (place,) = await granted(rig, "stale", 1)
    returns, _ = returns_of(rig)
    holder = Recorder()
    stale = place._replace(epoch=place.epoch - 1)
    returns.released(told([stale], holder) + told([stale], holder, is_permanent=True))
    await returns.run_once()
    assert holder.refused == [(place.execution_id, "EPOCH_STALE")] * 2
    assert await states(rig, "stale") == [State.CLAIMED]


async def test_grants_handed_back_wait_again_but_never_anothers(rig: Rig) -> None:
    mine, moved = await granted(rig, "handed", 2)
    returns, wakes = returns_of(rig)
    returns.hand_back([(mine.execution_id, mine.epoch), (moved.execution_id, moved.epoch - 1)])
    await returns.run_once()
    assert sorted(await states(rig, "handed")) == [State.PENDING, State.CLAIMED]
    assert wakes.workspaces == ["handed"]


@pytest.mark.parametrize("lost", ["", "end"])
async def test_leases_of_an_ended_instance_wait_again_under_a_higher_epoch(rig: Rig, lost: str) -> None:
    holder = f"ended-{lost}"
    await rig.limit(holder, 5)
    (place,) = (await rig.enqueue(newcomer(holder), seats=1, holder=holder)).places
    returns, _ = returns_of(rig, lost)
    returns.ended([holder])
    if lost:
        with pytest.raises(DatabaseAway):
            await returns.run_once()
    await returns.run_once()
    ((state, urgent, epoch),) = await rig.rows("state, urgent, epoch", f"workspace = '{holder}'")
    assert (state, urgent) == (State.PENDING, True)
    assert isinstance(epoch, int)
    assert epoch > place.epoch


async def test_every_grant_has_a_higher_epoch(rig: Rig) -> None:
    (place,) = await granted(rig, "again", 1)
    epochs = [place.epoch]
    for _ in range(3):
        await rig.leases.hand_back([(place.execution_id, epochs[-1])])
        (place,) = await rig.claim("again", places=1)
        epochs.append(place.epoch)
    assert epochs == sorted(set(epochs))
