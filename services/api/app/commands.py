"""Brings commands of people to executions, and waits for their answers.

A command is a message in the execution's mailbox, so it is durable as soon as a dispatcher has taken it, and it wakes
an execution that is parked. The coordinator that holds the execution decides it; the event that follows carries the
command's message id (services/coordinator/core/answers.py). That event is awaited here for a short time. If it does
not come, the command is carried out later, and the caller is shown the execution as it is.

A command that reopens goes to executions that have ended too. It brings along what the execution was started with, so
that a dispatcher can queue the execution again.

A caller may repeat a command under the same request id, also after the execution has ended: the journal has the first
answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from uuid import uuid4

from services.api.app import refusals
from services.api.app.executions import Executions
from services.api.app.identifiers import digest_of
from services.api.app.ports import CommandAnswers, CommandMailbox, EventView, ExecutionView
from services.api.app.watching import EventWatcher
from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.backoff import Backoff
from services.chassis.process.crash import crash_point

ANSWER_SECONDS: Final = 3.0
# How long the first look for the answer of an execution that is queued again is put off, and any further one at most.
_LOOK_SECONDS: Final = 0.02
_LOOK_SECONDS_MAX: Final = 0.3
_UNFIT: Final = ("EXECUTION_FINAL", "the execution has ended, and there is nothing in it that this command can change")


class NewCommand(NamedTuple):
    # Names the kind of command, so that one request id may be used for commands of several kinds.
    kind: str
    execution_id: str
    # The ExecutionCommand, without a message_id.
    message: Any
    # "": no repeat is recognised.
    request_id: str = ""
    # False: a repeat may have other content, and gets the first answer all the same.
    has_content: bool = True
    # How long the answer of an execution is awaited that was queued when the command came.
    queued_seconds: float = ANSWER_SECONDS

    def message_id(self) -> str:
        """It ends with a digest of the content, by which coordinators recognise a request id that was used before for
        something else."""
        content = self.message.__class__()
        if self.has_content:
            content.CopyFrom(self.message)
        # These differ in every repeat.
        content.ClearField("caller")
        content.ClearField("time")
        digest = digest_of(content.SerializeToString(deterministic=True))
        return f"{self.kind}:{self.execution_id}:{self.request_id or uuid4()}#{digest}"


class GivenCommand(NamedTuple):
    """The execution after a command."""

    execution: ExecutionView
    # The number of the event that answers the command. 0: the command is durable, and carried out later.
    answer_seq: int


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
        return (await self.answered(workspace, command)).execution

    async def answered(self, workspace: str, command: NewCommand) -> GivenCommand:
        """The same, with the event that answers it."""
        execution = await self._executions.find_for_command(workspace, command.execution_id)
        message_id, answer = await self._first_answer(command)
        if answer is None:
            _refuse_final(execution)
            is_delivered = await self._deliver(workspace, command, message_id, seen_seq=execution.last_seq)
            if is_delivered:
                seconds = command.queued_seconds if execution.state == "PENDING" else ANSWER_SECONDS
                answer = await self._awaited(workspace, execution, message_id, seconds)
            else:
                self._executions.forget_going(execution.id)
            if answer is None and (ended := await self._executions.find(workspace, execution.id)).is_final:
                # It may have answered just before its end, after the answer was looked for.
                answer = await self._answers.answer(execution.id, message_id)
                if answer is None:
                    _refuse_final(ended)
            if answer is None and not is_delivered:
                unknown = "no dispatcher has this execution, and nobody knows yet how it has ended"
                raise DependencyUnavailable("the dispatcher", unknown)
        shown = await self._answered(workspace, command, message_id, answer)
        return GivenCommand(shown, answer.seq if answer else 0)

    async def reopen(
        self, workspace: str, command: NewCommand, judge: Callable[[ExecutionView], None]
    ) -> ExecutionView:
        """The same for a command that may come to an execution that has ended. `judge` refuses it at once, unless it is
        a repeat, if it can be seen not to fit."""
        execution = await self._executions.find_for_command(workspace, command.execution_id)
        if execution.is_given_up:
            raise refusals.execution_given_up(execution.id)
        message_id, answer = await self._first_answer(command)
        if answer is None:
            judge(execution)
            start = await self._answers.start_order(command.execution_id)
            if await self._deliver(workspace, command, message_id, start=start):
                answer = await self._looked_for(command.execution_id, message_id)
        return await self._answered(workspace, command, message_id, answer)

    async def bring(self, workspace: str, command: NewCommand) -> bool:
        """Bring a command to the execution that nobody waits for. False: the execution has ended."""
        execution_id, message_id = command.execution_id, command.message_id()
        return await self._mailbox.command(workspace, execution_id, message_id, command.message)

    async def has_answer(self, command: NewCommand) -> bool:
        """The command was answered before, under the same request id."""
        return (await self._first_answer(command))[1] is not None

    async def has_answered(self, execution_id: str, message_id: str) -> bool:
        """An event of the execution answers this message."""
        return await self._answers.answer(execution_id, message_id) is not None

    async def _first_answer(self, command: NewCommand) -> tuple[str, EventView | None]:
        """The message id of the command, and the answer if this is a repeat."""
        message_id = command.message_id()
        if not command.request_id:
            return message_id, None
        return message_id, await self._answers.answer(command.execution_id, message_id)

    async def _deliver(self, workspace: str, command: NewCommand, message_id: str, **more: Any) -> bool:
        crash_point("api.command.before_deliver")
        found = await self._mailbox.command(workspace, command.execution_id, message_id, command.message, **more)
        crash_point("api.command.after_deliver")
        return found

    async def _awaited(
        self, workspace: str, execution: ExecutionView, message_id: str, seconds: float
    ) -> EventView | None:
        """None: it did not come in time, or the execution ended first."""
        events = self._watcher.follow(workspace, execution.id, execution.last_seq)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), contextlib.aclosing(events):
                async for event in events:
                    if event.message_id == message_id:
                        return event
        # A repeat that came at the same time may have been answered before its first event was read here.
        return await self._answers.answer(execution.id, message_id)

    async def _looked_for(self, execution_id: str, message_id: str) -> EventView | None:
        """The watch of an execution that has ended is over at once, so the journal is read from time to time."""
        backoff = Backoff(first=_LOOK_SECONDS, cap=_LOOK_SECONDS_MAX)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                while True:
                    is_waiting = bool(await self._mailbox.queued([execution_id]))
                    if (answer := await self._answers.answer(execution_id, message_id)) is not None:
                        return answer
                    if not is_waiting:
                        # It was found final: the command did not fit, and a final journal holds no refusals.
                        raise refusals.command_refused(*_UNFIT, execution_id)
                    await asyncio.sleep(backoff.next())
        return None

    async def _answered(
        self, workspace: str, command: NewCommand, message_id: str, answer: EventView | None
    ) -> ExecutionView:
        execution = await self._executions.find(workspace, command.execution_id)
        if answer is None:
            return execution
        if message_id != answer.message_id or answer.refusal_reason == "REQUEST_ID_REUSED":
            raise refusals.request_id_reused(command.request_id, execution.id)
        if answer.refusal_reason:
            raise refusals.command_refused(answer.refusal_reason, answer.refusal_message, execution.id)
        return execution


def _refuse_final(execution: ExecutionView) -> None:
    if execution.is_final:
        raise refusals.execution_final(execution.id, execution.state)
