"""Many dead letters are requeued step by step, and no further when they fail again."""

from collections.abc import Callable, Collection
from typing import Any

import pytest

from services.api.app.dead_letters import DeadLetters
from services.api.app.ports import DeadLetterView
from services.api.app.redriving import Redrive, Redriver
from services.api.core.redriving import LaterOutcome, is_failing, next_piece
from services.chassis.grpc.errors import Refusal
from tests.support.manual_clock import ManualClock

SUCCEEDED, FAILED_AGAIN, CANCELLED = LaterOutcome


@pytest.mark.parametrize(
    ("total", "pieces"),
    [(0, []), (1, [1]), (2, [1, 1]), (30, [1, 1, 28]), (100, [1, 4, 95]), (300, [1, 14, 100, 100, 85])],
)
def test_first_one_then_one_in_twenty_then_the_rest_in_pieces(total: int, pieces: list[int]) -> None:
    found, resolved = [], 0
    while piece := next_piece(total, resolved):
        found.append(piece)
        resolved += piece
    assert found == pieces


@pytest.mark.parametrize(
    ("succeeded", "not_succeeded", "failing"),
    [(0, 0, False), (0, 1, True), (9, 1, False), (9, 2, True), (90, 10, False)],
)
def test_more_than_a_tenth_is_too_much(succeeded: int, not_succeeded: int, failing: bool) -> None:
    assert is_failing(succeeded, not_succeeded) is failing


def letters(count: int) -> list[DeadLetterView]:
    return [DeadLetterView(f"e.{number}", number, "PENDING", None) for number in range(count)]


async def redriven(
    count: int, outcome: Callable[[int], LaterOutcome], refused: Collection[int] = ()
) -> tuple[list[int], list[Redrive]]:
    """The numbers of those that were resolved, and what was told."""
    resolved: list[int] = []

    async def resolve(letter: DeadLetterView) -> None:
        if letter.quarantine_time in refused:
            raise Refusal("NODE_NOT_ENDED", "still under way")
        resolved.append(letter.quarantine_time)

    async def outcome_of(letter: DeadLetterView) -> LaterOutcome | None:
        return outcome(letter.quarantine_time)

    nobody: Any = None
    redriver = Redriver(DeadLetters(nobody, nobody, nobody, nobody, nobody), ManualClock())
    return resolved, [state async for state in redriver.run(letters(count), resolve, outcome_of)]


async def test_all_are_requeued_when_they_succeed() -> None:
    resolved, told = await redriven(40, lambda _: SUCCEEDED)
    assert resolved == list(range(40))
    assert told[-1] == Redrive(40, 40, 40, 0)


async def test_who_repeats_a_redrive_of_which_all_is_resolved_hears_that_it_is_done() -> None:
    assert await redriven(0, lambda _: SUCCEEDED) == ([], [Redrive(0)])


async def test_it_stops_after_the_first_if_that_fails_again() -> None:
    resolved, told = await redriven(40, lambda _: FAILED_AGAIN)
    assert (resolved, told[-1].failed_again) == ([0], 1)
    assert "failed again" in told[-1].stopped


async def test_it_stops_in_the_middle_when_too_many_fail_again() -> None:
    resolved, told = await redriven(300, lambda number: SUCCEEDED if number < 15 else FAILED_AGAIN)
    assert len(resolved) == 115
    assert told[-1].stopped


async def test_one_that_is_cancelled_is_counted_and_not_awaited_and_the_others_go_on() -> None:
    _, told = await redriven(40, lambda number: CANCELLED if number == 39 else SUCCEEDED)
    assert told[-1] == Redrive(40, 40, succeeded=39, cancelled=1)


async def test_it_stops_when_the_first_one_is_cancelled_because_that_says_nothing_for_the_rest() -> None:
    resolved, told = await redriven(40, lambda _: CANCELLED)
    assert (resolved, told[-1].cancelled, told[-1].failed_again) == ([0], 1, 0)
    assert "cancelled" in told[-1].stopped


async def test_it_stops_at_one_that_cannot_be_resolved() -> None:
    resolved, told = await redriven(40, lambda _: SUCCEEDED, refused={5})
    assert resolved == [0, 1, 2, 3, 4]
    assert "e.5 cannot be resolved" in told[-1].stopped
