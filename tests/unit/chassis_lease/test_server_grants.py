"""The server's side keeps account of credit, grants and answers that it owes."""

from collections.abc import Callable

import pytest

from services.chassis.lease.effects import ServerEffects
from services.chassis.lease.frames import (
    FRAME_ITEMS_MAX,
    OUTGOING_MAX,
    Attach,
    Beat,
    Credit,
    Grant,
    HolderFrame,
    Lease,
    Refused,
    RefusedReport,
    Report,
    ServerFrame,
)
from services.chassis.lease.grants import LostGrants
from services.chassis.lease.server import ServerSessionRules, ServerState
from services.chassis.lease.timing import EXECUTION
from tests.support.probe import some

ANSWER = EXECUTION.grant_answer


def attached(credit: int = 10, wake_writer: Callable[[], None] = lambda: None) -> ServerSessionRules:
    session = ServerSessionRules("session", "server", EXECUTION, wake_writer)
    session.receive(HolderFrame(attach=Attach("holder", "instance", 100)), 0.0)
    session.accept([])
    assert session.take_frame() is not None
    session.receive(HolderFrame(credit=Credit(1, credit)), 0.0)
    return session


def grants(*names: str) -> list[Grant]:
    return [Grant(name, 1, f"work of {name}") for name in names]


def grant(session: ServerSessionRules, *names: str, now: float = 0.0) -> None:
    assert session.take_credit(len(names)) == len(names)
    assert session.queue_grants(grants(*names), now)


def frame_of(session: ServerSessionRules, items_max: int = FRAME_ITEMS_MAX) -> ServerFrame:
    return some(session.take_frame(items_max))


def taken(effects: ServerEffects) -> list[str]:
    return [each.lease_id for each in effects.taken]


def test_no_more_is_granted_than_the_stated_credit():
    session = attached(credit=3)
    assert session.credit == 3
    assert session.take_credit(5) == 3
    assert session.credit == 0
    assert session.take_credit(1) == 0


def test_grant_without_reserved_credit_is_a_bug():
    session = attached(credit=3)
    with pytest.raises(ValueError, match="cannot give back 1 of 0 reserved"):
        session.queue_grants(grants("a"), 0.0)


def test_reserved_credit_can_be_given_back():
    session = attached(credit=3)
    assert session.take_credit(2) == 2
    session.give_back(1)
    assert session.credit == 2
    with pytest.raises(ValueError, match="cannot give back 2 of 1 reserved"):
        session.give_back(2)


def test_statement_counts_what_crossed_it_on_the_way():
    session = attached(credit=10)
    grant(session, "a", "b", "c")
    frame_of(session)
    # The holder had seen one of the three when it stated that it takes five more.
    session.receive(HolderFrame(grants_seen=1, credit=Credit(2, 5)), 0.0)
    assert session.credit == 3


def test_lowering_statement_is_confirmed_when_nothing_more_can_come_under_the_old_one():
    session = attached(credit=10)
    assert session.take_credit(4) == 4
    session.receive(HolderFrame(credit=Credit(2, 0)), 0.0)
    assert session.credit == 0
    assert session.take_frame() is None, "a claim is still being made under the old statement"
    session.give_back(2)
    assert session.queue_grants(grants("a", "b"), 0.0)
    frame = frame_of(session, items_max=1)
    assert ([each.lease_id for each in frame.grants], frame.credit_seen) == (["a"], 0)
    frame = frame_of(session)
    assert ([each.lease_id for each in frame.grants], frame.credit_seen) == (["b"], 2)


def test_raising_statement_needs_no_confirmation():
    session = attached(credit=10)
    session.receive(HolderFrame(credit=Credit(2, 11)), 0.0)
    assert session.take_frame() is None
    assert session.credit == 11


def test_statement_that_only_follows_the_grants_is_not_lowering():
    session = attached(credit=10)
    grant(session, "a", "b")
    frame_of(session)
    session.receive(HolderFrame(grants_seen=2, credit=Credit(2, 8)), 0.0)
    assert session.take_frame() is None
    assert session.credit == 8


def test_draining_holder_and_closed_stream_take_no_grant():
    session = attached()
    assert session.take_credit(2) == 2
    session.receive(HolderFrame(is_draining=True), 0.0)
    assert session.state is ServerState.DRAINING
    assert session.credit == 0
    assert session.take_credit(1) == 0
    assert not session.queue_grants(grants("a"), 0.0)
    session.lost()
    assert not session.queue_grants(grants("b"), 0.0)
    assert session.take_frame() is None


def test_one_number_takes_all_grants_up_to_it():
    session = attached()
    grant(session, "a", "b")
    frame_of(session)
    grant(session, "c")
    frame_of(session)
    assert taken(session.receive(HolderFrame(grants_seen=1), 0.0)) == ["a"]
    assert taken(session.receive(HolderFrame(grants_seen=3), 0.0)) == ["b", "c"]
    assert taken(session.receive(HolderFrame(grants_seen=3), 0.0)) == []
    assert session.lost() == LostGrants([], [])


def test_refused_grant_is_not_among_the_taken():
    session = attached()
    grant(session, "a", "b")
    frame_of(session)
    refused = [Refused("a", 1, "NO_CAPACITY")]
    effects = session.receive(HolderFrame(grants_seen=2, refused=refused), 0.0)
    assert taken(effects) == ["b"]
    assert effects.refused == refused


