"""Events about waits: for a time, a signal, a decision, or somebody who finishes the work."""

from dataclasses import dataclass

from services.coordinator.core.events.shapes import RunEvent, WaitKind, WaitOutcome
from services.coordinator.core.values import ApprovalChoice, ApprovalState, Instant


@dataclass(slots=True)
class WaitStarted(RunEvent):
    """A control node waits. Its run is the one that rendered its config, or a new one."""

    kind: WaitKind
    # When the time ends the wait. 0: no time does.
    due_time: Instant
    # The signal that is waited for. Waits of other kinds have none.
    name: str = ""


@dataclass(slots=True)
class WaitEnded(RunEvent):
    """The wait is over. What the control made of it follows in the same append."""

    outcome: WaitOutcome


@dataclass(slots=True)
class SignalReceived:
    """A signal has come. It is kept until a node takes it; the sequence number of this event names it."""

    time: Instant
    message_id: str
    caller: str
    signal: str
    # JSON.
    payload: bytes


@dataclass(slots=True)
class SignalTaken(RunEvent):
    """A node takes a signal that has come. The signal is no longer kept."""

    # The sequence number of its SignalReceived.
    number: int


@dataclass(slots=True)
class ApprovalRequested(RunEvent):
    """People are asked to decide. The id of the approval is that of the run, and the time ends it with the wait that
    has begun before."""

    title: str
    # The JSON Schema of the form that is filled in at a decision.
    form: bytes
    # Titles of keys, and roles like "role:ADMIN". Empty: everybody who may decide at all.
    assignees: tuple[str, ...]
    # The number of keys that have to approve.
    required: int


@dataclass(slots=True)
class ApprovalDecided(RunEvent):
    """Somebody has decided. The first rejection, or the last approval that was required, ends the approval."""

    message_id: str
    # The title of the key, for people; and its id, because no key decides twice.
    caller: str
    key_id: str
    decision: ApprovalChoice
    # JSON that fits the form.
    form: bytes
    comment: str
    # The approval ended like this by the decision. None: further decisions are needed.
    outcome: ApprovalState | None


@dataclass(slots=True)
class RunDeferred(RunEvent):
    """The runner has handed the work to somebody else, who has the completion token of the run. No runner has the run
    any more. It waits until it is answered or its time is over."""

    start_time: Instant
    # When the timeout of the node ends the run. 0: no time does.
    due_time: Instant
    inputs_hash: bytes
    config_hash: bytes
    cost_tokens: int


@dataclass(slots=True)
class OutsideAnswered(RunEvent):
    """Whoever has the completion token of the run has said how the work ended. Its RunSucceeded or RunFailed
    follows."""

    message_id: str
