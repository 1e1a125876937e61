"""The Protocols that the use cases and servicers need, and the records that cross them.

Use cases read no protobuf. A message that they only pass on from `peers/` to `rpc/`, or back, has the type Any here.

Hazard: a record holds no key and no secret, except `VersionRecord.effect_secret`, which goes to coordinators.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.identity.callers import Identity

# A peer answers with at most this number of rows.
PAGE_SIZE_MAX: Final = 1_000
# Rows of the queue that are asked for at once. A row has an input of up to 256 KiB and 80 KiB of unread commands, and
# an answer has at most 64 MiB.
QUEUE_ROWS_MAX: Final = 150
FINAL: Final = frozenset({"SUCCESS", "FAILED", "CANCELLED", "TIMEOUT"})
RUN_GOING: Final = frozenset({"PENDING", "LEASED", "RUNNING"})


class KeyRecord(NamedTuple):
    key_id: str
    role: str
    # "": none, or every workspace for the key of a runner.
    workspace: str
    title: str
    create_time: datetime
    expire_time: datetime | None
    revoke_time: datetime | None
    is_workspace_closed: bool


class NewKey(NamedTuple):
    key_id: uuid.UUID
    key_hash: bytes
    role: str
    workspace: str
    title: str
    expire_time: datetime | None


class KeyIdTaken(Exception):
    """Another key has this id: the same request came before, with other content."""


class WorkspaceRecord(NamedTuple):
    workspace: str
    tier: int
    executions_max: int
    queued_max: int
    revision: int
    create_time: datetime
    update_time: datetime
    close_time: datetime | None


class NewVersion(NamedTuple):
    """A definition as it is stored. It makes a version only if `definition` differs from the newest one's."""

    version_id: str
    # Canonical JSON.
    definition: bytes
    # JSON: the nodes that the templates of each node read; null: all nodes before it.
    template_references: bytes
    # The text of the author, and its format: JSON or YAML.
    source: str
    source_format: str


class WorkflowRecord(NamedTuple):
    workflow: str
    version: int
    definition: bytes
    revision: int
    create_time: datetime
    # The time at which this version was applied.
    update_time: datetime
    archive_time: datetime | None
    # Lists leave both out.
    source: str | None = None
    source_format: str | None = None


class WorkflowPage(NamedTuple):
    rows: Sequence[WorkflowRecord]
    # More rows exist. They were left out because the definitions are large.
    is_cut: bool


class Applied(NamedTuple):
    # A number of ApplyWorkflowResponse.Change.
    change: int
    workflow: WorkflowRecord


class StartableRecord(NamedTuple):
    """The data of a version and its workspace that a start needs."""

    version_id: str
    version: int
    definition: bytes
    is_archived: bool
    tier: int
    executions_max: int
    queued_max: int
    workspace_revision: int


class VersionRecord(NamedTuple):
    workspace: str
    workflow: str
    version: int
    definition: bytes
    template_references: bytes
    effect_secret: bytes


class ExecutionView(NamedTuple):
    """An execution, as far as use cases read it. `rpc/translate.py` shows all of it."""

    id: str
    workspace: str
    # The name of the public state; "" if it is unknown here.
    state: str
    # The sequence number of its last event.
    last_seq: int
    # The coordinator's ExecutionRecord. None: no coordinator has it.
    record: Any = None
    # The row of the queue, if no coordinator has the execution, or dispatchers have given it up.
    row: Any = None

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def is_imported(self) -> bool:
        """It is a copy, which nothing changes."""
        return self.record is not None and bool(self.record.execution.imported_execution_id)

    @property
    def is_given_up(self) -> bool:
        """The row has its end."""
        return self.row is not None and self.state == "FAILED"


class ImportedTo(NamedTuple):
    """The place where an import goes. The fields are those of the coordinator's ImportPartsRequest."""

    workspace: str
    # The id of the copy, if this is no repeat.
    execution_id: str
    request_id: str
    # JSON: what the templates of the definition read.
    template_references: bytes


