"""Every frame in every state of the server's side has a defined answer: an executable table with a ledger."""

from collections.abc import Callable
from typing import Any

import pytest

from services.chassis.lease.effects import ServerEffects
from services.chassis.lease.frames import (
    CREDIT_MAX,
    HELD_MAX,
    LABELS_MAX,
    MODULES_MAX,
    NAME_MAX,
    REPORTS_FLOOD,
    Attach,
    Beat,
    Credit,
    Grant,
    HolderFrame,
    Lease,
    Refused,
    Report,
    ServerFrame,
)
from services.chassis.lease.server import ServerSessionRules, ServerState
from services.chassis.lease.timing import EXECUTION
from tests.support.lease_effects import named
from tests.support.probe import some

ATTACH = Attach("holder", "instance", 10)
REPORT = Report("1", "lease", 1, None)
LONG = "x" * (NAME_MAX + 1)


def new() -> ServerSessionRules:
    return ServerSessionRules("session", "server", EXECUTION)


def opening() -> ServerSessionRules:
    session = new()
    session.receive(HolderFrame(attach=ATTACH), 0.0)
    return session


def live() -> ServerSessionRules:
    """Attached, beat 1 answered, credit stated, two grants sent and not counted."""
    session = opening()
    session.accept([])
    session.receive(HolderFrame(credit=Credit(1, 10), beat=Beat(1, True, 0)), 0.0)
    session.renewed(1)
    session.take_credit(2)
    session.queue_grants([Grant("a", 1, "work"), Grant("b", 2, "work")], 0.0)
    assert session.take_frame() is not None
    return session


def beating() -> ServerSessionRules:
    """Live, with beat 2 unanswered."""
    session = live()
    session.receive(HolderFrame(beat=Beat(2, False, 0)), 0.0)
    return session


def draining() -> ServerSessionRules:
    session = live()
    session.receive(HolderFrame(is_draining=True), 0.0)
    return session


def closed() -> ServerSessionRules:
    session = live()
    session.receive(HolderFrame(attach=ATTACH), 0.0)
    return session


def lost() -> ServerSessionRules:
    session = live()
    session.lost()
    return session


STATES: dict[str, Callable[[], ServerSessionRules]] = {
    "new": new,
    "opening": opening,
    "live": live,
    "beating": beating,
    "draining": draining,
    "closed": closed,
    "lost": lost,
}


def attaching(**more: Any) -> HolderFrame:
    return HolderFrame(attach=Attach("holder", "instance", 1, **more))


FRAMES: dict[str, HolderFrame] = {
    "nothing": HolderFrame(),
    "attach": HolderFrame(attach=ATTACH),
    "attach with more": HolderFrame(attach=ATTACH, credit=Credit(1, 1)),
    "attach without instance": HolderFrame(attach=Attach("holder", "", 1)),
    "attach with negative capacity": HolderFrame(attach=Attach("holder", "instance", -1)),
    "attach with a NUL": HolderFrame(attach=Attach("holder", "inst\0ance", 1)),
    "attach with a long name": HolderFrame(attach=Attach("h" * (NAME_MAX + 1), "instance", 1)),
    "attach with too many labels": attaching(labels={str(n): "" for n in range(LABELS_MAX + 1)}),
    "attach with too many modules": attaching(modules=["noop@1"] * (MODULES_MAX + 1)),
    "attach with too many idempotent modules": attaching(idempotent_modules=["noop@1"] * (MODULES_MAX + 1)),
    "attach with a long idempotent module": attaching(idempotent_modules=["m" * (NAME_MAX + 1)]),
    "attach with too many leases": attaching(held=[Lease("x", 1)] * (HELD_MAX + 1)),
    "attach with a long lease": attaching(held=[Lease("x", 1), Lease(LONG, 1)]),
    "next beat": HolderFrame(beat=Beat(2, False, 0)),
    "old beat": HolderFrame(beat=Beat(1, False, 0)),
    "beat after a gap": HolderFrame(beat=Beat(4, False, 0)),
    "beat below nothing": HolderFrame(beat=Beat(-5, False, 0)),
    "beat with too many leases": HolderFrame(beat=Beat(2, True, 0, [Lease("x", 1)] * (HELD_MAX + 1))),
    "beat with a long lease": HolderFrame(beat=Beat(2, False, 0, [Lease("x", 1), Lease(LONG, 1)])),
    "beat without a long lease": HolderFrame(beat=Beat(2, False, 0, gone=["x", LONG])),
    "beat with the longest lease": HolderFrame(beat=Beat(2, False, 1, [Lease(LONG[1:], 1)])),
    "credit": HolderFrame(credit=Credit(2, 5), grants_seen=2),
    "old credit": HolderFrame(credit=Credit(1, 5)),
    "negative credit": HolderFrame(credit=Credit(2, -1)),
    "credit without measure": HolderFrame(credit=Credit(2, CREDIT_MAX + 1)),
    "count of one grant": HolderFrame(grants_seen=1),
    "count beyond what was sent": HolderFrame(grants_seen=3),
    "count below nothing": HolderFrame(grants_seen=-1),
    "refusal": HolderFrame(refused=[Refused("a", 1, "NO_CAPACITY")]),
    "refusal of a long lease": HolderFrame(refused=[Refused(LONG, 1, "NO_CAPACITY")]),
    "refusal for a long reason": HolderFrame(refused=[Refused("a", 1, LONG)]),
    "count with a refusal": HolderFrame(grants_seen=2, refused=[Refused("a", 1, "NO_CAPACITY")]),
    "report": HolderFrame(reports=[REPORT]),
    "report with a long id": HolderFrame(reports=[REPORT, Report(LONG, "lease", 1, None)]),
    "report of a long lease": HolderFrame(reports=[REPORT, Report("2", LONG, 1, None)]),
    "flood of reports": HolderFrame(reports=[REPORT] * (REPORTS_FLOOD + 1)),
    "note": HolderFrame(notes=["note"]),
    "drain": HolderFrame(is_draining=True),
}

