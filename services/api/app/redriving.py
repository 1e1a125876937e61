"""Resolves many dead letters in one call, and stops by itself when what was requeued fails again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, NamedTuple, assert_never

from services.api.app.dead_letters import PENDING, DeadLetters, Matches
from services.api.app.ports import PAGE_SIZE_MAX, DeadLetterQuery, DeadLetterView
from services.api.core.redriving import LaterOutcome, is_failing, next_piece
from services.chassis.grpc.errors import Refusal
from services.chassis.process.clock import Clock

TOTAL_MAX: Final = 10_000
# How long the work of one piece is awaited, and how often it is looked at.
_PIECE_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.5

Resolve = Callable[[DeadLetterView], Awaitable[object]]
# What became of a requeued dead letter; None while it is under way.
OutcomeOf = Callable[[DeadLetterView], Awaitable[LaterOutcome | None]]


class Redrive(NamedTuple):
    """How far it has come."""

    total: int
    resolved: int = 0
    succeeded: int = 0
    failed_again: int = 0
    cancelled: int = 0
    # Why it has stopped by itself.
    stopped: str = ""

    def with_end(self, outcome: LaterOutcome) -> Redrive:
        match outcome:
            case LaterOutcome.SUCCEEDED:
                return self._replace(succeeded=self.succeeded + 1)
            case LaterOutcome.FAILED_AGAIN:
                return self._replace(failed_again=self.failed_again + 1)
            case LaterOutcome.CANCELLED:
                return self._replace(cancelled=self.cancelled + 1)
            case _:
                assert_never(outcome)


class Redriver:
    def __init__(self, dead_letters: DeadLetters, clock: Clock) -> None:
        self._dead_letters = dead_letters
        self._clock = clock

    async def matching(self, asked: DeadLetterQuery, matches: Matches) -> Sequence[DeadLetterView]:
        """The pending ones, oldest first, at most TOTAL_MAX."""
        found: list[DeadLetterView] = []
        asked = asked._replace(ascending=True, limit=PAGE_SIZE_MAX)
        while len(found) < TOTAL_MAX:
            page = await self._dead_letters.page(asked, matches)
            found += [letter for letter in page if letter.resolution == PENDING]
            if len(page) < PAGE_SIZE_MAX:
                break
            asked = asked._replace(after=(page[-1].quarantine_time, page[-1].id))
        return found[:TOTAL_MAX]

    async def run(
        self, letters: Sequence[DeadLetterView], resolve: Resolve, outcome_of: OutcomeOf | None
    ) -> AsyncIterator[Redrive]:
        """Without `outcome_of`, nothing is awaited. The last state is told also when there is nothing to resolve: a
        caller whose call was cut after the last one was resolved repeats it, and has to hear that all is done."""
        state = Redrive(len(letters))
        if not letters:
            yield state
        while piece := letters[state.resolved :][: next_piece(len(letters), state.resolved)]:
            for letter in piece:
                try:
                    await resolve(letter)
                except Refusal as refused:
                    yield state._replace(stopped=f"{letter.id} cannot be resolved: {refused}")
                    return
                state = state._replace(resolved=state.resolved + 1)
            yield state
            if outcome_of is not None:
                state = await self._awaited(piece, state, outcome_of)
                yield state
                if state.stopped:
                    return

    async def _awaited(self, piece: Sequence[DeadLetterView], state: Redrive, outcome_of: OutcomeOf) -> Redrive:
        end = self._clock.monotonic() + _PIECE_SECONDS
        under_way = list(piece)
        while under_way:
            still: list[DeadLetterView] = []
            for letter in under_way:
                outcome = await outcome_of(letter)
                if outcome is None:
                    still.append(letter)
                else:
                    state = state.with_end(outcome)
            under_way = still
            if is_failing(state.succeeded, state.failed_again + state.cancelled):
                return state._replace(stopped=_too_many(state))
            if under_way and self._clock.monotonic() >= end:
                return state._replace(stopped=f"{len(under_way)} are still under way; go on when they have ended")
            if under_way:
                await asyncio.sleep(_LOOK_SECONDS)
        return state


def _too_many(state: Redrive) -> str:
    if not state.cancelled:
        return "too many have failed again; look at their new dead letters"
    return "too many have failed again, were cancelled or timed out; look at them"
