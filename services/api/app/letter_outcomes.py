"""What became of the work of a dead letter after a person had it done again."""

from __future__ import annotations

from typing import Final

from services.api.app.dead_letters import PENDING, DeadLetters
from services.api.app.executions import Executions
from services.api.app.identifiers import is_execution_id
from services.api.app.ports import DeadLetterView, FailedExecutions, RunDeadLetters
from services.api.core.redriving import LaterOutcome

_CUT_SHORT: Final = frozenset({"CANCELLED", "TIMEOUT"})


class LetterOutcomes:
    def __init__(
        self, dead_letters: DeadLetters, runs: RunDeadLetters, failed: FailedExecutions, executions: Executions
    ) -> None:
        self._dead_letters = dead_letters
        self._runs = runs
        self._failed = failed
        self._executions = executions

    async def after(self, workspace: str, letter: DeadLetterView) -> LaterOutcome | None:
        """None: the work is under way, or the execution has not begun."""
        if is_execution_id(letter.id):
            return await self._of_execution(workspace, letter)
        has_succeeded = await self._runs.outcome_after(letter)
        if has_succeeded is None and await self._has_ended_since(workspace, letter):
            # The work may have ended just before its execution.
            has_succeeded = await self._runs.outcome_after(letter)
            if has_succeeded is None:
                return LaterOutcome.CANCELLED
        return _outcome(has_succeeded)

    async def _of_execution(self, workspace: str, letter: DeadLetterView) -> LaterOutcome | None:
        outcome = _outcome(await self._failed.outcome_after(letter))
        # It may have ended before it could begin. The queue does not know how.
        if outcome is not LaterOutcome.SUCCEEDED:
            return outcome
        execution = await self._executions.find(workspace, letter.id)
        return LaterOutcome.CANCELLED if execution.state in _CUT_SHORT else outcome

    async def _has_ended_since(self, workspace: str, letter: DeadLetterView) -> bool:
        """Whether the execution has ended after the requeue, and not only before it: a requeue that its coordinator has
        yet to carry out leaves the dead letter pending."""
        if not await self._is_final(workspace, letter):
            return False
        now = await self._dead_letters.find(workspace, letter.id)
        return now.resolution != PENDING and await self._is_final(workspace, letter)

    async def _is_final(self, workspace: str, letter: DeadLetterView) -> bool:
        return (await self._executions.find(workspace, letter.record.execution_id)).is_final


def _outcome(has_succeeded: bool | None) -> LaterOutcome | None:
    if has_succeeded is None:
        return None
    return LaterOutcome.SUCCEEDED if has_succeeded else LaterOutcome.FAILED_AGAIN