ATTACHING = [name for name in FRAMES if name.startswith("attach")]
SERVED: dict[str, str] = dict.fromkeys(ATTACHING, "ATTACHED_ALREADY") | {
    "nothing": "",
    "next beat": "beat",
    "old beat": "BEAT_OUT_OF_ORDER",
    "beat after a gap": "BEAT_OUT_OF_ORDER",
    "beat below nothing": "BEAT_OUT_OF_ORDER",
    "beat with too many leases": "HELD_EXCEEDED",
    "beat with a long lease": "NAME_TOO_LONG",
    "beat without a long lease": "NAME_TOO_LONG",
    "beat with the longest lease": "beat",
    "credit": "taken has_stated_credit",
    "old credit": "",
    "negative credit": "CREDIT_INVALID",
    "credit without measure": "CREDIT_INVALID",
    "count of one grant": "taken",
    "count beyond what was sent": "GRANTS_SEEN_INVALID",
    "count below nothing": "GRANTS_SEEN_INVALID",
    "refusal": "refused",
    "refusal of a long lease": "NAME_TOO_LONG",
    "refusal for a long reason": "NAME_TOO_LONG",
    "count with a refusal": "taken refused",
    "report": "reports",
    "report with a long id": "NAME_TOO_LONG",
    "report of a long lease": "NAME_TOO_LONG",
    "flood of reports": "FLOOD",
    "note": "notes",
    "drain": "has_begun_drain",
}

ATTACHES: dict[str, str] = dict.fromkeys(ATTACHING, "ATTACH_INVALID") | {
    "attach": "attach",
    "attach with more": "ATTACH_EXPECTED",
    "attach with too many leases": "HELD_EXCEEDED",
}

# The answer of each state to each frame: the names of the effects, or the reason of the fault.
TABLE: dict[str, dict[str, str]] = {
    "new": dict.fromkeys(FRAMES, "ATTACH_EXPECTED") | ATTACHES,
    "opening": dict.fromkeys(FRAMES, "ATTACH_PENDING"),
    "live": SERVED,
    "beating": SERVED
    | dict.fromkeys(("next beat", "beat with too many leases", "beat with the longest lease"), "BEAT_OUT_OF_ORDER"),
    "draining": SERVED | {"credit": "taken", "drain": ""},
    "closed": dict.fromkeys(FRAMES, ""),
    "lost": dict.fromkeys(FRAMES, ""),
}

CELLS = [(state, frame) for state in STATES for frame in FRAMES]


def test_table_is_complete():
    assert set(TABLE) == set(STATES)
    for state, row in TABLE.items():
        assert set(row) == set(FRAMES), state
    reached = {STATES[name]().state for name in STATES}
    assert reached == set(ServerState)


@pytest.mark.parametrize(("state", "frame"), CELLS, ids=[f"{s}-{f}".replace(" ", "_") for s, f in CELLS])
def test_frame_in_state_has_its_answer(state: str, frame: str):
    session = STATES[state]()
    before = session.state
    effects = session.receive(FRAMES[frame], 1.0)
    answer = TABLE[state][frame]
    if answer.isupper():
        assert effects == ServerEffects()
        assert session.state is ServerState.CLOSED
        last = some(session.take_frame())
        assert last.fault is not None
        assert last.fault.reason == answer
        assert last.fault.message
        assert session.take_frame() is None, "a fault is the last frame"
    else:
        assert named(effects) == answer.split()
        assert session.state is not ServerState.CLOSED or before is ServerState.CLOSED


def test_faulty_frame_takes_no_effect():
    session = live()
    session.receive(HolderFrame(grants_seen=2, reports=[REPORT], beat=Beat(7, True, 0)), 0.0)
    assert some(session.fault).reason == "BEAT_OUT_OF_ORDER"
    assert session.unanswered.count == 0


def test_count_that_goes_back_is_a_fault():
    session = live()
    session.receive(HolderFrame(grants_seen=2), 0.0)
    session.receive(HolderFrame(grants_seen=1), 0.0)
    assert some(session.fault).reason == "GRANTS_SEEN_INVALID"