class EventView(NamedTuple):
    """An event of an execution. `rpc/translate.py` shows all of it."""

    seq: int
    # It made the execution final.
    is_last: bool
    # The coordinator's EventRecord; or the ExecutionView, if this is the end of one that was given up.
    record: Any
    # Set when it is the answer to a command: the id of the command; and the reason and the message, if the command was
    # refused.
    message_id: str = ""
    refusal_reason: str = ""
    refusal_message: str = ""


class ApprovalView(NamedTuple):
    """An approval, as far as use cases read it. `rpc/translate.py` shows all of it."""

    # The id of its run is its own.
    id: str
    workspace: str
    # The name of the public state.
    state: str
    # A JSON Schema.
    form: bytes
    # The callers that have decided, each with its choice.
    decisions: Sequence[tuple[str, str]]
    # The coordinator's ApprovalRecord.
    record: Any


class RunView(NamedTuple):
    """A run, as far as use cases read it."""

    id: str
    workspace: str
    state: str
    # JSON; empty without an inline output.
    output: bytes
    error_type: str
    error_message: str

    @property
    def execution_id(self) -> str:
        return self.id.partition(".")[0]

    @property
    def number(self) -> int:
        return int(self.id.partition(".")[2])

    @property
    def is_over(self) -> bool:
        return self.state not in RUN_GOING


class EarlierStart(NamedTuple):
    """The start that used a request_id."""

    request_hash: bytes
    execution_id: str


class Filter(Protocol):
    """The executions that a list shows."""

    @property
    def conditions(self) -> Sequence[Any]:
        """The Conditions, for coordinators."""
        ...

    def matches(self, execution: ExecutionView) -> bool: ...

    def may_match(self, row: ExecutionView) -> bool:
        """True when the execution of a row of the queue may match. Its coordinator is not asked. A row that was given
        up does not say when the execution started."""
        ...


class ExecutionQuery(NamedTuple):
    """One page of a list of executions."""

    workspace: str
    filter: Filter
    # "" = from the beginning; otherwise behind this one.
    from_id: str
    ascending: bool
    limit: int


class ExecutionPage(NamedTuple):
    executions: Sequence[ExecutionView]
    # There are fewer than asked for because they are large, and there are more behind the last one.
    is_cut: bool = False


class Audit(Protocol):
    async def add(self, actor: Identity, action: str, subject: str, details: Mapping[str, Any]) -> None:
        """Put on record what somebody asks of another service. What is changed here is recorded with the change."""
        ...


class ApiKeys(Protocol):
    async def find(self, key_hash: bytes) -> KeyRecord | None: ...

    async def add(self, actor: Identity, key: NewKey) -> KeyRecord | None:
        """Adding the same key again succeeds. None: there is no such open workspace. Raises KeyIdTaken when another
        key has the id."""
        ...

    async def page(self, workspace: str, after: str, limit: int) -> Sequence[KeyRecord]: ...

    async def revoke(self, actor: Identity, key_id: str) -> KeyRecord | None:
        """None: the actor's workspace has no such key. The system key may revoke any key."""
        ...


class Workspaces(Protocol):
    async def get(self, workspace: str) -> WorkspaceRecord | None:
        """Finds closed workspaces too."""
        ...

    async def page(self, after: str, limit: int) -> Sequence[WorkspaceRecord]: ...

    async def add(self, actor: Identity, workspace: str, values: Mapping[str, int]) -> WorkspaceRecord | None:
        """`values` are the tier and the limits. None: the name is taken."""
        ...

    async def change(
        self, actor: Identity, workspace: str, revision: int, values: Mapping[str, int]
    ) -> WorkspaceRecord | None:
        """Set `values` if the revision is still this one (0: any). None: it has another, or it is closed."""
        ...

    async def close(self, actor: Identity, workspace: str) -> bool: ...

    async def unconfirmed(self) -> Sequence[WorkspaceRecord]:
        """Return the workspaces whose newest revision the dispatchers have not confirmed."""
        ...

    async def confirm(self, workspace: str, revision: int) -> None: ...


