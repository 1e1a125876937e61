"""Events about loops, and about the executions that nodes start."""

from dataclasses import dataclass

from services.coordinator.core.events.shapes import Consequences, RunEvent
from services.coordinator.core.values import Instant, Span, WorkKey


@dataclass(slots=True)
class ItemsRequested(RunEvent):
    """The rendered config of a loop is in the output store. It has to be read before the loop starts or fails."""


@dataclass(slots=True)
class ItemsRead(RunEvent):
    """The config was read. The start or the outcome of the loop follows in the same append."""


@dataclass(slots=True)
class LoopStarted(RunEvent):
    """A control node began to loop over items, or to take turns."""

    # How many items there are, or how many turns it takes at most.
    count: int
    parallel_max: int
    # An item that fails does not end the loop.
    continues_on_failure: bool
    # The pause between two turns.
    delay: Span
    # The items that begin at once. Further ones begin with the outcomes of these.
    then: Consequences


@dataclass(slots=True)
class LoopContinued(RunEvent):
    """The wait between two turns is over."""

    # The turn that begins.
    then: Consequences


@dataclass(slots=True)
class LoopGathered(RunEvent):
    """All items are done, and their outputs together are too large to be inline. They have to be put into the output
    store."""


@dataclass(slots=True)
class LoopClosed(RunEvent):
    """No item begins any more. The outcome of the loop follows in the same append, after a RunCancelled for each item
    that is stopped."""

    # Items that were ready for a runner, awaited their next attempt, or were to begin.
    cancelled: tuple[WorkKey, ...]
    # Items that runners have, who are told to stop. Nobody waits for their answers.
    stopped: tuple[WorkKey, ...]


@dataclass(slots=True)
class ChildEvent(RunEvent):
    """An event about an execution that the work has started."""

    child_execution_id: str


@dataclass(slots=True)
class ChildRequested(ChildEvent):
    """A node that waits for a child wants this execution to be started. The start is owed until ChildStarted or
    ChildRefused, or until the child is over. Everything that it needs is here, also the id of the child, so each
    repetition asks for the same."""

    workflow: str
    # 0: the newest one when the child is started.
    version: int
    # A JSON object.
    input: bytes
    # 0: none but that of the child's own workflow.
    deadline_time: Instant
    # False: the child goes on when this execution ends before it.
    is_cancelled_with_parent: bool


@dataclass(slots=True)
class ChildStarted(ChildEvent):
    """The child is queued, which is durable."""


@dataclass(slots=True)
class ChildRefused(ChildEvent):
    """The child cannot be started, now or later. If the node still waits for it, its failure follows."""


@dataclass(slots=True)
class ChildCancelOrdered(ChildEvent):
    """Nobody waits for the child any more, so it has to be cancelled. It is owed until ChildCancelTold, or until this
    execution is over."""


@dataclass(slots=True)
class ChildCancelTold(ChildEvent):
    """The cancel is in the mailbox of the child, or the child is over."""
