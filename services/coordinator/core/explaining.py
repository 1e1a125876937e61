"""Says what an execution waits for, and where its time went. Both are read off the state; nothing here changes it.

`Stopwatch` follows a journal event by event. The time between two events belongs to one cause, which the state before
the second event decides: the first line of this table that holds.

    the execution is final      nothing: this time is not counted
    it is paused                PAUSED
    a runner has some work      RUNNING; LEASE_IN_DOUBT, if the second event says that the runner has gone away with it
    work is ready               WAITING_FOR_RUNNER
    work awaits an attempt      BACKOFF
    a circuit holds work back   CIRCUIT_OPEN
    some work waits             that of the oldest wait (`CAUSES`)
    otherwise                   ENGINE

A wait or a backoff that was over before the second event has kept nobody waiting since: that time is ENGINE too. The
time before the first event is that of the queue, and so is the time before an event of adoption since the execution was
woken. So all parts together are the whole time of the execution.

`blockers` names everything that the execution waits for now, and `kept_signals` the signals that wait for a node.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from services.coordinator.core import events as ev
from services.coordinator.core.state import Execution, Run, TimerKind, Wait, Work
from services.coordinator.core.values import Instant, WorkKey


class Cause(StrEnum):
    QUEUED_FOR_SLOT = "QUEUED_FOR_SLOT"
    QUEUED_FOR_COORDINATOR = "QUEUED_FOR_COORDINATOR"
    WAITING_FOR_RUNNER = "WAITING_FOR_RUNNER"
    RUNNING = "RUNNING"
    BACKOFF = "BACKOFF"
    SLEEPING = "SLEEPING"
    WAITING_FOR_SIGNAL = "WAITING_FOR_SIGNAL"
    WAITING_FOR_APPROVAL = "WAITING_FOR_APPROVAL"
    WAITING_FOR_CHILD = "WAITING_FOR_CHILD"
    WAITING_FOR_COMPLETION = "WAITING_FOR_COMPLETION"
    WAITING_FOR_RESOLUTION = "WAITING_FOR_RESOLUTION"
    CIRCUIT_OPEN = "CIRCUIT_OPEN"
    PAUSED = "PAUSED"
    LEASE_IN_DOUBT = "LEASE_IN_DOUBT"
    ENGINE = "ENGINE"


CAUSES: Mapping[ev.WaitKind, Cause] = {
    ev.WaitKind.TIMER: Cause.SLEEPING,
    ev.WaitKind.SIGNAL: Cause.WAITING_FOR_SIGNAL,
    ev.WaitKind.APPROVAL: Cause.WAITING_FOR_APPROVAL,
    ev.WaitKind.CHILD: Cause.WAITING_FOR_CHILD,
    ev.WaitKind.OUTSIDE: Cause.WAITING_FOR_COMPLETION,
    ev.WaitKind.PERSON: Cause.WAITING_FOR_RESOLUTION,
}
assert CAUSES.keys() == set(ev.WaitKind), "a kind of wait has no cause"
# Events about work that goes on as before: it waits, or is done, since the same time.
_UNCHANGED = (ev.ApprovalRequested, ev.ApprovalDecided, ev.RunProgressed, ev.LateReportRejected, ev.ChildEvent)


class Blocker(NamedTuple):
    """One thing that the execution waits for."""

    cause: Cause
    # None: the execution as a whole.
    work: Work | None
    since: Instant
    # 0: no time ends it.
    until: Instant = 0
    # The run that it is about.
    run: Run | None = None
    # Set if it is a wait.
    wait: Wait | None = None
    # The target whose circuit is open. Empty: it is something else.
    target: str = ""
    # When the retry budget of work behind a circuit is over. 0: never.
    give_up: Instant = 0


class KeptSignals(NamedTuple):
    """Signals of one name that no node has taken."""

    signal: str
    number: int
    # When the oldest of them came.
    since: Instant


class Stopwatch:
    """`before` is called with each event and the state before it."""

    def __init__(self) -> None:
        self.spent: Counter[Cause] = Counter()
        # When the state of each piece of work changed last.
        self.since: dict[WorkKey, Instant] = {}
        # When each signal came that is kept, by the sequence number of its event.
        self.came: dict[int, Instant] = {}
        self._time: Instant = 0

    def before(self, execution: Execution, event: ev.Event) -> None:
        if isinstance(event, ev.ExecutionStarted):
            self._queued(event.origin.create_time, event.grant_time, event.time)
        elif isinstance(event, ev.ExecutionAdopted) and event.wake_time:
            # The clocks of the database and of the holders may differ.
            woken = min(max(event.wake_time, self._time), event.time)
            self.reach(execution, woken)
            self._queued(woken, event.grant_time, event.time)
        else:
            self.reach(execution, event.time, is_lost=isinstance(event, ev.RunLost))
        for key in _keys_of(event):
            self.since[key] = event.time
        if isinstance(event, ev.SignalReceived):
            self.came[execution.seq + 1] = event.time
        elif isinstance(event, ev.SignalTaken):
            del self.came[event.number]

    def reach(self, execution: Execution, now: Instant, *, is_lost: bool = False) -> None:
        """The state has lasted until now."""
        took = now - self._time
        # The clocks of two holders may differ.
        if took <= 0 or execution.is_final:
            self._time = max(self._time, now)
            return
        cause, end = _cause_of(execution, is_lost=is_lost)
        over = min(took, max(0, now - end)) if end else 0
        self.spent[cause] += took - over
        if over:
            self.spent[Cause.ENGINE] += over
        self._time = now

    def _queued(self, since: Instant, grant_time: Instant, until: Instant) -> None:
        granted = min(max(since, grant_time), until)
        self.spent[Cause.QUEUED_FOR_SLOT] += max(0, granted - since)
        self.spent[Cause.QUEUED_FOR_COORDINATOR] += until - granted
        self._time = max(self._time, until)


def blockers(execution: Execution, since: Mapping[WorkKey, Instant], live: Container[str]) -> Iterator[Blocker]:
    """`live` are the runner instances that are heard."""
    if execution.is_final:
        return
    if execution.paused_by is not None:
        yield Blocker(Cause.PAUSED, None, execution.paused_by.time)
    for run in execution.live.values():
        begun = run.start_time or run.create_time
        if run.instance_id in live:
            # The coordinator ends the run then, if its runner does not.
            backstop = _due_of(execution, TimerKind.BACKSTOP, run.timer)
            yield Blocker(Cause.RUNNING, run.work, begun, backstop, run)
        else:
            yield Blocker(Cause.LEASE_IN_DOUBT, run.work, run.heartbeat_time or begun, 0, run)
    for work in execution.ready:
        yield Blocker(Cause.WAITING_FOR_RUNNER, work, since.get(work.key, execution.start_time))
    for work in execution.backoffs.values():
        yield Blocker(Cause.BACKOFF, work, since.get(work.key, 0), _due(work), work.run)
    for hold in execution.held_back.values():
        give_up = _due_of(execution, TimerKind.GIVE_UP, hold.timer)
        yield Blocker(
            Cause.CIRCUIT_OPEN, hold.work, hold.since, hold.until, hold.work.run, target=hold.target, give_up=give_up
        )
    for wait in execution.waits.values():
        began = since.get(wait.work.key, execution.start_time)
        due = wait.due if wait.child is None else wait.child.deadline
        yield Blocker(CAUSES[wait.kind], wait.work, began, due, wait.work.run, wait)


def behind_circuit(blocker: Blocker, probe_time: Instant, now: Instant) -> Blocker:
    """Work behind a circuit waits until the target is probed, but not longer than its retry budget. The journal only
    knows when the work looks at the circuit again, which it does every few minutes. `probe_time`: 0 unless the circuit
    is open."""
    probed = next((time for time in (probe_time, blocker.until) if time > now), 0)
    return blocker._replace(until=min((time for time in (probed, blocker.give_up) if time > now), default=0))


def kept_signals(execution: Execution, came: Mapping[int, Instant]) -> Iterator[KeptSignals]:
    """`came` says when each signal came. The name whose oldest signal came first is the first."""
    # Signals are kept in the order in which they came.
    numbers: dict[str, list[int]] = {}
    for number, kept in execution.signals.items():
        numbers.setdefault(kept.signal, []).append(number)
    for signal, of_name in numbers.items():
        yield KeptSignals(signal, len(of_name), came[of_name[0]])


def _cause_of(execution: Execution, *, is_lost: bool) -> tuple[Cause, Instant]:
    """The cause, and when it was due to end. 0: no time ends it."""
    if execution.paused_by is not None:
        return Cause.PAUSED, 0
    if execution.live:
        return (Cause.LEASE_IN_DOUBT if is_lost and len(execution.live) == 1 else Cause.RUNNING), 0
    if execution.ready:
        return Cause.WAITING_FOR_RUNNER, 0
    if execution.backoffs:
        return Cause.BACKOFF, min(map(_due, execution.backoffs.values()))
    if execution.held_back:
        return Cause.CIRCUIT_OPEN, 0
    if execution.waits:
        wait: Wait = next(iter(execution.waits.values()))
        return CAUSES[wait.kind], wait.due
    return Cause.ENGINE, 0


def _due(work: Work) -> Instant:
    """When the next attempt is due."""
    return 0 if work.run is None else work.run.retry_time


def _due_of(execution: Execution, kind: TimerKind, order: int) -> Instant:
    """0: there is no such timer."""
    return next((timer.due for timer in execution.timers if timer.kind is kind and timer.order == order), 0)


def _keys_of(event: ev.Event) -> Iterator[WorkKey]:
    """The work whose state the event changes."""
    key = getattr(event, "key", None)
    if key is not None and not isinstance(event, _UNCHANGED):
        yield key
    then = getattr(event, "then", None)
    if then is not None:
        yield from then.ready