class Workflows(Protocol):
    async def apply(self, actor: Identity, workflow: str, new: NewVersion, etag: str) -> Applied | Refusal: ...

    async def get(self, workspace: str, workflow: str, version: int) -> WorkflowRecord | None: ...

    async def page(self, workspace: str, after: str, limit: int, *, with_archived: bool) -> WorkflowPage: ...

    async def versions(self, workspace: str, workflow: str, before: int, limit: int) -> WorkflowPage: ...

    async def set_archived(self, actor: Identity, workflow: str, *, is_archived: bool) -> WorkflowRecord | None: ...

    async def startable(self, workspace: str, workflow: str, version: int) -> StartableRecord | None: ...

    async def version(self, version_id: str) -> VersionRecord | None: ...

    async def startable_names(self, workspace: str, workflows: Collection[str]) -> Collection[str]:
        """The names of those workflows that are there and not archived."""
        ...


class Enqueuer(Protocol):
    def enqueue(self, item: Any, seconds: float) -> Awaitable[str | Refusal | DependencyUnavailable]:
        """Send the EnqueueItem at once. The answer comes after its commit: the id of the execution, which is an earlier
        one if the request_id was used before, or why nothing was started."""
        ...


class ExecutionQueue(Protocol):
    """Any dispatcher. Its rows are PENDING, or FAILED when they were given up."""

    async def queued(self, execution_ids: Sequence[str]) -> Sequence[ExecutionView]: ...

    async def page(self, workspace: str, from_id: str, limit: int, *, ascending: bool) -> Sequence[ExecutionView]: ...

    async def requests(self, workspace: str, request_ids: Sequence[str]) -> Mapping[str, EarlierStart]:
        """The starts that used these request ids. Unused ones are left out."""
        ...

    async def cancel(
        self, workspace: str, execution: ExecutionView, message_id: str, reason: str, caller: str, epoch_ns: int
    ) -> bool:
        """Put a cancel into the mailbox of the execution, which was seen like this; one with the same message id is a
        repeat. False: there is no such execution, or it has ended."""
        ...


class DeadLetterView(NamedTuple):
    """A dead letter, as far as use cases read it. `rpc/dead_letters.py` shows all of it."""

    id: str
    # Microseconds since 1970.
    quarantine_time: int
    # The name of the public state.
    resolution: str
    # The public DeadLetter.
    record: Any
    # The dispatcher's row, if the execution could not be admitted. Lists leave it out, because it has the input.
    row: Any = None
    # The execution had a journal when it was given up.
    had_begun: bool = False
    # JSON with the members "config" and "inputs", as a runner rendered them. Empty: it is not known.
    rendered: bytes = b""


class DeadLetterQuery(NamedTuple):
    """One page of a list of dead letters."""

    workspace: str
    # The Conditions, for coordinators.
    conditions: Sequence[Any]
    # Behind this one; None = from the beginning.
    after: tuple[int, str] | None
    ascending: bool
    limit: int


class RunDeadLetters(Protocol):
    """Any coordinator: runs that failed for good."""

    async def outcome_after(self, letter: DeadLetterView) -> bool | None:
        """Whether the work has succeeded since a person had it done again. None: it is under way."""
        ...

    async def dead_letter(self, workspace: str, dead_letter_id: str) -> DeadLetterView | None: ...

    async def dead_letter_page(self, asked: DeadLetterQuery) -> Sequence[DeadLetterView]: ...

    async def dead_letter_groups(self, workspace: str, conditions: Sequence[Any], limit: int) -> Sequence[Any]: ...


class FailedRequeue(NamedTuple):
    reviewer: str
    notes: str
    # "": no repeat is recognised.
    request_id: str
    request_hash: bytes
    now_ns: int


class FailedResolution(NamedTuple):
    # Its last dead letter after the call, or the one that an earlier call with the same request id has resolved. None:
    # it has none any more.
    letter: DeadLetterView | None
    # The request id was used before with other content.
    is_reused: bool = False


class FailedExecutions(Protocol):
    """Any dispatcher: executions that could not be admitted."""

    async def failed(self, workspace: str, execution_id: str) -> DeadLetterView | None: ...

    async def failed_page(self, asked: DeadLetterQuery) -> Sequence[DeadLetterView]:
        """The conditions are not applied."""
        ...

    async def outcome_after(self, letter: DeadLetterView) -> bool | None:
        """Whether the execution has begun, goes on or has left the queue since it was queued again. None: it is not
        known yet."""
        ...

    async def requeue_failed(self, letter: DeadLetterView, asked: FailedRequeue) -> FailedResolution:
        """Queue it again, with the whole of its time."""
        ...

    async def discard_failed(self, letter: DeadLetterView, reviewer: str, notes: str) -> FailedResolution: ...


