"""Values from modules are clamped into range and never refused."""

import math
from typing import Any

import pytest

from services.runner.core.untrusted import (
    COST_TOKENS_MAX,
    MESSAGE_CHARACTERS_MAX,
    RETRY_AFTER_SECONDS_MAX,
    clamp_cost,
    clamp_fraction,
    clamp_seconds,
    clamp_text,
)


class Unwritable:
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("a\0b", "a\N{REPLACEMENT CHARACTER}b"),
        ("bad file \udcff", "bad file ?"),
        (404, "404"),
        (Unwritable(), "a Unwritable that cannot be written"),
        ("x" * 10_000, "x" * MESSAGE_CHARACTERS_MAX),
    ],
)
def test_texts_are_bounded_and_can_be_encoded(said: object, text: str) -> None:
    assert clamp_text(said) == text


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (None, None),
        (2, 2.0),
        ("30", 30.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        (-1.0, None),
        (math.nan, None),
        (math.inf, None),
        (10**400, None),
        (1e300, RETRY_AFTER_SECONDS_MAX),
        ([30], None),
    ],
)
def test_a_wait_is_a_number_of_seconds_or_none(said: object, seconds: float | None) -> None:
    assert clamp_seconds(said) == seconds


@pytest.mark.parametrize(("said", "tokens"), [(5, 5), (1.5, 1), (-3, 0), (10**30, COST_TOKENS_MAX), ("x", 0)])
def test_costs_are_whole_and_bounded(said: Any, tokens: int) -> None:
    assert clamp_cost(said) == tokens


@pytest.mark.parametrize(("said", "fraction"), [(0.5, 0.5), (7, 1.0), (-1, 0.0), (math.nan, 0.0), (None, 0.0)])
def test_progress_is_a_fraction(said: object, fraction: float) -> None:
    assert clamp_fraction(said) == fraction
