"""A holder's leases, reports, credit and time."""

import itertools
from collections.abc import Sequence

import pytest

from services.chassis.lease.effects import HolderEffects, Redial
from services.chassis.lease.frames import (
    FRAME_ITEMS_MAX,
    OUTGOING_MAX,
    REPORTS_IN_FLIGHT_MAX,
    Attach,
    Attached,
    BeatAnswer,
    Credit,
    Grant,
    HolderFrame,
    Lease,
    Refused,
    RefusedReport,
    Report,
    ServerFrame,
)
from services.chassis.lease.holder import DENIED_MAX, HolderRules
from services.chassis.lease.timing import EXECUTION
from tests.support.lease_effects import named
from tests.support.probe import some

A, B = "a:1", "b:2"
FENCE, BEAT = EXECUTION.self_fence, EXECUTION.beat


def holder_of(capacity: int = 10) -> HolderRules:
    ids = (f"instance-{n}" for n in itertools.count(1))
    return HolderRules(Attach("holder", capacity=capacity, labels={"gpu": "true"}), EXECUTION, lambda: next(ids))


def attach(holder: HolderRules, address: str, now: float = 0.0, refused: Sequence[Refused] = ()) -> None:
    holder.dialled(address, now)
    assert holder.take_frame(address, now) is not None
    holder.receive(address, ServerFrame(attached=Attached("s", "server", EXECUTION, refused)), now)


def attached(*addresses: str, capacity: int = 10, held: Sequence[str] = ()) -> HolderRules:
    """A holder that is attached everywhere and has settled its credit with all servers. The first granted `held`."""
    holder = holder_of(capacity)
    for address in addresses:
        attach(holder, address)
    while owing := list(holder.owing()):
        for address in owing:
            credit = some(said(holder, address).credit)
            holder.receive(address, ServerFrame(credit_seen=credit.number), 0.0)
    if held:
        grant(holder, addresses[0], *held)
    return holder


def left(holder: HolderRules) -> dict[str, int]:
    return {address: stream.left for address, stream in holder.streams.items()}


def said(holder: HolderRules, address: str, now: float = 0.0) -> HolderFrame:
    return some(holder.take_frame(address, now))


def grant(holder: HolderRules, address: str, *names: str, epoch: int = 1) -> None:
    holder.receive(address, ServerFrame(grants=[Grant(name, epoch, name) for name in names]), 0.0)


def report(name: str, epoch: int = 1) -> Report:
    return Report(f"r-{name}", name, epoch, None)


# ── attach ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_attach_names_the_holder_and_all_that_it_holds():
    holder = attached(A)
    grant(holder, A, "x", epoch=7)
    holder.dialled(B, 1.0)
    frame = said(holder, B, 1.0)
    assert frame.attach is not None
    assert frame.attach.held == [Lease("x", 7)]
    assert frame.attach.labels == {"gpu": "true"}
    assert frame == HolderFrame(attach=frame.attach), "nothing goes with an attach"
    assert holder.take_frame(B, 1.0) is None, "nothing is said until it is answered"


def test_lease_refused_at_the_attach_is_gone():
    holder = attached(A, held=["x", "y"])
    holder.lost(A)
    holder.dialled(A, 1.0)
    said(holder, A, 1.0)
    refused = [Refused("x", 1, "EPOCH_STALE")]
    effects = holder.receive(A, ServerFrame(attached=Attached("s", "server", EXECUTION, refused)), 1.0)
    assert effects.lost == refused
    assert holder.leases == {"y": 1}


# ── reports ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_report_goes_to_the_server_that_granted_and_is_forgotten_when_taken():
    holder = attached(A, B)
    grant(holder, B, "x")
    holder.report(report("x"), ends_lease=True)
    assert A not in set(holder.owing())
    assert said(holder, B).reports == [report("x")]
    assert holder.leases == {"x": 1}, "held until the answer"
    assert holder.receive(B, ServerFrame(taken=["r-x"]), 0.0) == HolderEffects(reports_taken=[report("x")])
    assert holder.leases == {}
    assert holder.reports_unanswered == 0
    assert holder.receive(B, ServerFrame(taken=["r-x"]), 0.0) == HolderEffects(), "a second answer changes nothing"