def test_sent_grant_stays_the_holders_however_long_it_says_nothing():
    session = attached()
    grant(session, "a", now=0.0)
    frame_of(session)
    for passed in range(1, 100):
        assert session.tick(passed * ANSWER) == []
    assert session.take_frame() is None, "nor is it revoked"
    assert taken(session.receive(HolderFrame(grants_seen=1), 100 * ANSWER)) == ["a"]


def test_only_what_is_unsent_is_withdrawn_when_the_time_for_sending_is_over():
    session = attached()
    grant(session, "a", "b", now=0.0)
    frame_of(session, items_max=1)
    assert session.tick(ANSWER - 0.1) == []
    assert session.tick(ANSWER) == grants("b")
    assert session.lost() == LostGrants([], grants("a"))


def test_grant_that_never_left_is_withdrawn_without_a_word():
    session = attached(credit=1)
    grant(session, "a", now=0.0)
    assert session.tick(ANSWER) == grants("a")
    assert session.take_frame() is None
    assert session.credit == 1


def test_lost_stream_tells_what_never_left_from_what_is_in_doubt():
    session = attached()
    grant(session, "a", "b", "c")
    frame_of(session, items_max=2)
    session.receive(HolderFrame(grants_seen=1), 0.0)
    assert session.lost() == LostGrants(grants("c"), grants("b"))


def test_frame_gathers_all_that_is_owed():
    session = attached()
    session.receive(HolderFrame(reports=[Report("1", "x", 1, None), Report("2", "y", 1, None)]), 0.0)
    session.acknowledge(["1"])
    session.refuse_reports([RefusedReport("2", "EPOCH_STALE")])
    session.revoke([Refused("y", 1, "RUN_CANCELLED")])
    session.claim([Lease("z", 9)])
    session.post(["note"])
    session.set_demand(7)
    session.drain()
    grant(session, "a")
    assert frame_of(session) == ServerFrame(
        taken=["1"],
        refused_reports=[RefusedReport("2", "EPOCH_STALE")],
        grants=grants("a"),
        revoked=[Refused("y", 1, "RUN_CANCELLED")],
        claims=[Lease("z", 9)],
        notes=["note"],
        demand=7,
        is_draining=True,
    )
    assert session.take_frame() is None
    assert session.unanswered.count == 0


def test_frame_holds_no_more_items_than_asked_and_nothing_overtakes_a_grant():
    session = attached()
    session.acknowledge(["1", "2"])
    grant(session, "a", "b", "c")
    session.revoke([Refused("c", 1, "RUN_CANCELLED")])
    seen = []
    while (frame := session.take_frame(2)) is not None:
        assert len(frame.taken) + len(frame.grants) + len(frame.revoked) <= 2
        seen += [*[each.lease_id for each in frame.grants], *[f"not {each.lease_id}" for each in frame.revoked]]
        seen += list(frame.taken)
    assert sorted(seen) == ["1", "2", "a", "b", "c", "not c"]
    assert seen.index("c") < seen.index("not c")


def test_writer_is_woken_for_all_that_cannot_wait():
    woken: list[str] = []
    session = attached(wake_writer=lambda: woken.append("now"))
    calls: dict[str, Callable[[], object]] = {
        "grant": lambda: session.take_credit(2) and session.queue_grants(grants("a"), 0.0),
        "give back": lambda: session.give_back(1),
        "refuse": lambda: session.refuse_reports([RefusedReport("1", "EPOCH_STALE")]),
        "revoke": lambda: session.revoke([]),
        "claim": lambda: session.claim([]),
        "post": lambda: session.post([]),
        "demand": lambda: session.set_demand(1),
        "drain": session.drain,
        "acknowledge": lambda: session.acknowledge(["1"]),
        "take a drain": lambda: session.receive(HolderFrame(is_draining=True), 0.0),
        "acknowledge while it drains": lambda: session.acknowledge(["2"]),
        "close": lambda: session.close("SERVER_STOPPING", ""),
    }
    told = set()
    for name, call in calls.items():
        woken.clear()
        call()
        told |= {name} if woken else set()
    assert told == set(calls) - {"acknowledge", "take a drain"}


def test_demand_is_said_at_once_only_when_it_changes_much():
    session = attached()
    session.set_demand(10)
    assert frame_of(session).demand == 10
    session.set_demand(12)
    assert session.take_frame() is None
    session.receive(HolderFrame(beat=Beat(1, True, 0)), 0.0)
    session.renewed(1)
    assert frame_of(session).demand == 12
    session.set_demand(0)
    assert frame_of(session).demand == 0
    session.set_demand(1)
    assert frame_of(session).demand == 1


def test_holder_that_never_reads_is_closed_at_the_bound():
    session = attached()
    session.post(["note"] * OUTGOING_MAX)
    assert session.is_serving
    session.post(["one too many"])
    assert session.state is ServerState.CLOSED
    frame = frame_of(session)
    assert some(frame.fault).reason == "NOT_READING"
    session.post(["more"])
    session.revoke([Refused("x", 1, "X")])
    assert session.take_frame() is None
