"""Explains executions, and shows them as they were. What is asked for is looked up in the workspace of the caller."""

from __future__ import annotations

from typing import Any

from services.api.app.executions import Executions
from services.api.app.ports import ExecutionView, PastReads, QueuePlaces


class Explanations:
    def __init__(self, executions: Executions, past: PastReads, places: QueuePlaces) -> None:
        self._executions = executions
        self._past = past
        self._places = places

    async def as_of(self, workspace: str, execution_id: str, seq: int) -> ExecutionView:
        """The execution as it was after its event of this number. One without events is returned as it is."""
        execution = await self._executions.find(workspace, execution_id)
        if execution.record is None:
            return execution
        return await self._past.past(execution_id, seq) or execution

    async def of(self, workspace: str, execution_id: str) -> tuple[ExecutionView, Any, Any]:
        """The execution, what coordinators say of it (None: they do not have it), and its place in the queue."""
        execution = await self._executions.find(workspace, execution_id)
        place = await self._places.place(workspace, execution_id)
        told = None if execution.record is None else await self._past.explanation(execution_id, place)
        return execution, told, place