def test_refused_report_ends_its_lease_and_is_never_sent_again():
    holder = attached(A, held=["x"])
    holder.report(report("x"), ends_lease=True)
    said(holder, A)
    refused = ServerFrame(refused_reports=[RefusedReport("r-x", "EPOCH_STALE")])
    assert holder.receive(A, refused, 0.0) == HolderEffects(reports_refused=[(report("x"), "EPOCH_STALE")])
    assert (holder.leases, holder.reports_unanswered) == ({}, 0)


def test_report_that_the_server_could_not_read_ends_no_lease():
    holder = attached(A, held=["x"])
    holder.report(report("x"), ends_lease=True)
    said(holder, A)
    refused = ServerFrame(refused_reports=[RefusedReport("r-x", "REPORT_INVALID")])
    assert holder.receive(A, refused, 0.0) == HolderEffects(reports_refused=[(report("x"), "REPORT_INVALID")])
    assert (holder.leases, holder.reports_unanswered) == ({"x": 1}, 0)
    other = Report("other", "x", 1, None)
    holder.report(other, ends_lease=True)
    assert said(holder, A).reports == [other]
    holder.receive(A, ServerFrame(taken=["other"]), 0.0)
    assert holder.leases == {}


def test_unanswered_reports_of_a_lost_stream_go_to_another():
    holder = attached(A, B, held=["x", "y"])
    holder.report(report("x"), ends_lease=True)
    said(holder, A)
    holder.report(report("y"), ends_lease=False)
    holder.lost(A)
    assert said(holder, B).reports == [report("x"), report("y")]


def test_reports_wait_for_a_stream_when_there_is_none():
    holder = attached(A, held=["x"])
    holder.lost(A)
    holder.report(report("x"), ends_lease=True)
    assert holder.reports_unanswered == 1
    attach(holder, B)
    assert said(holder, B).reports == [report("x")]


def test_report_of_a_lease_that_is_not_held_is_sent_all_the_same():
    holder = attached(A)
    holder.report(report("stray"), ends_lease=True)
    assert said(holder, A).reports == [report("stray")]


def test_reports_in_flight_are_bounded():
    holder = attached(A)
    for number in range(REPORTS_IN_FLIGHT_MAX + 1):
        holder.report(report(str(number)), ends_lease=False)
    sent = 0
    while (frame := holder.take_frame(A, 0.0)) is not None:
        sent += len(frame.reports)
    assert sent == REPORTS_IN_FLIGHT_MAX
    holder.receive(A, ServerFrame(taken=["r-0"]), 0.0)
    assert len(said(holder, A).reports) == 1


# ── taking back, handing back ────────────────────────────────────────────────────────────────────────────────


def test_revoked_lease_frees_its_place():
    holder = attached(A, capacity=1, held=["x"])
    revoked = [Refused("x", 1, "RUN_CANCELLED")]
    assert holder.receive(A, ServerFrame(revoked=revoked), 0.0) == HolderEffects(revoked=revoked)
    assert said(holder, A).credit == Credit(2, 1)


def test_grant_that_comes_after_its_revocation_by_another_server_is_not_begun():
    holder = attached(A, B)
    assert holder.receive(B, ServerFrame(revoked=[Refused("x", 1, "RUN_CANCELLED")]), 0.0) == HolderEffects()
    assert holder.receive(A, ServerFrame(grants=[Grant("x", 1, "x")]), 0.0) == HolderEffects()
    assert holder.leases == {}
    assert said(holder, A).refused == [Refused("x", 1, "NOT_HELD")]
    grant(holder, A, "x", epoch=2)
    assert holder.leases == {"x": 2}, "the same work, granted anew"


