"""The Protocols that the use cases need. store/, rpc/ and peers/ implement them, wiring.py joins them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from services.chassis.identity.named_tokens import NamedTokens
from services.chassis.lease.frames import Lease
from services.coordinator.core.circuits import Circuit, CircuitVisit
from services.coordinator.core.definition import Definition
from services.coordinator.core.effect_keys import EffectKeys
from services.coordinator.core.events import Event
from services.coordinator.core.state import ChildExecution, Execution
from services.coordinator.core.values import Instant, Value


class JournalCodec(Protocol):
    """Translates events to the bytes of the journal."""

    def encode_event(self, event: Event, /) -> bytes: ...

    def seal(self, execution_id: str, first_seq: int, epoch: int, time: Instant, events: Sequence[bytes], /) -> bytes:
        """The row of one append."""
        ...


class Snapshot(NamedTuple):
    """A record of what the journal adds up to, up to an event (`store/snapshots.py`)."""

    last_seq: int
    # Only a coordinator with the same format can read it.
    format: str
    # Together with the records before it, it has all of the state.
    is_whole: bool
    data: bytes


class SnapshotLog(Protocol):
    """The snapshots of one execution that is owned here."""

    def note(self, execution: Execution, events: Iterable[Event], /) -> None:
        """These events were applied."""
        ...

    def due(self, execution: Execution, /) -> Snapshot | None:
        """The record that the append which brings the journal to this state has to bring too, if it is to bring one. It
        is asked for once for each append."""
        ...


class SnapshotDamaged(Exception):
    """The journal has to be folded from its first event, and the snapshots are to be dropped."""


class Append(NamedTuple):
    """The addition of one execution to the journal in one commit, fenced by (epoch, from_seq). It is written whole or
    not at all."""

    execution_id: str
    epoch: int
    # The sequence number before the first new event; 0 starts the journal.
    from_seq: int
    last_seq: int
    # The new row of the journal: all events from `from_seq + 1` to `last_seq`.
    entry: bytes
    # EXECUTION_COLUMNS when from_seq is 0, EXECUTION_REOPENED if is_reopened, EXECUTION_CHANGING otherwise; then the
    # summary (JSON text).
    execution: tuple[Any, ...]
    # New runs that were only leased: RUN_LEASE, then the effect key.
    leased: Sequence[tuple[Any, ...]]
    # Other new runs: RUN_COLUMNS without the run_id, then the effect key.
    made: Sequence[tuple[Any, ...]]
    # Runs that succeeded without anything special: RUN_RESULT.
    ended: Sequence[tuple[Any, ...]]
    # Other changed runs: RUN_CHANGING.
    moved: Sequence[tuple[Any, ...]]
    # New and changed approvals: APPROVAL_COLUMNS.
    approvals: Sequence[tuple[Any, ...]] = ()
    # The execution was reopened, so its deadline may be another one.
    is_reopened: bool = False
    # New and resolved dead letters: DEAD_LETTER_COLUMNS.
    dead_letters: Sequence[tuple[Any, ...]] = ()
    # Few appends bring one.
    snapshot: Snapshot | None = None


class Fence(NamedTuple):
    """The position of the journal that refused an append. Both are 0 if there is no such execution."""

    epoch: int
    last_seq: int


class AppendRejected(Exception):
    """The database will never take this append. That is a bug here, not an outage."""


class JournalDamaged(Exception):
    """At least one of the journals that were asked for cannot be read from the disk."""


class UnknownEvents(Exception):
    """A newer version wrote an event of this journal."""


class Loaded(NamedTuple):
    """A journal, read after its fence was raised. If another holder has the execution, `epoch` is above the one that
    was asked for, and there are no events. `epoch` 0: nothing is journalled."""

    epoch: int
    # The rows after the newest whole record of `snapshots`, or all rows.
    events: Sequence[bytes]
    # The records of the newest snapshot that this version can read, the last of them whole.
    snapshots: Sequence[Snapshot] = ()


class TakenUp(NamedTuple):
    execution: Execution
    # None: the execution has no snapshot yet.
    log: SnapshotLog | None


class Standing(NamedTuple):
    """The progress of an execution, as its row has it."""

    workspace: str
    last_seq: int
    is_final: bool


class RunStanding(NamedTuple):
    """A run, as its row has it."""

    epoch: int
    instance_id: str
    # Its runner is at work on it.
    is_live: bool
    # It ended without a word of its runner.
    is_taken_back: bool


class RunOutput(NamedTuple):
    """The output of a run, as its row has it."""

    workspace: str
    state: str
    # None: the run has none.
    output: Value | None
    # The run rendered for another one, which is given this output.
    is_rendering: bool = False


# Names a run: its execution and its number.
RunName = tuple[str, int]


class RunStandings(Protocol):
    async def __call__(self, names: Collection[RunName], /) -> Mapping[RunName, RunStanding]:
        """Runs that do not exist are left out."""
        ...


# A row maps the names of columns to values in the forms of the core.
Row = Mapping[str, Any]


class StoredEvents(Protocol):
    async def events(
        self, execution_id: str, *, after_seq: int, limit: int
    ) -> Iterable[tuple[str, int, int, Event | object]]:
        """Execution id, sequence number, epoch and event, from the append that holds the event after `after_seq`, of at
        most `limit` appends. An event that this version does not know is another object."""
        ...


class DeadLetterPlace(NamedTuple):
    """The place of a dead letter in the order of lists."""

    time_us: Instant
    execution_id: str
    number: int


class RunPage(NamedTuple):
    rows: Sequence[Row]
    # The page was cut because the outputs are large; there are more rows.
    is_cut: bool


class Journal(Protocol):
    async def append(self, appends: Sequence[Append]) -> Mapping[int, Fence]:
        """Writes all in one commit. Returns the refused ones by their place in `appends`.

        Raises DependencyUnavailable, perhaps after the commit: repeat the call, and the fence tells what happened.
        """
        ...

    async def load(
        self, leases: Sequence[Lease], *, is_patient: bool, drops_snapshots: bool = False
    ) -> Sequence[Loaded]:
        """Raises each fence to the epoch of the lease and reads the journals, in the order of `leases`. A patient load
        has much more time, on a connection of its own. `drops_snapshots` deletes the snapshots that this version reads,
        so that everything is read from the first event, now and by every later holder."""
        ...

    async def live_instances(self, granted_again: float) -> Mapping[str, float]:
        """Seconds since each runner instance was heard, if fewer than `granted_again`; 0 for those that are alive."""
        ...


class Version(NamedTuple):
    """A workflow version, ready to execute."""

    definition: Definition
    effect_keys: EffectKeys
    # They name runs.
    completion_tokens: NamedTokens


class DefinitionRefused(Exception):
    """There is no such version, which is permanent; or this coordinator cannot compile it, and a newer one may."""

    def __init__(self, reason: str, message: str, *, is_permanent: bool) -> None:
        super().__init__(message)
        self.reason = reason
        self.is_permanent = is_permanent


class Definitions(Protocol):
    def cached(self, version_id: str) -> Version | None: ...

    async def get(self, version_id: str) -> Version:
        """Raises DefinitionRefused; or DependencyUnavailable, and then the caller tries again."""
        ...


class Dispatch(Protocol):
    """The leases that this coordinator holds from the dispatchers."""

    def may_start(self) -> bool: ...
    def finished(self, execution_id: str, epoch: int) -> None: ...
    def parked(self, execution_id: str, epoch: int, *, wake_time: Instant, seen: Sequence[str]) -> None:
        """`wake_time` 0: only a message wakes it."""
        ...

    def released(
        self, execution_id: str, epoch: int, reason: str, message: str, *, failed: bool, permanent: bool, begun: bool
    ) -> None:
        """`begun`: the execution has a journal."""
        ...

    def begun(self, execution_id: str, epoch: int) -> None:
        """The execution has a journal, and stays here."""
        ...

    def journalled(self, message_ids: Sequence[str]) -> None: ...


class StartRefused(Exception):
    """There is no such child, and there will be none."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class QueueFull(Exception):
    """Too many executions of the workspace are queued. There may be room later."""


