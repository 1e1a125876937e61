"""The drivers of both sides do the effects of one frame in the order of their fields."""

from typing import Any, cast

from services.chassis.lease.effects import HolderEffects, ServerEffects
from services.chassis.lease.frames import Attach, Grant, Refused, Report
from services.chassis.lease.timing import EXECUTION
from services.chassis.session.holder import SessionHolder
from services.chassis.session.registry import SessionRegistry
from tests.support.session_store import MemorySessionStore

REPORT = Report("1", "x", 1, None)


class Told:
    """An owner that writes down the calls and their last arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append((name, args[-1] if args else None))


def test_holder_stops_what_a_grant_replaces_before_it_begins_the_grant():
    owner = Told()
    holder = SessionHolder(
        attach=Attach("holder"),
        timing=EXECUTION,
        codec=cast("Any", None),
        open_stream=cast("Any", None),
        owner=cast("Any", owner),
    )
    effects = HolderEffects(
        reports_taken=[REPORT],
        reports_refused=[(REPORT, "EPOCH_STALE")],
        lost=[Refused("x", 1, "GRANTED_AGAIN")],
        grants=[Grant("x", 2, "work")],
        revoked=[Refused("x", 2, "RUN_CANCELLED")],
        notes=["note"],
        has_resumed=True,
        end_reason="RENEWAL_REFUSED",
        has_fenced=True,
    )
    holder.perform("here:1", effects)
    assert owner.calls == [
        ("on_reports_taken", effects.reports_taken),
        ("on_reports_refused", effects.reports_refused),
        ("on_revoked", effects.lost),
        ("on_grants", effects.grants),
        ("on_revoked", effects.revoked),
        ("on_notes", effects.notes),
        ("on_resumed", None),
        ("on_ended", "RENEWAL_REFUSED"),
        ("on_fenced", None),
    ]


def test_server_hears_of_grants_before_reports_and_of_a_drain_last():
    owner, session = Told(), cast("Any", object())
    registry = SessionRegistry(
        store=MemorySessionStore(EXECUTION),
        timing=EXECUTION,
        server="server-0",
        codec=cast("Any", None),
        owner=cast("Any", owner),
    )
    effects = ServerEffects(
        taken=[Grant("x", 1, "work")],
        refused=[Refused("y", 1, "DRAINING")],
        reports=[REPORT],
        notes=["note"],
        has_stated_credit=True,
        has_begun_drain=True,
    )
    registry.perform(session, effects)
    assert owner.calls == [
        ("on_taken", effects.taken),
        ("on_refused", effects.refused),
        ("on_reports", effects.reports),
        ("on_notes", effects.notes),
        ("on_credit", session),
        ("on_drain", session),
    ]
