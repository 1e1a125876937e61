"""What the handlers need of the database and of the sessions, and what the rest of the service brings to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from services.dispatcher.core.items import (
    Admission,
    Finished,
    LateReason,
    LeaseReport,
    Limits,
    Newcomer,
    Parked,
    Place,
)
from services.dispatcher.core.turn import Turn, TurnResult


class Unstorable(Exception):
    """The database refuses an item or a claim of the turn for what it holds; nothing of the turn happened."""


class Queue(Protocol):
    async def turn(self, turn: Turn) -> TurnResult: ...

    async def store_limits(self, limits: Mapping[str, Limits]) -> None: ...


class Late(Protocol):
    async def reasons(self, reports: Sequence[LeaseReport]) -> Sequence[LateReason | None]:
        """Why each had no effect; None: it had, at an earlier delivery."""
        ...


class Holder(Protocol):
    """A coordinator, by one of its sessions here."""

    @property
    def instance_id(self) -> str: ...

    @property
    def credit(self) -> int: ...

    def take_credit(self, count: int) -> int: ...

    def give_back(self, count: int) -> None: ...

    def grant(self, places: Sequence[Place]) -> bool:
        """False: its stream is gone, and with it these places."""
        ...

    def acknowledge(self, report_ids: Sequence[str]) -> None: ...

    def refuse(self, report_id: str, reason: str) -> None: ...


class Asker(Protocol):
    """Who brought a newcomer and waits for its answer."""

    def answered(self, newcomer: Newcomer, admission: Admission) -> None: ...


class Arrival(NamedTuple):
    newcomer: Newcomer
    asker: Asker


class Told(NamedTuple):
    """A report that waits for its commit."""

    report_id: str
    report: Finished | Parked
    holder: Holder
