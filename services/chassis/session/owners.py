"""What a hop does with its sessions: plain callbacks in the event loop, a batch each, which must not block
or raise.

An owner that raises has a bug, and takes the stream (on the server) or the process (in a holder) with it.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from services.chassis.lease.frames import Attach, Grant, Refused, Report
from services.chassis.session.store import EndedInstance

if TYPE_CHECKING:
    from services.chassis.session.server import ServerSession


class AttachRefused(Exception):
    """Raised by `admit`: this holder may not attach. The reason is UPPER_SNAKE."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class SessionOwner(Protocol):
    """The server side's hop."""

    async def admit(self, attach: Attach) -> Sequence[Refused]:
        """The held leases that are not (or no longer) this instance's.

        Raises AttachRefused to refuse it whole.
        """
        ...

    def on_attached(self, session: "ServerSession") -> None: ...

    def on_credit(self, session: "ServerSession") -> None:
        """It has just stated its credit: wake whoever claims work."""
        ...

    def on_taken(self, session: "ServerSession", grants: list[Grant]) -> None:
        """The holder has them."""
        ...

    def on_refused(self, session: "ServerSession", refused: list[Refused]) -> None:
        """Grants handed back; and NOT_HELD: what it was asked for, or should have named, and does not hold.

        It will never start them under that epoch. NOT_HELD may be done and reported to another server.
        """
        ...

    def on_withdrawn(self, session: "ServerSession", grants: list[Grant]) -> None:
        """Never sent: grant the work again, under a higher epoch."""
        ...

    def on_in_doubt(self, session: "ServerSession", grants: list[Grant]) -> None:
        """Sent on a stream that is gone, and the instance lives without coming back here.

        It may be at work: only what is harmless to do twice may be granted again before it comes or ends.
        """
        ...

    def on_reports(self, session: "ServerSession", reports: list[Report]) -> None:
        """Commit each, then acknowledge or refuse it on this session. They come again until then."""
        ...

    def on_notes(self, session: "ServerSession", notes: list[object]) -> None: ...

    def on_drain(self, session: "ServerSession") -> None:
        """It takes no more grants."""
        ...

    def on_closed(self, session: "ServerSession") -> None:
        """The stream is gone. Its instance lives on until `on_ended`."""
        ...

    def on_ended(self, ended: list[EndedInstance]) -> None:
        """All their leases are free. May name an instance more than once."""
        ...

    def watched(self) -> Iterable[str]:
        """Instances whose end matters here, whoever notices it."""
        ...


class HolderOwner(Protocol):
    """The holder's hop."""

    def on_grants(self, grants: list[Grant]) -> None:
        """New leases, already taken.

        Start the work when `may_start`; give back with `refuse` what cannot be done.
        """
        ...

    def on_revoked(self, revoked: list[Refused]) -> None:
        """Stop this work. Nothing needs to be reported; what is, goes to the server that took the lease back."""
        ...

    def on_reports_taken(self, reports: list[Report]) -> None:
        """Committed at the server."""
        ...

    def on_reports_refused(self, refused: list[tuple[Report, str]]) -> None:
        """Recorded there as refused, with the reason; never sent again."""
        ...

    def on_notes(self, address: str, notes: list[object]) -> None: ...

    def beat_notes(self, address: str, *, is_full: bool) -> Sequence[object]:
        """What to send along with a beat to this server; all that it may need when the beat is a full one, which the
        first on each stream is."""
        ...

    def on_fenced(self) -> None:
        """Not heard for too long: start nothing new. What runs goes on."""
        ...

    def on_resumed(self) -> None:
        """Heard (again): start what waits."""
        ...

    def on_ended(self, reason: str) -> None:
        """End all work now: it may be running elsewhere. The library attaches anew as a fresh instance."""
        ...
