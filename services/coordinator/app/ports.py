"""What the use cases need from the world: store/, rpc/ and peers/ implement it, wiring.py joins them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from services.chassis.lease.frames import Attach, Grant, Lease, Refused, RefusedReport
from services.coordinator.app.effect_keys import EffectKeys
from services.coordinator.app.received import ReceivedReport
from services.coordinator.core.definition import Definition
from services.coordinator.core.effects import GrantRun
from services.coordinator.core.events import Event
from services.coordinator.core.state import Execution
from services.coordinator.core.values import Instant

if TYPE_CHECKING:
    from services.coordinator.app.owned_execution import OwnedExecution


class JournalCodec(Protocol):
    """Events as the journal keeps them."""

    def encode_event(self, event: Event, /) -> bytes: ...

    def seal(
        self, execution_id: str, first_seq: int, epoch: int, time: Instant, events: Sequence[bytes], /
    ) -> bytes:
        """The row of one append."""
        ...


class Append(NamedTuple):
    """All that one execution adds in one flush: fenced by (epoch, from_seq), written whole or not at all."""

    execution_id: str
    epoch: int
    # The sequence number before the first new event; 0 starts the journal.
    from_seq: int
    last_seq: int
    # The new row of the journal: all events from `from_seq + 1` to `last_seq`.
    entry: bytes
    # EXECUTION_COLUMNS when from_seq is 0, EXECUTION_CHANGING otherwise; the summary (JSON text) behind.
    execution: tuple[Any, ...]
    # RUN_LEASE, the effect key behind: runs that were granted and no more.
    leased: Sequence[tuple[Any, ...]]
    # RUN_COLUMNS without the run_id, the effect key behind: other new runs.
    made: Sequence[tuple[Any, ...]]
    # RUN_RESULT: runs that ended plainly.
    ended: Sequence[tuple[Any, ...]]
    # execution_id, number, then RUN_CHANGING without the run_id: other changes.
    moved: Sequence[tuple[Any, ...]]


class Fence(NamedTuple):
    """Why an append was refused: where the journal really stands. Both 0: no such execution."""

    epoch: int
    last_seq: int


class AppendRejected(Exception):
    """The database will not take this append, now or ever: a fault of ours, to be told apart from an outage."""


class JournalDamaged(Exception):
    """What is stored of one of them cannot be read from the disk; of the others nothing is known."""


class Loaded(NamedTuple):
    """A journal as read under our raised fence. `epoch` above the one asked for: another holds it, no events."""

    epoch: int
    events: Sequence[bytes]


class Mark(NamedTuple):
    """How far an execution's row is."""

    last_seq: int
    is_final: bool


class Standing(NamedTuple):
    """What an execution's row says."""

    workspace: str
    is_final: bool


class Journal(Protocol):
    async def append(self, appends: Sequence[Append]) -> Mapping[int, Fence]:
        """Write them all in one commit; those refused, by their place in `appends`.

        Raises DatabaseAway (CommitUnknown among it): repeat, the fence tells what had happened.
        """
        ...

    async def load(self, leases: Sequence[Lease]) -> Sequence[Loaded]:
        """Raise each fence to the lease's epoch and read what is journalled, in the order asked for."""
        ...

    async def load_hard(self, leases: Sequence[Lease]) -> Sequence[Loaded]:
        """The same with much more time, and holding up no `load`."""
        ...

    async def live_instances(self, granted_again: float) -> Mapping[str, float]:
        """Runner instances that are alive (0) or were heard less than `granted_again` seconds ago (how long ago)."""
        ...


class Version(NamedTuple):
    """A workflow version, ready to execute."""

    definition: Definition
    effect_keys: EffectKeys


class DefinitionRefused(Exception):
    """There is no such version, which no other try mends; or it is none that this coordinator can compile, and a newer
    one may know more."""

    def __init__(self, reason: str, message: str, *, is_permanent: bool) -> None:
        super().__init__(message)
        self.reason = reason
        self.is_permanent = is_permanent


class Definitions(Protocol):
    def cached(self, version_id: str) -> Version | None: ...

    async def get(self, version_id: str) -> Version:
        """Raises DefinitionRefused, or DependencyUnavailable: then it is to be asked for again."""
        ...


class RunnerRights(Protocol):
    """What a runner's key lets it have, and what it says of itself."""

    def serves(self, workspace: str) -> bool: ...
    def is_idempotent(self, module: str) -> bool: ...


class RunnerSession(Protocol):
    """One runner's stream to this coordinator."""

    @property
    def data(self) -> RunnerRights: ...
    @property
    def instance_id(self) -> str: ...
    @property
    def attach(self) -> Attach: ...
    def take_credit(self, wanted: int) -> int: ...
    def give_back(self, count: int) -> None: ...
    def grant(self, grants: Sequence[Grant]) -> bool: ...
    def acknowledge(self, report_ids: Sequence[str]) -> None: ...
    def refuse_reports(self, refused: Sequence[RefusedReport]) -> None: ...
    def revoke(self, revoked: Iterable[Refused]) -> None: ...
    def claim(self, leases: Iterable[Lease]) -> None: ...


class Requirement(NamedTuple):
    """What a runner must have to be given a run."""

    workspace: str
    module: str
    labels: tuple[tuple[str, str], ...]


class Runners(Protocol):
    def with_credit_for(self, requirement: Requirement) -> list[RunnerSession]:
        """Most credit first."""
        ...

    def of_instance(self, instance_id: str) -> RunnerSession | None: ...

    def set_demand(self, waiting: int) -> None: ...


class RunGrants(Protocol):
    def run_grant(self, execution: Execution, effect: GrantRun, key: str, now: Instant) -> Grant:
        """The grant that hands the run to its runner; `key` is the effect key of its work."""
        ...


class Dispatch(Protocol):
    """The leases that this coordinator holds from the dispatchers."""

    def may_start(self) -> bool: ...
    def finished(self, execution_id: str, epoch: int) -> None: ...
    def parked(self, execution_id: str, epoch: int, *, wake_time: Instant, seen: Sequence[str]) -> None:
        """`wake_time` 0: only a message wakes it."""
        ...

    def released(
        self,
        execution_id: str,
        epoch: int,
        *,
        failed: bool = False,
        permanent: bool = False,
        reason: str = "",
        message: str = "",
    ) -> None: ...
    def journalled(self, message_ids: Sequence[str]) -> None: ...


class Watchers(Protocol):
    """Who follows executions. Told after the commit only."""

    def granted(self, execution_id: str, watcher: str) -> None:
        """The execution was granted to this coordinator, and `watcher` waits for its end."""
        ...

    def wants(self, execution_id: str, is_final: bool) -> bool:
        """Whether anybody is to be told of an execution's progress, or of its end."""
        ...

    def advanced(self, execution: Execution, from_seq: int, events: Sequence[Event]) -> None:
        """`events` follow `from_seq`; the execution is in the state after the last of them."""
        ...


class MailboxFull(Exception):
    """The mailbox of an execution holds too many messages that nobody has read yet. Later there may be room."""


class MisroutedReports(Protocol):
    """Reports of runs whose execution is not owned here: to its mailbox, then acknowledged."""

    def add(self, session: RunnerSession, report: ReceivedReport) -> None: ...


class ExecutionLoader(Protocol):
    """Executions that need their definition, or their journal, before anything can be decided."""

    def add(self, owned: OwnedExecution) -> None: ...
