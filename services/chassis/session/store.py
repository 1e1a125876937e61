"""What the server side keeps of its holders' instances: one row each, judged by the store's own clock only.

An instance is LIVE from its first attach until somebody ends it, and ENDED for ever after. Leases name an
instance and live as long as it does, so that one renewal carries them all.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from services.chassis.lease.frames import Attach


class EndedInstance(NamedTuple):
    instance_id: str
    holder: str
    # How long it has not been heard, at the time of the asking.
    unheard_seconds: float


@dataclass(frozen=True, slots=True)
class CloseMark:
    """The store's time at which a stream was found closed."""

    instance_id: str
    time: datetime


class SessionStore(Protocol):
    """Raises DependencyUnavailable when it cannot be asked; then nothing may be concluded about anybody."""

    async def open(self, attach: Attach) -> bool:
        """Make the instance LIVE, or renew it when it is. False: it was ENDED."""
        ...

    async def renew(self, instance_ids: Iterable[str]) -> set[str]:
        """Renew all of them in one statement; the answer is those that are not LIVE."""
        ...

    async def mark_closed(self, instance_id: str) -> CloseMark:
        """The time now, to compare with when the instance is heard next."""
        ...

    async def end_if_unheard(self, mark: CloseMark) -> EndedInstance | None:
        """End it unless it was heard after the mark.

        An instance ended before is told again, None: it lives.
        """
        ...

    async def sweep(self) -> list[EndedInstance]:
        """Two looks: suspect those past their term, end those suspected long enough and not heard since."""
        ...

    async def ended_among(self, instance_ids: Iterable[str]) -> list[EndedInstance]:
        """Those of the given that are ENDED (or unknown), whoever ended them."""
        ...
