"""When executions are looked at again."""

from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.timers import Timers
from services.coordinator.peers.orders import start_command
from tests.support.manual_clock import ManualClock
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant


def timers() -> tuple[ManualClock, Timers, list[OwnedExecution]]:
    clock, due = ManualClock(), list[OwnedExecution]()
    return clock, Timers(clock, due.extend), due


def owned(name: str = "e") -> OwnedExecution:
    return OwnedExecution(name, 1, start_command(ExecutionGrant(), "c1"), None, 0)


def now(clock: ManualClock) -> int:
    return clock.epoch_ns() // 1_000


def test_nothing_fires_early_and_nothing_twice() -> None:
    clock, all_, due = timers()
    mine = owned()
    all_.set(mine, now(clock) + 1_000_000)
    clock.advance(0.999)
    all_.run_once()
    assert due == []
    clock.advance(0.001)
    all_.run_once()
    all_.run_once()
    assert due == [mine]
    assert mine.wake == 0


def test_only_the_last_wish_counts() -> None:
    clock, all_, due = timers()
    mine, other = owned("a"), owned("b")
    all_.set(mine, now(clock) + 1_000_000)
    all_.set(mine, now(clock) + 5_000_000)
    all_.set(other, now(clock) + 1_000_000)
    all_.set(other, 0)
    clock.advance(2)
    all_.run_once()
    assert due == []
    clock.advance(3)
    all_.run_once()
    assert due == [mine]


def test_a_dropped_execution_is_left_alone() -> None:
    clock, all_, due = timers()
    mine = owned()
    all_.set(mine, now(clock) + 1)
    mine.is_dropped = True
    clock.advance(1)
    all_.run_once()
    assert due == []


def test_deadlines_of_what_has_gone_do_not_pile_up() -> None:
    clock, all_, _ = timers()
    for number in range(10_050):
        mine = owned(str(number))
        all_.set(mine, now(clock) + 3_600_000_000)
        mine.wake = 0
    kept = owned("kept")
    all_.set(kept, now(clock) + 1)
    all_.trim([kept], 1)
    assert len(all_) == 1
