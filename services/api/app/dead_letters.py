"""Dead letters: lists them from the two places where they are, and resolves each once.

Coordinators have the runs that failed for good. Their journal decides what becomes of one, as of every command.
Dispatchers have the executions that could not be admitted. Their row decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from services.api.app import refusals
from services.api.app.commands import Commands, NewCommand
from services.api.app.identifiers import is_execution_id
from services.api.app.ports import DeadLetterQuery, DeadLetterView, FailedExecutions, RunDeadLetters
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.process.clock import Clock

# Rows of dispatchers that are read at once, and how often at most for one page: a filter that matches nothing must not
# read all of them.
_ROWS_PER_READ: Final = 200
_READS_MAX: Final = 50
PENDING: Final = "PENDING"

# Says whether a dead letter matches the filter of a list.
Matches = Callable[[DeadLetterView], bool]


class DeadLetters:
    def __init__(self, runs: RunDeadLetters, failed: FailedExecutions, commands: Commands, clock: Clock) -> None:
        self._runs = runs
        self._failed = failed
        self._commands = commands
        self._clock = clock

    async def find(self, workspace: str, dead_letter_id: str) -> DeadLetterView:
        if is_execution_id(dead_letter_id):
            found = await self._failed.failed(workspace, dead_letter_id)
        else:
            found = await self._runs.dead_letter(workspace, dead_letter_id)
        if found is None:
            raise refusals.dead_letter_not_found(dead_letter_id)
        return found

    async def page(self, asked: DeadLetterQuery, matches: Matches) -> Sequence[DeadLetterView]:
        """At most `limit` dead letters, in order."""
        letters = [*await self._runs.dead_letter_page(asked), *await self._not_admitted(asked, matches)]
        letters.sort(key=lambda letter: (letter.quarantine_time, letter.id), reverse=not asked.ascending)
        return letters[: asked.limit]

    async def groups(self, workspace: str, conditions: Sequence[Any], limit: int) -> Sequence[Any]:
        """The groups of runs. Executions that could not be admitted are listed one by one."""
        return await self._runs.dead_letter_groups(workspace, conditions, limit)

    async def resolve(
        self, workspace: str, dead_letter_id: str, resolution: str, command: NewCommand
    ) -> DeadLetterView:
        """The dead letter of a run after the command. `resolution` is what the command makes of it."""
        letter = await self.find(workspace, dead_letter_id)
        # Only a request id tells another resolution from a repeat.
        if letter.resolution != PENDING and not (command.request_id and await self._commands.has_answer(command)):
            return _resolved(letter, resolution)
        try:
            await self._commands.reopen(workspace, command, lambda _: None)
        except Refusal as refusal:
            letter = await self.find(workspace, dead_letter_id)
            if letter.resolution == PENDING or refusal.reason == "REQUEST_ID_REUSED":
                raise
        else:
            letter = await self.find(workspace, dead_letter_id)
        # It is still PENDING when the command is durable but was not carried out in time.
        return letter if letter.resolution == PENDING else _resolved(letter, resolution)

    async def outcome_after(self, letter: DeadLetterView) -> bool | None:
        """Whether the work has succeeded since it was requeued. None: it is under way. An execution that is queued
        again is not followed."""
        return True if is_execution_id(letter.id) else await self._runs.outcome_after(letter)

    async def quarantine(self, workspace: str, run_id: str, command: NewCommand) -> DeadLetterView:
        await self._commands.give(workspace, command)
        return await self.find(workspace, run_id)

    async def requeue_failed(self, letter: DeadLetterView, reviewer: str) -> DeadLetterView:
        found = await self._failed.requeue_failed(letter, reviewer, self._clock.epoch_ns())
        # Whoever comes second finds it queued again.
        return found or letter

    async def discard_failed(self, letter: DeadLetterView, reviewer: str, notes: str) -> DeadLetterView:
        found = await self._failed.discard_failed(letter, reviewer, notes)
        if found is None:
            raise refusals.already_resolved(letter.id, "REQUEUED")
        return found

    async def _not_admitted(self, asked: DeadLetterQuery, matches: Matches) -> list[DeadLetterView]:
        found: list[DeadLetterView] = []
        part = asked._replace(limit=_ROWS_PER_READ)
        for _ in range(_READS_MAX):
            rows = await self._failed.failed_page(part)
            found += [row for row in rows if matches(row)]
            if len(rows) < _ROWS_PER_READ or len(found) >= asked.limit:
                return found
            part = part._replace(after=(rows[-1].quarantine_time, rows[-1].id))
        raise DependencyUnavailable("the queue", "too long to be searched with this filter", retry_after=5.0)


def _resolved(letter: DeadLetterView, resolution: str) -> DeadLetterView:
    """The same resolution again is OK."""
    if letter.resolution != resolution:
        raise refusals.already_resolved(letter.id, letter.resolution)
    return letter
