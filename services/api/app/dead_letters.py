"""Dead letters: lists them from the two places where they are, and resolves each once.

Coordinators have the runs that failed for good. Their journal decides what becomes of one, as of every command.
Dispatchers have the executions that could not be admitted. Their row decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from services.api.app import refusals
from services.api.app.commands import Commands, NewCommand
from services.api.app.identifiers import is_execution_id
from services.api.app.ports import (
    DeadLetterQuery,
    DeadLetterView,
    FailedExecutions,
    FailedRequeue,
    FailedResolution,
    RunDeadLetters,
    RunViews,
)
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.process.clock import Clock

# Rows of dispatchers that are read at once, and how often at most for one page: a filter that matches nothing must not
# read all of them.
_ROWS_PER_READ: Final = 200
_READS_MAX: Final = 50
PENDING: Final = "PENDING"
_REQUEUED: Final = "REQUEUED"
_DISCARDED: Final = "DISCARDED"

# Says whether a dead letter matches the filter of a list.
Matches = Callable[[DeadLetterView], bool]


class DeadLetters:
    def __init__(
        self, runs: RunDeadLetters, failed: FailedExecutions, run_views: RunViews, commands: Commands, clock: Clock
    ) -> None:
        self._runs = runs
        self._failed = failed
        self._run_views = run_views
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
        """Returns at most `limit` dead letters, in order."""
        failed, is_whole = await self._not_admitted(asked, matches)
        if not is_whole:
            raise DependencyUnavailable("the queue", "too long to be searched with this filter", retry_after=5.0)
        letters = [*await self._runs.dead_letter_page(asked), *failed]
        letters.sort(key=lambda letter: (letter.quarantine_time, letter.id), reverse=not asked.ascending)
        return letters[: asked.limit]

    async def groups(self, asked: DeadLetterQuery, matches: Matches) -> tuple[Sequence[Any], Sequence[DeadLetterView]]:
        """The groups of runs, and the newest executions that could not be admitted, which belong to groups of their
        own."""
        groups = await self._runs.dead_letter_groups(asked.workspace, asked.conditions, asked.limit)
        failed, _ = await self._not_admitted(asked._replace(limit=_ROWS_PER_READ * _READS_MAX), matches)
        return groups, failed

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

    async def quarantine(self, workspace: str, run_id: str, command: NewCommand) -> DeadLetterView:
        run = await self._run_views.run_view(run_id)
        if run is None or run.workspace != workspace:
            # The execution would remember this answer, and give it once more when there is such a run.
            raise refusals.run_not_found(run_id)
        await self._commands.give(workspace, command)
        return await self.find(workspace, run_id)

    async def requeue_failed(
        self, workspace: str, execution_id: str, reviewer: str, notes: str, request_id: str
    ) -> DeadLetterView:
        letter = await self.find(workspace, execution_id)
        # Only a request id tells a repeat from another decision: it may belong to an earlier failure.
        if letter.resolution != PENDING and not request_id:
            return _resolved(letter, _REQUEUED)
        request_hash = hashlib.sha256(notes.encode()).digest()
        asked = FailedRequeue(reviewer, notes, request_id, request_hash, self._clock.epoch_ns())
        after = await self._failed.requeue_failed(letter, asked)
        if after.is_reused:
            raise refusals.request_id_reused(request_id, execution_id)
        return self._decided(execution_id, after, _REQUEUED)

    async def discard_failed(self, workspace: str, execution_id: str, reviewer: str, notes: str) -> DeadLetterView:
        letter = await self.find(workspace, execution_id)
        if letter.resolution == PENDING:
            letter = self._decided(execution_id, await self._failed.discard_failed(letter, reviewer, notes), _DISCARDED)
        return _resolved(letter, _DISCARDED)

    @staticmethod
    def _decided(execution_id: str, after: FailedResolution, resolution: str) -> DeadLetterView:
        if after.letter is None:
            raise refusals.dead_letter_not_found(execution_id)
        if after.letter.resolution == PENDING:
            # It has failed once more since it was read here.
            raise refusals.already_resolved(execution_id, _REQUEUED)
        return _resolved(after.letter, resolution)

    async def _not_admitted(self, asked: DeadLetterQuery, matches: Matches) -> tuple[list[DeadLetterView], bool]:
        """At least `limit` that match, if they exist; False: there are too many to look at all of them."""
        found: list[DeadLetterView] = []
        part = asked._replace(limit=_ROWS_PER_READ)
        for _ in range(_READS_MAX):
            rows = await self._failed.failed_page(part)
            found += [row for row in rows if matches(row)]
            if len(rows) < _ROWS_PER_READ or len(found) >= asked.limit:
                return found, True
            part = part._replace(after=(rows[-1].quarantine_time, rows[-1].id))
        return found, False


def _resolved(letter: DeadLetterView, resolution: str) -> DeadLetterView:
    """The same resolution again is OK."""
    if letter.resolution != resolution:
        raise refusals.already_resolved(letter.id, letter.resolution)
    return letter
