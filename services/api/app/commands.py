"""Brings commands of people to executions, and waits for their answers.

A command is a message in the execution's mailbox, so it is durable as soon as a dispatcher has taken it, and it wakes
an execution that is parked. The coordinator that holds the execution decides it; the event that follows carries the
command's message id (services/coordinator/core/answers.py). That event is awaited here for a short time. If it does
not come, the command is carried out later, and the caller is shown the execution as it is.

A caller may repeat a command under the same request id, also after the execution has ended: the journal has the first
answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, NamedTuple
from uuid import uuid4

from services.api.app import refusals
from services.api.app.executions import Executions
from services.api.app.ports import CommandAnswers, CommandMailbox, EventView, ExecutionView
from services.api.app.watching import EventWatcher
from services.chassis.process.crash import crash_point

ANSWER_SECONDS: Final = 3.0


class NewCommand(NamedTuple):
    # Names the kind of command, so that one request id may be used for commands of several kinds.
    kind: str
    execution_id: str
    # The ExecutionCommand, without a message_id.
    message: Any
    # "": no repeat is recognised.
    request_id: str = ""


class Commands:
    def __init__(
        self, executions: Executions, mailbox: CommandMailbox, answers: CommandAnswers, watcher: EventWatcher
    ) -> None:
        self._executions = executions
        self._mailbox = mailbox
        self._answers = answers
        self._watcher = watcher

    async def give(self, workspace: str, command: NewCommand) -> ExecutionView:
        """The execution after the command. Raises the Refusal with which the command was answered."""
        execution_id = command.execution_id
        execution = await self._executions.find(workspace, execution_id)
        message_id = f"{command.kind}:{execution_id}:{command.request_id or uuid4()}"
        if command.request_id and (first := await self._answers.answer(execution_id, message_id)) is not None:
            return await self._answered(workspace, execution_id, first)
        if execution.is_final:
            raise refusals.execution_final(execution_id, execution.state)
        crash_point("api.command.before_deliver")
        if await self._mailbox.command(workspace, execution_id, message_id, command.message):
            crash_point("api.command.after_deliver")
            answer = await self._answer(workspace, execution, message_id)
            if answer is not None:
                return await self._answered(workspace, execution_id, answer)
        execution = await self._executions.find(workspace, execution_id)
        if execution.is_final:
            raise refusals.execution_final(execution_id, execution.state)
        return execution

    async def _answer(self, workspace: str, execution: ExecutionView, message_id: str) -> EventView | None:
        """None: it did not come in time, or the execution ended first."""
        events = self._watcher.follow(workspace, execution.id, execution.last_seq)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS), contextlib.aclosing(events):
                async for event in events:
                    if event.message_id == message_id:
                        return event
        # A repeat that came at the same time may have been answered before its first event was read here.
        return await self._answers.answer(execution.id, message_id)

    async def _answered(self, workspace: str, execution_id: str, answer: EventView) -> ExecutionView:
        execution = await self._executions.find(workspace, execution_id)
        if answer.refusal_reason:
            raise refusals.command_refused(answer.refusal_reason, answer.refusal_message, execution.id, execution.state)
        return execution