def test_grant_that_comes_after_its_lease_was_refused_at_an_attach_is_not_begun():
    holder = attached(A, held=["x"])
    attach(holder, B, refused=[Refused("x", 1, "LEASE_ENDED")])
    assert holder.receive(A, ServerFrame(grants=[Grant("x", 1, "x")]), 0.0) == HolderEffects()
    assert holder.leases == {}


def test_grant_that_an_ended_instance_left_unread_is_not_begun():
    holder = attached(A, B)
    holder.receive(A, ServerFrame(beat=BeatAnswer(1, False)), 0.0)
    assert holder.receive(B, ServerFrame(grants=[Grant("x", 1, "x")]), 0.0) == HolderEffects(
        redials=[Redial(B, "INSTANCE_ENDED")]
    )
    assert holder.leases == {}


@pytest.mark.parametrize("taker", [A, B])
def test_report_of_a_lease_that_was_taken_back_goes_to_who_took_it(taker):
    holder = attached(A, B, held=["x"])
    holder.receive(taker, ServerFrame(revoked=[Refused("x", 1, "CANCELLED")]), 0.0)
    holder.report(report("x"), ends_lease=True)
    assert said(holder, taker).reports == [report("x")]


def test_report_of_a_lease_that_was_taken_back_by_who_is_gone_goes_to_another():
    holder = attached(A, B, held=["x"])
    holder.receive(A, ServerFrame(revoked=[Refused("x", 1, "CANCELLED")]), 0.0)
    holder.lost(A)
    holder.report(report("x"), ends_lease=True)
    assert said(holder, B).reports == [report("x")]


def test_report_of_a_lease_that_was_taken_back_goes_to_who_took_it_and_not_to_who_asks_for_it_later():
    holder = attached(A, B)
    grant(holder, A, "x")
    holder.receive(A, ServerFrame(revoked=[Refused("x", 1, "CANCELLED")]), 0.0)
    holder.receive(B, ServerFrame(claims=[Lease("x", 1)]), 0.0)
    holder.report(report("x"), ends_lease=True)
    assert said(holder, A).reports == [report("x")]


def test_revocation_of_what_is_reported_already_stops_nothing():
    holder = attached(A, held=["x"])
    holder.report(report("x"), ends_lease=True)
    assert holder.receive(A, ServerFrame(revoked=[Refused("x", 1, "NODE_TIMEOUT")]), 0.0) == HolderEffects()
    assert holder.reports_unanswered == 1


def test_lease_handed_back_is_refused_and_stays_refused():
    holder = attached(A, held=["x"])
    holder.refuse("x", 1, "UNKNOWN_MODULE", "no such module")
    assert holder.leases == {}
    assert said(holder, A).refused == [Refused("x", 1, "UNKNOWN_MODULE", "no such module")]
    grant(holder, A, "x")
    assert said(holder, A).refused == [Refused("x", 1, "NOT_HELD")]
    holder.refuse("x", 1, "AGAIN")
    assert holder.take_frame(A, 0.0) is None


def test_denied_claim_is_binding():
    holder = attached(A, B)
    holder.receive(B, ServerFrame(claims=[Lease("x", 3)]), 0.0)
    assert said(holder, B).refused == [Refused("x", 3, "NOT_HELD")]
    # The grant that was lost turns up after all.
    grant(holder, A, "x", epoch=3)
    assert holder.leases == {}
    assert said(holder, A).refused == [Refused("x", 3, "NOT_HELD")]
    grant(holder, A, "x", epoch=4)
    assert holder.leases == {"x": 4}


def test_claimed_lease_reports_to_its_new_server():
    holder = attached(A, B, held=["x"])
    holder.receive(B, ServerFrame(claims=[Lease("x", 1)]), 0.0)
    holder.report(report("x"), ends_lease=True)
    assert said(holder, B).reports == [report("x")]


# ── credit ───────────────────────────────────────────────────────────────────────────────────────────────────


def amount(frame: HolderFrame) -> int:
    assert frame.credit is not None
    return frame.credit.amount


def confirm(holder: HolderRules, address: str) -> None:
    holder.receive(address, ServerFrame(credit_seen=holder.streams[address].credit_number), 0.0)


