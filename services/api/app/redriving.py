"""Resolves many dead letters in one call, and stops by itself when what was requeued fails again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from services.api.app.dead_letters import PENDING, DeadLetters, Matches
from services.api.app.ports import PAGE_SIZE_MAX, DeadLetterQuery, DeadLetterView
from services.api.core.redriving import is_failing, next_piece
from services.chassis.grpc.errors import Refusal
from services.chassis.process.clock import Clock

TOTAL_MAX: Final = 10_000
# How long the work of one piece is awaited, and how often it is looked at.
_PIECE_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.5

Resolve = Callable[[DeadLetterView], Awaitable[object]]
# Whether the work of a requeued dead letter succeeded; None while it is under way.
LaterOutcome = Callable[[DeadLetterView], Awaitable[bool | None]]


class Redrive(NamedTuple):
    """How far it has come."""

    total: int
    resolved: int = 0
    succeeded: int = 0
    failed_again: int = 0
    # Why it has stopped by itself.
    stopped: str = ""


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
        self, letters: Sequence[DeadLetterView], resolve: Resolve, outcome: LaterOutcome | None
    ) -> AsyncIterator[Redrive]:
        """Without `outcome`, nothing is awaited. The last state is told also when there is nothing to resolve: a caller
        whose call was cut after the last one was resolved repeats it, and has to hear that all is done."""
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
            if outcome is not None:
                state = await self._awaited(piece, state, outcome)
                yield state
                if state.stopped:
                    return

    async def _awaited(self, piece: Sequence[DeadLetterView], state: Redrive, outcome: LaterOutcome) -> Redrive:
        end = self._clock.monotonic() + _PIECE_SECONDS
        under_way = list(piece)
        while under_way:
            still: list[DeadLetterView] = []
            for letter in under_way:
                has_succeeded = await outcome(letter)
                if has_succeeded is None:
                    still.append(letter)
                elif has_succeeded:
                    state = state._replace(succeeded=state.succeeded + 1)
                else:
                    state = state._replace(failed_again=state.failed_again + 1)
            under_way = still
            if is_failing(state.succeeded, state.failed_again):
                return state._replace(stopped="too many have failed again; look at their new dead letters")
            if under_way and self._clock.monotonic() >= end:
                return state._replace(stopped=f"{len(under_way)} are still under way; go on when they have ended")
            if under_way:
                await asyncio.sleep(_LOOK_SECONDS)
        return state
