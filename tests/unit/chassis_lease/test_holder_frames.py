"""Every frame of a server in every state of a holder's stream has a defined answer: a table with a ledger."""

import itertools
from collections.abc import Callable

import pytest

from services.chassis.lease.effects import HolderEffects, Redial
from services.chassis.lease.frames import (
    Attach,
    Attached,
    BeatAnswer,
    Grant,
    Lease,
    Refused,
    RefusedReport,
    Report,
    ServerFrame,
    StreamFault,
)
from services.chassis.lease.holder import HolderRules
from services.chassis.lease.stream import StreamState
from services.chassis.lease.timing import EXECUTION
from tests.support.lease_effects import named
from tests.support.probe import some

ATTACHED = Attached("session", "server", EXECUTION)
HERE = "here:1"


def dialled() -> HolderRules:
    ids = (f"instance-{n}" for n in itertools.count(1))
    holder = HolderRules(Attach("holder", capacity=2), EXECUTION, lambda: next(ids))
    holder.dialled(HERE, 0.0)
    return holder


def attaching() -> HolderRules:
    holder = dialled()
    assert holder.take_frame(HERE, 0.0) is not None
    return holder


def live() -> HolderRules:
    """Holds lease "held" at epoch 5, has an unanswered report "1" of it, and beat 1 in flight."""
    holder = attaching()
    holder.receive(HERE, ServerFrame(attached=ATTACHED), 0.0)
    holder.take_frame(HERE, 0.0)
    holder.receive(HERE, ServerFrame(grants=[Grant("held", 5, "work")]), 0.0)
    holder.report(Report("1", "held", 5, "body"), ends_lease=False)
    holder.tick(EXECUTION.beat)
    frame = some(holder.take_frame(HERE, EXECUTION.beat))
    assert frame.beat is not None
    assert frame.reports
    return holder


def leaving() -> HolderRules:
    holder = live()
    holder.receive(HERE, ServerFrame(is_draining=True), EXECUTION.beat)
    return holder


def gone() -> HolderRules:
    holder = live()
    holder.lost(HERE)
    return holder


STATES: dict[str, Callable[[], HolderRules]] = {
    "dialled": dialled,
    "attaching": attaching,
    "live": live,
    "leaving": leaving,
    "gone": gone,
}

FRAMES: dict[str, ServerFrame] = {
    "nothing": ServerFrame(),
    "attached": ServerFrame(attached=ATTACHED),
    "attached with a refused lease": ServerFrame(
        attached=Attached("session", "server", EXECUTION, [Refused("held", 5, "EPOCH_STALE")])
    ),
    "attached with invalid times": ServerFrame(attached=Attached("session", "server", None)),
    "fault": ServerFrame(fault=StreamFault("FLOOD")),
    "instance ended": ServerFrame(fault=StreamFault("INSTANCE_ENDED")),
    "beat renewed": ServerFrame(beat=BeatAnswer(1, True)),
    "beat renewed, whole set wanted": ServerFrame(beat=BeatAnswer(1, True, True)),
    "beat refused": ServerFrame(beat=BeatAnswer(1, False)),
    "beat refused, in the last frame": ServerFrame(beat=BeatAnswer(1, False), fault=StreamFault("INSTANCE_ENDED")),
    "answer to no beat": ServerFrame(beat=BeatAnswer(2, True)),
    "beat heard": ServerFrame(beat_heard=1),
    "report taken": ServerFrame(taken=["1"]),
    "unknown report taken": ServerFrame(taken=["77"]),
    "report refused": ServerFrame(refused_reports=[RefusedReport("1", "EPOCH_STALE")]),
    "unknown report refused": ServerFrame(refused_reports=[RefusedReport("77", "EPOCH_STALE")]),
    "grant": ServerFrame(grants=[Grant("new", 6, "work")]),
    "grant held already": ServerFrame(grants=[Grant("held", 5, "work")]),
    "grant of an older epoch": ServerFrame(grants=[Grant("held", 4, "work")]),
    "grant of a newer epoch": ServerFrame(grants=[Grant("held", 6, "work")]),
    "grants beyond the credit": ServerFrame(grants=[Grant("new", 6, "work"), Grant("more", 7, "work")]),
    "revoked": ServerFrame(revoked=[Refused("held", 5, "RUN_CANCELLED")]),
    "another epoch revoked": ServerFrame(revoked=[Refused("held", 4, "RUN_CANCELLED")]),
    "unknown revoked": ServerFrame(revoked=[Refused("other", 5, "RUN_CANCELLED")]),
    "claim": ServerFrame(claims=[Lease("held", 5)]),
    "unknown claim": ServerFrame(claims=[Lease("other", 5)]),
    "note": ServerFrame(notes=["note"]),
    "credit seen": ServerFrame(credit_seen=1),
    "unstated credit seen": ServerFrame(credit_seen=99),
    "demand": ServerFrame(demand=4),
    "negative demand": ServerFrame(demand=-4),
    "drain": ServerFrame(is_draining=True),
}