def test_free_places_are_divided_among_idle_servers():
    assert left(attached(A, B)) == {A: 5, B: 5}
    three = left(attached(A, B, "c:3"))
    assert sum(three.values()) == 10
    assert min(three.values()) >= 1


def test_first_server_gets_all_until_a_second_one_attaches():
    holder = holder_of(10)
    attach(holder, A)
    assert amount(said(holder, A)) == 10
    attach(holder, B)
    assert holder.take_frame(B, 0.0) is None
    assert amount(said(holder, A)) == 5
    confirm(holder, A)
    assert amount(said(holder, B)) == 5


def test_statement_that_was_never_sent_needs_no_confirmation():
    holder = holder_of(10)
    attach(holder, A)
    list(holder.owing())  # all ten are planned for A…
    attach(holder, B)  # …before it has heard of them
    assert amount(said(holder, A)) + amount(said(holder, B)) == 10
    assert min(left(holder).values()) >= 1


def test_credit_is_called_back_for_a_server_with_demand():
    holder = attached(A, B)
    holder.receive(B, ServerFrame(demand=100), 0.0)
    assert amount(said(holder, A)) == 1
    assert B not in set(holder.owing()), "nothing is promised twice: A may still grant under its old credit"
    grant(holder, A, "crossed")
    confirm(holder, A)
    assert (amount(said(holder, B)), amount(said(holder, A))) == (8, 1)
    grant(holder, B, *[f"x{n}" for n in range(8)])
    assert len(holder.leases) == 9


def test_server_without_any_credit_gets_its_standing_credit_without_asking():
    holder = attached(A, B)
    grant(holder, B, *[f"x{n}" for n in range(5)])
    assert amount(said(holder, A)) == 3
    confirm(holder, A)
    assert amount(said(holder, B)) == 2


def test_credit_stays_where_it_is_while_nobody_needs_it():
    holder = attached(A, B)
    holder.receive(A, ServerFrame(demand=8), 0.0)
    said(holder, B)
    confirm(holder, B)
    said(holder, A)
    assert left(holder) == {A: 9, B: 1}
    holder.receive(A, ServerFrame(demand=0), 0.0)
    assert list(holder.owing()) == []


def test_small_differences_between_busy_servers_stay():
    holder = attached(A, B, capacity=100)
    assert left(holder) == {A: 50, B: 50}
    holder.receive(A, ServerFrame(demand=1_000), 0.0)
    holder.receive(B, ServerFrame(demand=900), 0.0)
    holder.receive(B, ServerFrame(demand=1_100), 0.0)
    assert list(holder.owing()) == []


def test_attach_states_what_the_holder_works_on_at_once_whatever_it_asks_for_now():
    holder = attached(A, capacity=10)
    holder.set_capacity(500)
    holder.dialled(B, 0.0)
    assert some(said(holder, B).attach).capacity == 10


def test_less_capacity_calls_credit_back():
    holder = attached(A, B)
    holder.set_capacity(4)
    assert (amount(said(holder, A)), amount(said(holder, B))) == (2, 2)


def test_place_is_free_once_the_end_is_reported():
    holder = attached(A, capacity=2, held=["x", "y"])
    assert holder.take_frame(A, 0.0) is None, "no credit is called back"
    holder.report(report("x"), ends_lease=True)
    frame = said(holder, A)
    assert (frame.credit, frame.grants_seen) == (Credit(2, 1), 2)


def test_lost_stream_gives_its_credit_to_the_others():
    holder = attached(A, B)
    holder.lost(A)
    assert said(holder, B).credit == Credit(2, 10)
    holder.lost(A)
    assert list(holder.streams) == [B], "it is lost already"


# ── beats and the fence ──────────────────────────────────────────────────────────────────────────────────────


def beat(holder: HolderRules, address: str, now: float) -> HolderFrame:
    holder.tick(now)
    frame = said(holder, address, now)
    assert frame.beat is not None
    return frame


