"""The callbacks by which a hop hears of its sessions. They run in the event loop and each carries a batch.

They must not block or raise. An exception ends the stream on the server, and the process in a holder.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from services.chassis.lease.frames import Attach, Grant, Refused, Report
from services.chassis.session.server import ServerSession
from services.chassis.session.store import EndedInstance


class AttachRefused(Exception):
    """Raised by `admit`: this holder may not attach. The reason is UPPER_SNAKE."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class SessionOwner(Protocol):
    """The server's side of a hop."""

    async def admit(self, attach: Attach) -> Sequence[Refused]:
        """Return the leases in the attach that do not belong to this instance (any more).

        Raises AttachRefused to refuse the attach.
        """
        ...

    def on_attached(self, session: ServerSession) -> None: ...

    def on_credit(self, session: ServerSession) -> None:
        """The holder has just stated its credit: wake the loop that claims work."""
        ...

    def on_taken(self, session: ServerSession, grants: list[Grant]) -> None:
        """The holder has them."""
        ...

    def on_refused(self, session: ServerSession, refused: list[Refused]) -> None:
        """The holder has given grants back, and will never start them under that epoch.

        NOT_HELD answers a claim, or a grant in doubt: that work may be done and reported to another server.
        """
        ...

    def on_withdrawn(self, session: ServerSession, grants: list[Grant]) -> None:
        """The grants were never sent: grant the work again, under a higher epoch."""
        ...

    def on_in_doubt(self, session: ServerSession, grants: list[Grant]) -> None:
        """The grants were sent on a stream that is gone, and the instance lives but has not attached here again.

        It may be working on them. Until it attaches or ends, grant only work again that is harmless to do twice.
        """
        ...

    def on_reports(self, session: ServerSession, reports: list[Report]) -> None:
        """Commit each report, then acknowledge or refuse it on this session. It comes again until then."""
        ...

    def on_notes(self, session: ServerSession, notes: list[object]) -> None: ...

    def on_drain(self, session: ServerSession) -> None:
        """The holder takes no more grants."""
        ...

    def on_closed(self, session: ServerSession) -> None:
        """The stream is gone. Its instance lives on until `on_ended`."""
        ...

    def on_unheard(self, instance_id: str) -> None:
        """The instance's stream has closed, and no replica has heard it for `idempotent_grace` since. It may come back
        with its leases, but work that may be done twice need not wait for it. Not called when both graces are equal."""
        ...

    def on_ended(self, ended: list[EndedInstance]) -> None:
        """All leases of these instances are free. An instance may be named more than once."""
        ...

    def watched(self) -> Iterable[str]:
        """The instances whose end this hop must hear of, also when another replica ends them."""
        ...


class HolderOwner(Protocol):
    """The holder's side of a hop."""

    def on_grants(self, grants: list[Grant]) -> None:
        """New leases, already taken. Start the work when `may_start` allows it, or give it back with `refuse`."""
        ...

    def on_revoked(self, revoked: list[Refused]) -> None:
        """Stop this work. It needs no report. A report that is made goes to the server that revoked the lease."""
        ...

    def on_reports_taken(self, reports: list[Report]) -> None:
        """The server has committed these reports."""
        ...

    def on_reports_refused(self, refused: list[tuple[Report, str]]) -> None:
        """The server has recorded these reports as refused, for the reason. They are not sent again. After
        REPORT_INVALID the lease is still held, and another report has to end it."""
        ...

    def on_notes(self, address: str, notes: list[object]) -> None: ...

    def beat_notes(self, address: str, *, is_full: bool) -> Sequence[object]:
        """The notes to send along with a beat to this server. With a full beat, as the first on each stream is, they
        must tell all that the server may need."""
        ...

    def on_fenced(self) -> None:
        """No server has answered for too long: start nothing new. Running work goes on."""
        ...

    def on_resumed(self) -> None:
        """A server has answered (again): start the work that waits."""
        ...

    def on_ended(self, reason: str) -> None:
        """End all work now, because it may be running elsewhere. The session attaches as a fresh instance."""
        ...
