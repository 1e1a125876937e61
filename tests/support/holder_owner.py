"""An owner of a holder that records the calls of its session."""

from collections.abc import Sequence

from services.chassis.lease.frames import Grant, Refused, Report


class HolderOwner:
    """Keeps the calls, and sends nothing by itself."""

    def __init__(self) -> None:
        self.revoked: list[Refused] = []
        self.taken: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self.notes: list[object] = []
        # "fenced", "resumed", or the reason for which its instance ended.
        self.edges: list[str] = []

    def on_grants(self, grants: list[Grant]) -> None: ...

    def on_revoked(self, revoked: list[Refused]) -> None:
        self.revoked += revoked

    def on_reports_taken(self, reports: list[Report]) -> None:
        self.taken += [report.lease_id for report in reports]

    def on_reports_refused(self, refused: list[tuple[Report, str]]) -> None:
        self.refused += [(report.lease_id, reason) for report, reason in refused]

    def on_notes(self, address: str, notes: list[object]) -> None:
        self.notes += notes

    def beat_notes(self, address: str, *, is_full: bool) -> Sequence[object]:
        return ()

    def on_fenced(self) -> None:
        self.edges.append("fenced")

    def on_resumed(self) -> None:
        self.edges.append("resumed")

    def on_ended(self, reason: str) -> None:
        self.edges.append(reason)