def test_beat_is_due_and_only_one_is_in_flight():
    holder = attached(A)
    holder.tick(BEAT - 0.1)
    assert list(holder.owing()) == []
    first = some(beat(holder, A, BEAT).beat)
    assert (first.number, first.is_full) == (1, True)
    holder.tick(2 * BEAT)
    assert list(holder.owing()) == []
    holder.receive(A, ServerFrame(beat=BeatAnswer(1, True)), 2 * BEAT)
    assert beat(holder, A, 2 * BEAT).beat is not None


def test_beats_tell_changes_and_the_whole_set_when_asked():
    holder = attached(A, held=["x", "y"])
    first = some(beat(holder, A, BEAT).beat)
    assert sorted(first.held) == [("x", 1), ("y", 1)]
    holder.receive(A, ServerFrame(beat=BeatAnswer(1, True), revoked=[Refused("x", 1, "END")]), BEAT)
    grant(holder, A, "z")
    second = some(beat(holder, A, 2 * BEAT).beat)
    assert (second.is_full, second.held, second.gone, second.held_count) == (False, [("z", 1)], ["x"], 2)
    holder.receive(A, ServerFrame(beat=BeatAnswer(2, True, True)), 2 * BEAT)
    third = some(beat(holder, A, 3 * BEAT).beat)
    assert third.is_full


def test_lost_stream_makes_all_others_beat_at_once():
    holder = attached(A, B)
    holder.lost(A)
    assert said(holder, B, 0.1).beat is not None


def test_fence_counts_from_the_sending_of_the_answered_beat():
    holder = attached(A)
    assert holder.may_start(FENCE - 0.1)
    beat(holder, A, BEAT)
    holder.receive(A, ServerFrame(beat=BeatAnswer(1, True)), BEAT + 3)
    assert holder.may_start(BEAT + FENCE - 0.1)
    assert not holder.may_start(BEAT + FENCE)


def test_fence_is_told_once_and_lifted_by_any_server():
    holder = attached(A, B)
    beat(holder, A, BEAT)
    beat(holder, B, BEAT)
    assert named(holder.tick(FENCE)) == ["has_fenced"]
    assert holder.is_fenced
    assert not holder.tick(FENCE + 0.1).has_fenced
    assert holder.receive(B, ServerFrame(beat=BeatAnswer(1, True)), FENCE + 0.2) == HolderEffects(has_resumed=True)


def test_answer_that_comes_too_late_lifts_nothing():
    holder = attached(A)
    beat(holder, A, BEAT)
    holder.tick(FENCE)
    assert holder.receive(A, ServerFrame(beat=BeatAnswer(1, True)), BEAT + FENCE) == HolderEffects()
    assert holder.is_fenced


def test_nothing_starts_before_the_first_attach():
    assert not holder_of().may_start(0.0)


def test_silent_stream_is_dialled_anew():
    holder = attached(A)
    beat(holder, A, BEAT)
    assert Redial(A, "SILENT") not in holder.tick(BEAT + EXECUTION.silence).redials
    assert Redial(A, "SILENT") in holder.tick(BEAT + EXECUTION.silence + 0.1).redials


def test_stream_that_only_waits_for_its_database_is_kept():
    holder = attached(A)
    beat(holder, A, BEAT)
    holder.receive(A, ServerFrame(beat_heard=1), BEAT + EXECUTION.silence)
    assert Redial(A, "SILENT") not in holder.tick(BEAT + EXECUTION.silence + 0.1).redials


def test_holder_keeps_to_the_times_of_the_server():
    holder = holder_of()
    holder.dialled(A, 0.0)
    said(holder, A)
    times = EXECUTION.scaled(0.1)
    holder.receive(A, ServerFrame(attached=Attached("s", "server", times)), 0.0)
    assert said(holder, A).credit is not None
    holder.tick(0.9 * times.beat)
    assert list(holder.owing()) == []
    assert beat(holder, A, times.beat).beat is not None
    assert holder.may_start(0.9 * times.self_fence)
    assert not holder.may_start(times.self_fence)