# Every other frame is heard without an action.
SERVED: dict[str, str] = dict.fromkeys(FRAMES, "") | {
    "attached": "redial:ATTACHED_TWICE",
    "attached with a refused lease": "redial:ATTACHED_TWICE",
    "attached with invalid times": "redial:ATTACHED_TWICE",
    "fault": "redial:FLOOD",
    "instance ended": "end_reason redial:INSTANCE_ENDED",
    "beat refused": "end_reason redial:INSTANCE_ENDED",
    "beat refused, in the last frame": "end_reason redial:INSTANCE_ENDED",
    "answer to no beat": "redial:BEAT_ANSWER_UNEXPECTED",
    "report taken": "reports_taken",
    "report refused": "reports_refused",
    "grant": "grants",
    "grant of an older epoch": "refuses:EPOCH_STALE",
    "grant of a newer epoch": "lost grants",
    "grants beyond the credit": "grants refuses:NO_CAPACITY",
    "revoked": "revoked",
    "unknown claim": "refuses:NOT_HELD",
    "note": "notes",
}

ENDING = {
    "fault": "redial:FLOOD",
    "instance ended": "end_reason redial:INSTANCE_ENDED",
    "beat refused, in the last frame": "end_reason redial:INSTANCE_ENDED",
}

TABLE: dict[str, dict[str, str]] = {
    "dialled": dict.fromkeys(FRAMES, "redial:ATTACHED_EXPECTED") | ENDING,
    "attaching": dict.fromkeys(FRAMES, "redial:ATTACHED_EXPECTED")
    | ENDING
    | {"attached": "has_resumed", "attached with a refused lease": "has_resumed"}
    | {"attached with invalid times": "redial:TIMING_INVALID"},
    "live": SERVED,
    "leaving": SERVED,
    "gone": dict.fromkeys(FRAMES, ""),
}

CELLS = [(state, frame) for state in STATES for frame in FRAMES]


def test_table_is_complete():
    assert set(TABLE) == set(STATES)
    for state, row in TABLE.items():
        assert set(row) == set(FRAMES), state
    reached = {stream.state for make in STATES.values() for stream in make().streams.values()}
    assert reached == set(StreamState)


@pytest.mark.parametrize(("state", "frame"), CELLS, ids=[f"{s}-{f}".replace(" ", "_") for s, f in CELLS])
def test_frame_in_state_has_its_answer(state: str, frame: str):
    holder = STATES[state]()
    seen = named(holder.receive(HERE, FRAMES[frame], EXECUTION.beat + 0.1))
    answer = holder.take_frame(HERE, EXECUTION.beat + 0.1) if state in ("live", "leaving") else None
    if answer is not None:
        seen += [f"refuses:{each.reason}" for each in answer.refused]
    assert seen == TABLE[state][frame].split()


def test_what_comes_with_the_attached_is_served():
    holder = attaching()
    frame = ServerFrame(attached=ATTACHED, demand=3, notes=["note"])
    assert named(holder.receive(HERE, frame, 0.1)) == ["notes", "has_resumed"]
    assert holder.streams[HERE].demand == 3


def test_ended_instance_ends_every_lease_and_dials_every_stream_anew():
    holder = live()
    holder.dialled("there:2", 0.0)
    first = holder.instance_id
    effects = holder.receive(HERE, FRAMES["beat refused"], 3.0)
    assert named(effects) == ["end_reason", "redial:INSTANCE_ENDED", "redial:INSTANCE_ENDED"]
    assert holder.instance_id != first
    assert holder.leases == {}
    assert holder.reports_unanswered == 1, "a report is worth what its epoch is worth"
    assert not holder.may_start(3.0)
    assert holder.is_fenced


def test_end_of_an_older_instance_says_nothing_of_the_present_one():
    holder = live()
    holder.dialled("there:2", 0.0)
    holder.take_frame("there:2", 0.0)
    holder.receive(HERE, FRAMES["beat refused"], 3.0)
    second = holder.instance_id
    effects = holder.receive("there:2", FRAMES["instance ended"], 3.0)
    assert effects == HolderEffects(redials=[Redial("there:2", "INSTANCE_ENDED")])
    assert holder.instance_id == second


def test_answer_to_an_older_instance_does_not_lift_the_fence():
    holder = live()
    holder.dialled("there:2", 0.0)
    holder.take_frame("there:2", 0.0)
    holder.receive(HERE, FRAMES["beat refused"], 3.0)
    holder.receive("there:2", ServerFrame(attached=ATTACHED), 3.0)
    assert not holder.may_start(3.0)


def test_unknown_stream_twice_dialled_is_a_bug():
    holder = dialled()
    with pytest.raises(ValueError, match="still known"):
        holder.dialled(HERE, 1.0)
