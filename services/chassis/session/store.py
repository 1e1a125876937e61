"""The instances of the holders as the server's side stores them: one row each, judged only by the store's clock.

An instance is LIVE from its first attach until a replica ends it, and ENDED for ever after. A lease names an
instance and lives as long as it does, so that one renewal renews all its leases.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple, Protocol

from services.chassis.lease.frames import Attach


class EndedInstance(NamedTuple):
    instance_id: str
    holder: str
    # The seconds for which it had not been heard when the store was asked.
    unheard_seconds: float


class SessionStore(Protocol):
    """Raises DependencyUnavailable when it cannot be asked. Then no instance may be judged."""

    async def open(self, attach: Attach, caller: str) -> bool:
        """Make the instance LIVE, or renew it when it is LIVE. False: it has ENDED, or another caller has opened it."""
        ...

    async def renew(self, instance_ids: Iterable[str]) -> set[str]:
        """Renew all of them in one statement, and return those that are not LIVE."""
        ...

    async def now(self) -> datetime:
        """The present time by the store's clock."""
        ...

    async def is_unheard(self, instance_id: str, since: datetime) -> bool:
        """True when the instance is LIVE and was not heard after that time."""
        ...

    async def end_if_unheard(self, instance_id: str, since: datetime) -> EndedInstance | None:
        """End the instance unless it was heard after that time. None: it lives (or was never opened).

        An instance that has ended before is returned again.
        """
        ...

    async def sweep(self) -> list[EndedInstance]:
        """Suspect instances past their term, and end those that were suspected long enough and not heard since."""
        ...

    async def ended_among(self, instance_ids: Iterable[str]) -> list[EndedInstance]:
        """The given instances that are unknown or have ENDED, whichever replica ended them."""
        ...
