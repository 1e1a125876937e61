"""The background loops, one round at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY

from services.chassis.grpc.errors import Refusal
from services.chassis.postgres.connection import DatabaseAway
from services.chassis.process.retention import Retention
from services.dispatcher.app.admission_inbox import AdmissionInbox
from services.dispatcher.app.dispatched_marks import DispatchedMarks
from services.dispatcher.app.measures import Measures
from services.dispatcher.app.parent_notices import PAGES_PER_POLL_MAX, ParentNotices
from services.dispatcher.app.poll_loop import PollLoop
from services.dispatcher.app.replica_notices import CHANNEL, ReplicaNotices
from services.dispatcher.app.waking import Waking
from services.dispatcher.core.items import GivenUp, MailboxMessage, Measure, Requeued
from tests.support.manual_clock import ManualClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Store:
    """The housekeeping and the mailbox, in memory. They fail while they are told to."""

    def __init__(self) -> None:
        self.is_away = False
        # The one call that fails.
        self.fails = ""
        self.marked: list[Sequence[tuple[str, int]]] = []
        self.said: list[str] = []
        self.measured: list[Measure] = []
        self.woken: list[Requeued] = []
        self.next_wake: float | None = None
        self.old_requests = 0
        self.sweeps = 0
        self.asked: list[str] = []
        self.dead: list[GivenUp] = []
        self.told: list[str] = []

    def _answer(self, what: str) -> None:
        self.asked.append(what)
        if self.is_away or what == self.fails:
            raise DatabaseAway("away")

    async def mark_dispatched(self, leases: Sequence[tuple[str, int]]) -> None:
        self._answer("marks")
        self.marked.append(leases)

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        self._answer("notify")
        assert channel == CHANNEL
        self.said += payloads

    async def measure(self) -> list[Measure]:
        self._answer("measure")
        return self.measured

    async def wake(self) -> tuple[list[Requeued], float | None]:
        self._answer("wake")
        return self.woken, self.next_wake

    async def forget_requests(self) -> int:
        self._answer("forget")
        forgotten, self.old_requests = min(self.old_requests, 5_000), max(0, self.old_requests - 5_000)
        return forgotten

    async def sweep(self) -> int:
        self.sweeps += 1
        return 0

    async def workspaces_with_work(self) -> tuple[list[str], bool]:
        self._answer("poll")
        return ["a"], True

    async def lost_grants(self) -> dict[str, list[tuple[str, int]]]:
        self._answer("lost_grants")
        return {"h1": [("e1", 1)], "h2": [("e2", 2)]}

    async def holders_gone(self) -> list[str]:
        self._answer("unheld")
        return ["gone"]

    async def untold(self, after: str) -> list[GivenUp]:
        self._answer("untold")
        return [each for each in self.dead if each.execution_id > after and each.execution_id not in self.told][:2]

    async def note_told(self, execution_ids: Sequence[str]) -> None:
        self._answer("told")
        self.told += execution_ids

    async def tell_parents(self) -> None:
        self._answer("parents")

    async def unread(self) -> dict[str, list[bytes]]:
        self._answer("unread")
        return {"h1": [b"m1", b"m2"]}


async def test_marks_are_written_a_pause_later_and_never_for_what_is_over() -> None:
    store = Store()
    marks = DispatchedMarks(housekeeping=store, clock=ManualClock(NOW))
    marks.taken([("short", 1), ("long", 2)])
    await marks.run_once()
    assert not store.marked
    marks.over(["short"])
    await marks.run_once()
    assert store.marked == [[("long", 2)]]


async def test_marks_wait_while_the_database_is_away() -> None:
    store = Store()
    marks = DispatchedMarks(housekeeping=store, clock=ManualClock(NOW))
    marks.taken([("e", 1)])
    await marks.run_once()
    store.is_away = True
    await marks.run_once()
    store.is_away = False
    await marks.run_once()
    assert store.marked == [[("e", 1)]]


async def test_notice_of_other_replicas_is_heard_and_our_own_is_not() -> None:
    store, heard = Store(), list[str]()
    replica_notices = ReplicaNotices(housekeeping=store, replica="me", heard=heard.append, clock=ManualClock(NOW))
    replica_notices.waits_in("a workspace")
    replica_notices.waits_in("a workspace")
    await replica_notices.run_once()
    assert store.said == ["me a workspace"]
    for payload in (*store.said, "other a workspace", ""):
        replica_notices.on_notice(CHANNEL, payload)
    assert heard == ["a workspace"]


async def test_gauges_go_with_the_work() -> None:
    store = Store()
    store.measured = [Measure("busy-gauge", 3, 2, 1.5, 0.5)]
    loop = Measures(housekeeping=store, clock=ManualClock(NOW))
    await loop.run_once()
    labels = {"workspace": "busy-gauge"}
    assert REGISTRY.get_sample_value("dispatcher_queue_depth", labels) == 3
    store.measured = []
    await loop.run_once()
    assert REGISTRY.get_sample_value("dispatcher_queue_depth", labels) is None


async def test_retention_goes_in_pieces_until_nothing_is_old() -> None:
    store = Store()
    store.old_requests = 12_000
    await Retention(store.sweep, store.forget_requests, clock=ManualClock(NOW)).run_once()
    assert store.old_requests == 0
    assert (store.asked.count("forget"), store.sweeps) == (4, 1)


async def test_waking_wakes_the_admission_loop_and_sleeps_until_the_next_time() -> None:
    store, clock = Store(), ManualClock(NOW)
    inbox = AdmissionInbox(clock)
    store.woken = [Requeued("e1", "a", False), Requeued("e2", "b", True)]
    store.next_wake = 1.0
    waking = Waking(housekeeping=store, inbox=inbox, clock=clock, poll_seconds=2.0)
    await waking.run_once()
    assert inbox.queues.take(9) == ["a"]
    assert inbox.is_ending_ready
    assert 1.0 < waking.pause_seconds < 1.1
    waking.wake_at(NOW + timedelta(seconds=0.5))
    assert waking.pause_seconds < 0.6
    waking.wake_at(NOW + timedelta(seconds=1.5))
    assert waking.pause_seconds < 0.6
    store.next_wake = None
    await waking.run_once()
    assert waking.pause_seconds == 2.0


def dead_letters(*ids: str) -> list[GivenUp]:
    return [GivenUp(id, b"", "DEFINITION_CORRUPT", "", 7) for id in ids]


async def test_parents_of_dead_letters_are_told_once_and_a_full_mailbox_holds_up_no_other() -> None:
    store, delivered = Store(), list[str]()
    store.dead = dead_letters("1-full", "2-full", "3-orphan", "4-child", "5-child")
    full = {"1-full", "2-full"}

    def message_of(given_up: GivenUp) -> MailboxMessage | None:
        id = given_up.execution_id
        return None if id == "3-orphan" else MailboxMessage(f"child:{id}", id, "w", b"", is_ending=False)

    async def deliver(message: MailboxMessage) -> bool:
        if message.execution_id in full:
            raise Refusal("MAILBOX_FULL", "full")
        delivered.append(message.execution_id)
        return message.execution_id != "5-child"

    notices = ParentNotices(housekeeping=store, deliver=deliver, message_of=message_of)
    await notices.run_once()
    assert (delivered, store.told) == (["4-child", "5-child"], ["3-orphan", "4-child", "5-child"])
    full.clear()
    await notices.run_once()
    assert sorted(store.told) == [each.execution_id for each in store.dead]


async def test_poll_looks_at_some_dead_letters_and_the_next_goes_on_behind_them() -> None:
    store = Store()
    store.dead = dead_letters(*(f"a{n:02}" for n in range(2 * PAGES_PER_POLL_MAX + 1)))
    notices = ParentNotices(housekeeping=store, deliver=store_nothing, message_of=lambda _: None)
    await notices.run_once()
    assert len(store.told) == 2 * PAGES_PER_POLL_MAX
    await notices.run_once()
    assert len(store.told) == len(store.dead)


async def store_nothing(message: MailboxMessage) -> bool:
    raise AssertionError("nobody is told")


class RoundsTold:
    def __init__(self) -> None:
        self.polled: list[tuple[Sequence[str], bool]] = []
        self.ended: list[Sequence[str]] = []
        self.asked: dict[str, Sequence[tuple[str, int]]] = {}
        self.posted: dict[str, Sequence[bytes]] = {}


def rounds_of(store: Store) -> tuple[PollLoop, RoundsTold]:
    told = RoundsTold()
    rounds = PollLoop(
        housekeeping=store,
        mailbox=store,
        polled=lambda workspaces, has_ending: told.polled.append((workspaces, has_ending)),
        ended=told.ended.append,
        ask_holder=told.asked.__setitem__,
        post=told.posted.__setitem__,
        tell_parents=store.tell_parents,
        clock=ManualClock(NOW),
        every_seconds=2.0,
    )
    return rounds, told


async def test_round_looks_for_work_leases_grants_and_messages() -> None:
    rounds, told = rounds_of(Store())
    await rounds.run_once()
    assert told.polled == [(["a"], True)]
    assert told.ended == [["gone"]]
    assert told.asked == {"h1": [("e1", 1)], "h2": [("e2", 2)]}
    assert told.posted == {"h1": [b"m1", b"m2"]}


async def test_lost_grants_are_looked_for_four_times_as_often() -> None:
    store = Store()
    rounds, _ = rounds_of(store)
    for _ in range(8):
        await rounds.run_once()
    assert [store.asked.count(what) for what in ("lost_grants", "poll", "parents")] == [8, 2, 2]


@pytest.mark.parametrize("failing", ["lost_grants", "unread", "poll", "unheld"])
async def test_step_of_a_round_that_fails_holds_up_no_other(failing: str) -> None:
    store = Store()
    rounds, told = rounds_of(store)
    store.fails = failing
    await rounds.run_once()
    done = {"lost_grants": told.asked, "unread": told.posted, "poll": told.polled, "unheld": told.ended}
    assert [name for name, what in done.items() if not what] == [failing]


async def test_round_says_once_that_the_database_is_away_and_goes_on_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        "services.dispatcher.app.poll_loop.log", SimpleNamespace(info=lambda text, **_: lines.append(text))
    )
    store = Store()
    rounds, told = rounds_of(store)
    store.is_away = True
    await rounds.run_once()
    assert store.asked == ["lost_grants", "unread", "poll", "unheld", "parents"]
    assert lines == ["a round waits for the database"]
    store.is_away = False
    for _ in range(4):
        await rounds.run_once()
    assert told.polled