class CommandMailbox(Protocol):
    """Any dispatcher."""

    async def queued(self, execution_ids: Sequence[str]) -> Sequence[ExecutionView]: ...

    async def command(
        self,
        workspace: str,
        execution_id: str,
        message_id: str,
        command: Any,
        start: Any = None,
        seen_seq: int | None = None,
    ) -> bool:
        """Put an ExecutionCommand into the execution's mailbox; one with the same message id is a repeat. False: there
        is no such execution, or it has ended. With the StartOrder `start`, it may have ended. `seen_seq`: the newest
        event of the execution that its giver has seen."""
        ...


class CommandAnswers(Protocol):
    """Any coordinator."""

    async def answer(self, execution_id: str, message_id: str) -> EventView | None:
        """The event that answers this command, if there is one by now; or an earlier command with the same request id,
        whose message id differs if its content does."""
        ...

    async def start_order(self, execution_id: str) -> Any:
        """The StartOrder of the execution. None: it has not begun."""
        ...


class ApprovalReads(Protocol):
    """Any coordinator."""

    async def approval(self, approval_id: str) -> ApprovalView | None: ...


class RunViews(Protocol):
    """Any coordinator."""

    async def run_view(self, run_id: str) -> RunView | None: ...


class EffectSecrets(Protocol):
    async def effect_secret(self, workspace: str) -> bytes | None: ...


class AnnouncedModules(NamedTuple):
    """The modules that connected runners do. Empty: there is none, or nobody could be asked."""

    modules: Collection[str] = ()
    # Those of them that a runner does which renders templates.
    rendering: Collection[str] = ()


class ExecutionReads(Protocol):
    """Any coordinator."""

    async def executions(self, execution_ids: Sequence[str]) -> Sequence[ExecutionView]: ...

    async def execution_page(self, asked: ExecutionQuery) -> ExecutionPage: ...

    async def events(
        self, execution_id: str, after_seq: int, limit: int, *, as_of_seq: int = 0
    ) -> Sequence[EventView]: ...

    async def modules(self, workspace: str) -> AnnouncedModules:
        """Return the modules that runners have announced for this workspace."""
        ...


class QueuePlaces(Protocol):
    """Any dispatcher."""

    async def place(self, workspace: str, execution_id: str) -> Any:
        """The GetQueuePlaceResponse of an execution of this workspace."""
        ...


class PastReads(Protocol):
    """Any coordinator."""

    async def past(self, execution_id: str, as_of_seq: int) -> ExecutionView | None:
        """The execution as it was after this event. None: no coordinator has it."""
        ...

    async def explanation(self, execution_id: str, place: Any) -> Any:
        """The Explanation without its text and shares, and without the time that the execution has spent at its place
        in the queue. None: no coordinator has the execution."""
        ...


class Watch(Protocol):
    """The updates of one execution that coordinators send from now on."""

    async def next(self, seconds: float) -> EventView | ExecutionView | None:
        """The next event in the order of arrival, or the execution when it is final. None: the time is over or the
        stream was cut, so read again."""
        ...

    def close(self) -> None: ...


class Watches(Protocol):
    @property
    def name(self) -> str:
        """The `watcher` of a start."""
        ...

    def open(self, execution_id: str, *, after_seq: int = 0, events: bool = False, is_new: bool = False) -> Watch:
        """Subscribe at every coordinator at once. For a new execution (`is_new`) only those that ignore `watcher` are
        told, just before the start is sent; so nothing that is committed later is missed. A coordinator that is out of
        reach does not delay the others."""
        ...

    def waiting_since(self, time: float) -> Sequence[str]:
        """The executions for which a caller has waited since before `time` (of the event loop's clock)."""
        ...

    def final(self, execution: ExecutionView) -> None:
        """Tell the waiting callers that it has ended."""
        ...