def test_attach_without_an_answer_is_dialled_anew():
    holder = holder_of()
    holder.dialled(A, 0.0)
    assert holder.tick(FENCE) == HolderEffects()
    assert holder.tick(FENCE + 0.1) == HolderEffects(redials=[Redial(A, "ATTACH_UNANSWERED")])


# ── drain, notes ─────────────────────────────────────────────────────────────────────────────────────────────


def test_drain_tells_every_server_and_takes_no_grant():
    holder = attached(A, B, capacity=2, held=["x"])
    holder.drain()
    frames = [said(holder, A), said(holder, B)]
    assert all(frame.is_draining for frame in frames)
    grant(holder, B, "late")
    assert said(holder, B).refused == [Refused("late", 1, "DRAINING")]
    holder.report(report("x"), ends_lease=True)
    said(holder, A)
    assert (holder.leases, holder.reports_unanswered) == ({"x": 1}, 1)
    holder.receive(A, ServerFrame(taken=["r-x"]), 0.0)
    assert holder.is_drained
    attach(holder, "c:3")
    assert said(holder, "c:3").is_draining


def test_leaving_server_gets_no_more_credit():
    holder = attached(A, B, capacity=2, held=["x"])
    holder.receive(A, ServerFrame(is_draining=True), 0.0)
    holder.report(report("x"), ends_lease=True)
    assert said(holder, A).credit is None
    assert said(holder, B).credit == Credit(2, 2)


def test_notes_go_with_the_stream_and_are_lost_with_it():
    holder = attached(A)
    holder.post(A, ["one", "two"])
    holder.post("unknown:1", ["lost"])
    assert said(holder, A).notes == ["one", "two"]
    holder.post(A, ["three"])
    holder.lost(A)
    attach(holder, A)
    assert said(holder, A).notes == ()


def test_notes_to_a_server_that_does_not_read_are_bounded():
    holder = attached(A)
    holder.post(A, range(OUTGOING_MAX + 5))
    sent: list[object] = []
    while (frame := holder.take_frame(A, 0.0)) is not None:
        sent += frame.notes
    assert len(sent) == OUTGOING_MAX
    assert sent[0] == 5, "the oldest go"


def test_count_of_grants_goes_with_what_else_is_said():
    holder = attached(A, held=["x"])
    assert list(holder.owing()) == []
    assert holder.has_uncounted
    holder.post(A, ["note"])
    assert said(holder, A).grants_seen == 1
    holder.count_grants()
    assert list(holder.owing()) == [], "said already"


def test_count_of_grants_that_finds_no_company_goes_alone():
    holder = attached(A, held=["x"])
    holder.count_grants()
    assert list(holder.owing()) == [A]
    assert said(holder, A) == HolderFrame(grants_seen=1)
    assert list(holder.owing()) == []


def test_count_of_many_grants_waits_for_nothing():
    holder = attached(A, capacity=FRAME_ITEMS_MAX, held=[f"x{number}" for number in range(FRAME_ITEMS_MAX)])
    assert said(holder, A).grants_seen == FRAME_ITEMS_MAX


def test_lease_handed_back_without_a_stream_is_refused_when_it_is_asked_for():
    holder = attached(A, held=["x"])
    holder.lost(A)
    holder.refuse("x", 1, "UNKNOWN_MODULE")
    attach(holder, B)
    said(holder, B)
    holder.receive(B, ServerFrame(claims=[Lease("x", 1)]), 0.0)
    assert said(holder, B).refused == [Refused("x", 1, "NOT_HELD")]


def test_memory_of_denials_is_bounded():
    holder = attached(A)
    count = DENIED_MAX + 1
    holder.receive(A, ServerFrame(claims=[Lease(f"x{number}", 1) for number in range(count)]), 0.0)
    said(holder, A)
    grant(holder, A, "x0")
    assert holder.leases == {"x0": 1}, "the oldest denial is forgotten"
    grant(holder, A, f"x{count - 1}")
    assert said(holder, A).refused == [Refused(f"x{count - 1}", 1, "NOT_HELD")]