def test_attached_frame_follows_the_acceptance_and_names_the_refused_leases():
    session = new()
    held = [Lease("mine", 4), Lease("stale", 2)]
    session.receive(attaching(held=held), 0.0)
    assert session.take_frame() is None
    session.accept([Refused("stale", 2, "EPOCH_STALE")])
    frame = some(session.take_frame())
    assert frame.attached is not None
    assert frame.attached.refused == [Refused("stale", 2, "EPOCH_STALE")]
    assert frame.attached.timing == EXECUTION
    assert session.holds("mine", 4)
    assert not session.holds("mine", 3)
    assert not session.holds("stale", 2)
    assert session.held_count == 1


def test_session_does_not_keep_the_leases_of_its_attach_a_second_time():
    session = new()
    attach = Attach("holder", "instance", 1, held=[Lease("mine", 4)], labels={"zone": "a"})
    session.receive(HolderFrame(attach=attach), 0.0)
    session.accept([])
    assert session.attach == Attach("holder", "instance", 1, labels={"zone": "a"})


def test_acceptance_after_the_stream_is_gone_changes_nothing():
    session = opening()
    session.lost()
    session.accept([])
    session.close("TOO_LATE", "")
    session.ended()
    session.renewed(1)
    assert session.state is ServerState.CLOSED
    assert session.take_frame() is None


def test_acceptance_of_what_did_not_attach_is_a_bug():
    with pytest.raises(ValueError, match="nothing to accept"):
        new().accept([])


def test_refused_renewal_is_told_with_the_beat_and_closes():
    session = beating()
    session.ended()
    frame = some(session.take_frame())
    assert not some(frame.beat).is_renewed
    assert frame.fault is not None
    assert frame.fault.reason == "INSTANCE_ENDED"


def test_beats_keep_the_set_of_held_leases():
    session = live()
    session.receive(HolderFrame(beat=Beat(2, True, 2, [Lease("a", 1), Lease("b", 2)])), 0.0)
    session.renewed(2)
    session.receive(HolderFrame(beat=Beat(3, False, 2, [Lease("c", 3)], ["a"])), 0.0)
    assert not session.holds("a", 1)
    assert session.holds("b", 2)
    assert not session.holds("b", 1)
    assert session.holds("c", 3)
    assert session.held == [Lease("b", 2), Lease("c", 3)]
    session.renewed(3)
    frame = some(session.take_frame())
    assert not some(frame.beat).wants_full


def test_leases_are_counted_from_the_attach_on_and_gone_with_the_stream():
    session = new()
    counts = [session.held_count]
    session.receive(attaching(held=[Lease("a", 1), Lease("b", 1)]), 0.0)
    counts.append(session.held_count)
    session.accept([Refused("a", 1, "EPOCH_STALE")])
    counts.append(session.held_count)
    session.lost()
    assert [*counts, session.held_count] == [0, 2, 1, 0]


def test_unanswered_reports_of_all_frames_count_together():
    session, half = live(), HolderFrame(reports=[REPORT] * (REPORTS_FLOOD // 2))
    assert [len(session.receive(half, 0.0).reports) for _ in range(2)] == [REPORTS_FLOOD // 2] * 2
    session.acknowledge([REPORT.report_id])
    one = HolderFrame(reports=[REPORT])
    assert session.receive(one, 0.0).reports == [REPORT]
    assert session.receive(one, 0.0) == ServerEffects()
    assert some(session.fault).reason == "FLOOD"


@pytest.mark.parametrize("end", [lambda session: session.close("NO", "no"), ServerSessionRules.lost])
def test_leases_of_an_attach_that_is_never_accepted_are_forgotten(end: Callable[[ServerSessionRules], object]):
    session = new()
    session.receive(attaching(held=[Lease("a", 1)]), 0.0)
    end(session)
    assert session.held_count == 0
    assert session.attach is not None


def test_sign_of_life_says_the_demand_again():
    session = live()
    session.set_demand(3)
    said = [session.take_frame(), session.take_frame()]
    session.say_something()
    assert [*said, session.take_frame()] == [ServerFrame(demand=3), None, ServerFrame(demand=3)]


def test_drifted_set_is_asked_for_whole():
    session = live()
    session.receive(HolderFrame(beat=Beat(2, False, 5)), 0.0)
    session.renewed(2)
    frame = some(session.take_frame())
    assert some(frame.beat).wants_full


def test_answer_to_another_beat_than_the_pending_one_is_ignored():
    session = beating()
    session.renewed(1)
    assert session.take_frame() is None


def test_unanswered_beat_is_at_least_said_to_be_heard():
    session = beating()
    assert (live().beat_number, session.beat_number) == (1, 2)
    assert session.tick(0.4) == []
    assert session.take_frame() is None
    session.tick(EXECUTION.beat)
    frame = session.take_frame()
    assert frame == ServerFrame(beat_heard=2)
    session.tick(1.2 * EXECUTION.beat)
    assert session.take_frame() is None
    session.tick(2 * EXECUTION.beat)
    assert session.take_frame() == frame, "said again: the stream shows that it lives"
