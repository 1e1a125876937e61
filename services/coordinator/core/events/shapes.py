"""The parts that events are made of."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

from services.coordinator.core.values import Instant, WorkKey


class WaitKind(StrEnum):
    """A wait is for one of these."""

    TIMER = "TIMER"
    SIGNAL = "SIGNAL"
    CHILD = "CHILD"
    APPROVAL = "APPROVAL"
    # Somebody else finishes the work of a run that was deferred.
    OUTSIDE = "OUTSIDE"
    # The work has failed for good, and a person decides what becomes of it.
    PERSON = "PERSON"


class WaitOutcome(StrEnum):
    """How a wait ended."""

    # The message or the answer that was waited for has come.
    ARRIVED = "ARRIVED"
    # The time that was set for the wait is over.
    EXPIRED = "EXPIRED"


class Resolution(IntEnum):
    """How an edge resolved."""

    TAKEN = 0
    SKIPPED = 1
    BLOCKED = 2


class Consequences(NamedTuple):
    """The outcome of a piece of work changed the graph in this way. It was judged once (`graph.judge`)."""

    # How each edge out of the node resolved: one Resolution per edge, in the order of the definition.
    edges: bytes = b""
    # Work that a runner can be given now.
    ready: tuple[WorkKey, ...] = ()
    # Control nodes whose join holds now. The events with which they begin follow, unless the execution is told to end
    # before.
    begun: tuple[WorkKey, ...] = ()
    # Work that no edge was taken to. A WorkSkipped follows for each, with the same exception.
    skipped: tuple[WorkKey, ...] = ()
    # Work that needs the success of something that failed. A WorkBlocked follows for each, with the same exception.
    blocked: tuple[WorkKey, ...] = ()


NOTHING_FOLLOWS = Consequences()


@dataclass(slots=True)
class WorkEvent:
    """An event about a piece of work."""

    time: Instant
    key: WorkKey


@dataclass(slots=True)
class RunEvent(WorkEvent):
    """An event about one attempt at the work. If it names the next free run number, it makes that run."""

    run: int
