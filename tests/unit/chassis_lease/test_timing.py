"""The timing has the designed values, and wrong ones are refused."""

import dataclasses

import pytest

from services.chassis.lease.timing import EXECUTION, RUN, LeaseTiming


@pytest.mark.parametrize(("timing", "seconds"), [(EXECUTION, (10, 2, 6, 12, 1, 1)), (RUN, (15, 3, 8, 16, 10, 3))])
def test_terms_are_those_of_the_design(timing: LeaseTiming, seconds: tuple[float, ...]):
    assert dataclasses.astuple(timing) == (*seconds, 5.0)


def test_scale_touches_every_value():
    scaled = EXECUTION.scaled(0.1)
    assert dataclasses.astuple(scaled) == tuple(0.1 * value for value in dataclasses.astuple(EXECUTION))
    assert scaled.second_look == pytest.approx(0.2)


def test_scale_must_be_positive():
    with pytest.raises(ValueError, match="must be positive"):
        EXECUTION.scaled(0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"beat": 0},
        {"beat": 7},
        {"beat": 4},
        {"self_fence": 11},
        {"granted_again": 10},
        {"idempotent_grace": -1},
        {"closed_grace": 0.5},
        {"grant_answer": 0},
    ],
)
def test_order_that_makes_it_safe_is_kept(wrong: dict[str, float]):
    with pytest.raises(ValueError, match=r"a lease needs|a dead stream must"):
        dataclasses.replace(EXECUTION, **wrong)


@pytest.mark.parametrize("timing", [EXECUTION, RUN])
def test_dead_stream_on_a_live_process_is_replaced_within_ten_seconds(timing: LeaseTiming):
    """L11: the next beat is sent and not answered. Each is noticed at the next of eight looks per beat."""
    looks = 2 * timing.beat / 8
    assert timing.beat + timing.silence + looks < 10.0