class Children(Protocol):
    async def start(self, execution: Execution, child: ChildExecution, traceparent: str) -> None:
        """The child is durable when this returns; a repetition finds it. Raises StartRefused or QueueFull; or
        DependencyUnavailable, perhaps after the child was queued."""
        ...


class Relatives(Protocol):
    """The mailboxes of parents and children. A message is durable when the call returns. An execution that is over
    takes none, which is no fault. Raises MailboxFull or DependencyUnavailable."""

    async def cancel_child(self, execution: Execution, child_execution_id: str) -> None: ...

    async def tell_parent(self, execution: Execution) -> None:
        """Tells the parent how the execution ended."""
        ...


class Watchers(Protocol):
    """The subscribers that follow executions. They hear of changes only after the commit."""

    def granted(self, execution_id: str, watcher: str) -> None:
        """The execution was granted to this coordinator, and `watcher` waits for its end."""
        ...

    def wants(self, execution_id: str, is_final: bool) -> bool:
        """True if a subscriber wants the events of the execution or, if it is final, its end."""
        ...

    def advanced(self, execution: Execution, from_seq: int, events: Sequence[Event]) -> None:
        """`events` follow `from_seq`. The execution is in the state after the last of them."""
        ...


class CircuitStanding(NamedTuple):
    """A circuit, as far as every coordinator has to know it."""

    workspace: str
    target: str
    # A CircuitState.
    state: str
    generation: int
    # The number of permits that are in force.
    permits: int
    # The time until the target may be probed. It is negative or 0 if that time has passed.
    retry_seconds: float


class CircuitChange(NamedTuple):
    before: Circuit
    after: Circuit
    # The time of the visit, by the clock of the database.
    now: Instant


class CircuitsFull(Exception):
    """The workspace has as many circuits as it may have."""


class CircuitStore(Protocol):
    """The circuits that all coordinators share."""

    async def standings(self) -> Sequence[CircuitStanding]:
        """The circuits of all workspaces."""
        ...

    async def visit(self, visits: Sequence[CircuitVisit]) -> Sequence[CircuitChange]:
        """Each circuit before and after its visit. One that does not exist is made by a visit with failures, and left
        out otherwise."""
        ...

    async def forget_idle(self, idle_seconds: float) -> int: ...


class ShownCircuits(Protocol):
    """The circuits of a workspace, for people."""

    async def page(self, workspace: str, state: str, prefix: str, after: str, limit: int) -> Sequence[Circuit]:
        """The circuits in a state ("": any) whose targets begin with the prefix, in the order of their targets."""
        ...

    async def get(self, workspace: str, target: str) -> Circuit | None: ...

    async def reset(self, workspace: str, target: str) -> Circuit | None:
        """Closes it. None: there is none."""
        ...

    async def open(self, workspace: str, target: str, until: Instant) -> Circuit:
        """Raises CircuitsFull."""
        ...


class MailboxFull(Exception):
    """The mailbox of an execution holds too many unread messages. There may be room later."""
