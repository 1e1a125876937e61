"""The rules of a circuit: it opens, is probed by so many at once, and closes or opens again (S20)."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.coordinator.core.circuits import (
    SLOTS,
    Circuit,
    CircuitPolicy,
    CircuitState,
    CircuitVisit,
    OutcomeWindow,
    Permit,
    ProbeOutcome,
    opened_by_hand,
    reset,
    visited,
    waiting_at,
    wave,
)

SECOND = 1_000_000
POLICY = CircuitPolicy()
NOW = 1_800_000_000 * SECOND
CLOSED, OPEN, HALF_OPEN = CircuitState
NEW = Circuit("default", "http.request@1 example.org:443")


def counts(newest: int) -> tuple[int, ...]:
    return (newest, *(0,) * (SLOTS - 1))


def bring(circuit: Circuit, now: int = NOW, *, answers: int = 0, failures: int = 0, **more: Any) -> Circuit:
    """The circuit after a visit that knows its generation."""
    told: dict[str, Any] = {"answers": counts(answers), "failures": counts(failures)}
    asked: Any = {"coordinator": "c1", "generation": circuit.generation} | told | more
    return visited(circuit, CircuitVisit("default", circuit.target, **asked), POLICY, now)


def opened() -> Circuit:
    return bring(NEW, failures=10)


def half_open(*works: str) -> tuple[Circuit, int]:
    """With permits for these works, and the time."""
    now = NOW + POLICY.cool_down
    return bring(opened(), now, asks=works), now


def works_of(circuit: Circuit) -> list[str]:
    return [permit.work for permit in circuit.permits]


# Opening


def test_too_few_failures_open_nothing() -> None:
    assert bring(NEW, failures=9).state is CLOSED


def test_enough_failures_open_it_for_the_cool_down() -> None:
    circuit = opened()
    assert (circuit.state, circuit.generation, circuit.openings) == (OPEN, 1, 1)
    assert (circuit.open_time, circuit.retry_time) == (NOW, NOW + POLICY.cool_down)
    assert circuit.last_failure_time == NOW


def test_failures_below_the_share_open_nothing() -> None:
    circuit = bring(NEW, answers=20, failures=19)
    assert circuit.state is CLOSED
    assert bring(circuit, failures=1).state is OPEN


def test_answers_alone_never_open_it() -> None:
    """The share may still be reached by failures of before, of which somebody has judged already."""
    circuit = replace(NEW, window=OutcomeWindow(NOW // SECOND, counts(0), counts(9)))
    assert bring(circuit, answers=1).state is CLOSED


def test_failures_are_forgotten_with_their_window() -> None:
    circuit = bring(NEW, failures=9)
    assert bring(circuit, NOW + POLICY.window, failures=1).state is CLOSED
    assert bring(circuit, NOW + POLICY.window - SECOND, failures=1).state is OPEN


def test_outcomes_count_by_their_age() -> None:
    old = CircuitVisit("default", NEW.target, "c1", failures=(0,) * (SLOTS - 1) + (9,))
    circuit = visited(NEW, old, POLICY, NOW)
    assert bring(circuit, failures=1).state is OPEN
    assert bring(circuit, NOW + SECOND, failures=1).state is CLOSED


def test_a_clock_that_was_set_back_moves_no_window() -> None:
    circuit = bring(NEW, failures=3)
    assert bring(circuit, NOW - 60 * SECOND).window == circuit.window


def test_a_late_outcome_of_an_earlier_opening_changes_nothing() -> None:
    closed = reset(opened())
    assert bring(closed, generation=0, failures=50) == closed
    assert bring(closed, failures=10).state is OPEN


def test_outcomes_do_not_count_while_it_is_open() -> None:
    circuit = opened()
    assert bring(circuit, answers=100, failures=100) == circuit


# Probing


def test_no_permit_is_given_before_the_cool_down_is_over() -> None:
    circuit = bring(opened(), NOW + POLICY.cool_down - 1, asks=("a",))
    assert (circuit.state, circuit.permits) == (OPEN, ())


def test_so_many_permits_are_given_and_no_more() -> None:
    circuit, now = half_open("a", "b")
    circuit = bring(circuit, now, asks=("c", "d"))
    assert (circuit.state, works_of(circuit)) == (HALF_OPEN, ["a", "b", "c"])
    assert circuit.retry_time == 0


def test_a_permit_that_is_over_is_given_to_another() -> None:
    circuit, now = half_open("a", "b", "c")
    assert works_of(bring(circuit, now + POLICY.permit_term - 1, asks=("d",))) == ["a", "b", "c"]
    assert works_of(bring(circuit, now + POLICY.permit_term, asks=("d",))) == ["d"]


def test_a_permit_is_renewed_by_its_probe() -> None:
    circuit, now = half_open("a", "b")
    later = now + POLICY.permit_term // 2
    circuit = bring(circuit, later, renews=("a", "z"))
    assert circuit.permits == (Permit("a", later + POLICY.permit_term), Permit("b", now + POLICY.permit_term))


def test_a_permit_that_is_over_is_not_renewed() -> None:
    circuit, now = half_open("a")
    assert bring(circuit, now + POLICY.permit_term, renews=("a",)).permits == ()


def test_a_permit_that_is_given_back_is_free_at_once() -> None:
    circuit, now = half_open("a", "b", "c")
    assert works_of(bring(circuit, now, returns=("b",), asks=("d",))) == ["a", "c", "d"]


def test_enough_answers_close_it() -> None:
    circuit, now = half_open("a", "b", "c")
    circuit = bring(circuit, now, probes=(ProbeOutcome("a", True), ProbeOutcome("b", True)))
    assert (circuit.state, works_of(circuit), circuit.probes_answered) == (HALF_OPEN, ["c"], 2)
    circuit = bring(circuit, now, probes=(ProbeOutcome("c", True),))
    assert (circuit.state, circuit.openings, circuit.permits) == (CLOSED, 0, ())
    assert sum(circuit.window.failures) == 0
    assert circuit.generation == 1


def test_one_failed_probe_opens_it_again_for_longer() -> None:
    circuit, now = half_open("a", "b", "c")
    circuit = bring(circuit, now, probes=(ProbeOutcome("a", True), ProbeOutcome("b", False), ProbeOutcome("c", True)))
    assert (circuit.state, circuit.generation, circuit.openings) == (OPEN, 2, 2)
    assert (circuit.retry_time, circuit.permits) == (now + 2 * POLICY.cool_down, ())


def test_the_cool_down_grows_to_its_limit() -> None:
    assert [POLICY.cool_down_of(n) // SECOND for n in (1, 2, 3, 4, 5, 99)] == [30, 60, 120, 240, 300, 300]


def test_an_outcome_without_a_permit_is_old() -> None:
    circuit, now = half_open("a")
    assert bring(circuit, now, probes=(ProbeOutcome("z", False),)) == circuit
    # The same probe, told twice.
    once = bring(circuit, now, probes=(ProbeOutcome("a", True),))
    assert bring(once, now, probes=(ProbeOutcome("a", False),)) == once


def test_a_failed_probe_of_an_earlier_opening_changes_nothing() -> None:
    circuit, now = half_open("a")
    again = bring(circuit, now, probes=(ProbeOutcome("a", False),))
    later = again.retry_time
    probed = bring(again, later, asks=("a",))
    assert bring(probed, later, generation=1, probes=(ProbeOutcome("a", False),)) == probed


# By hand


def test_it_is_opened_by_hand_until_a_time() -> None:
    circuit = opened_by_hand(NEW, NOW + 3600 * SECOND, NOW)
    assert opened_by_hand(circuit, NOW + 3600 * SECOND, NOW + SECOND) == circuit
    assert (circuit.state, circuit.generation) == (OPEN, 1)
    assert bring(circuit, NOW + 3599 * SECOND, asks=("a",)).state is OPEN
    assert bring(circuit, NOW + 3600 * SECOND, asks=("a",)).state is HALF_OPEN


def test_a_reset_closes_it_and_forgets_everything() -> None:
    circuit = reset(half_open("a")[0])
    assert (circuit.state, circuit.generation, circuit.permits, circuit.retry_time) == (CLOSED, 2, (), 0)
    assert reset(circuit) == circuit


# Waiting


def test_the_work_that_waits_is_counted_over_all_coordinators_that_have_said_so_lately() -> None:
    circuit = bring(bring(opened(), waiting=5), coordinator="c2", waiting=7)
    assert waiting_at(circuit, NOW) == 12
    circuit = bring(circuit, waiting=0)
    assert waiting_at(circuit, NOW) == 7
    assert waiting_at(circuit, NOW + 60 * SECOND) == 0
    assert bring(circuit, NOW + 60 * SECOND).waiting == ()


def test_waves_grow_to_a_limit() -> None:
    assert [wave(n) for n in (0, 1, 2, 99)] == [10, 20, 40, 2_000]


# Whatever is brought, in any order

_WORKS = st.sampled_from("abcdefgh")
_STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "passed": st.integers(0, 40),
            "lag": st.integers(0, 1),
            "failures": st.integers(0, 12),
            "answers": st.integers(0, 12),
            "asks": st.lists(_WORKS, max_size=5, unique=True),
            "renews": st.lists(_WORKS, max_size=3),
            "returns": st.lists(_WORKS, max_size=2),
            "probes": st.lists(st.tuples(_WORKS, st.booleans()), max_size=3),
            "by_hand": st.sampled_from(["", "", "", "", "open", "reset"]),
        }
    ),
    max_size=30,
)


@given(_STEPS)
def test_whatever_happens_the_permits_are_few_and_late_outcomes_change_nothing(steps: list[dict[str, Any]]) -> None:
    circuit, now = NEW, NOW
    for step in steps:
        now += step["passed"] * SECOND
        if step["by_hand"]:
            changed = reset(circuit) if step["by_hand"] == "reset" else opened_by_hand(circuit, now + 7 * SECOND, now)
            assert changed.generation >= circuit.generation
            circuit = changed
        generation = circuit.generation - step["lag"]
        visit = CircuitVisit(
            "default",
            NEW.target,
            "c1",
            generation,
            counts(step["answers"]),
            counts(step["failures"]),
            tuple(ProbeOutcome(*each) for each in step["probes"]),
            tuple(step["asks"]),
            tuple(step["renews"]),
            tuple(step["returns"]),
        )
        before, circuit = circuit, visited(circuit, visit, POLICY, now)
        assert len(circuit.permits) <= POLICY.permits_max
        assert len(set(works_of(circuit))) == len(circuit.permits)
        assert not circuit.permits or circuit.state is HALF_OPEN
        assert (circuit.retry_time > 0) == (circuit.state is OPEN)
        assert circuit.generation - before.generation in (0, 1)
        if step["lag"]:
            # It says what an earlier opening found out: it may take and give back permits, and nothing else.
            told_nothing = replace(visit, answers=counts(0), failures=counts(0), probes=())
            assert circuit == visited(before, told_nothing, POLICY, now)
        taken = {work for work in works_of(circuit) if work not in works_of(before)}
        assert taken <= set(step["asks"])
