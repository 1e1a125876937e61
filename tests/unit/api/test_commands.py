"""A command that no dispatcher has taken is never said to be durable."""

from __future__ import annotations

from typing import Any

import pytest

from services.api.app import ports
from services.api.app.commands import Commands, NewCommand
from services.api.app.executions import Executions
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from tests.support.manual_clock import ManualClock
from tests.unit.api.test_execution_lists import GIVEN_UP, STARTED, MemoryPlaces, id_of
from windlass.coordinator.v1.commands_pb2 import ExecutionCommand

EXECUTION_ID = id_of(1)


class ForgetfulPlaces(MemoryPlaces):
    """An execution that goes on as far as anybody knows. When something is brought to it, its queue has no such row."""

    def __init__(self, then: str) -> None:
        super().__init__({EXECUTION_ID: STARTED})
        self._then = then

    async def command(self, *_: Any, **__: Any) -> bool:
        self.places[EXECUTION_ID] = self._then
        return False

    async def cancel(self, workspace: str, execution: ports.ExecutionView, message_id: str, *_: Any) -> bool:
        return await self.command()

    async def answer(self, execution_id: str, message_id: str) -> None:
        return None


def given(places: ForgetfulPlaces) -> tuple[Executions, Commands]:
    executions = Executions(places, places, places, ManualClock())
    unused: Any = None
    answers: Any = places
    return executions, Commands(executions, places, answers, unused)


COMMAND = NewCommand("pause", EXECUTION_ID, ExecutionCommand())


async def test_command_to_an_execution_that_was_given_up_a_moment_ago_is_refused() -> None:
    _, commands = given(ForgetfulPlaces(GIVEN_UP))
    with pytest.raises(Refusal) as refused:
        await commands.give("team", COMMAND)
    assert refused.value.reason == "EXECUTION_FINAL"


async def test_cancel_of_an_execution_that_was_given_up_a_moment_ago_is_refused() -> None:
    executions, _ = given(ForgetfulPlaces(GIVEN_UP))
    with pytest.raises(Refusal) as refused:
        await executions.cancel("team", EXECUTION_ID, "", "")
    assert refused.value.reason == "EXECUTION_FINAL"


async def test_command_that_nobody_takes_and_nobody_refuses_is_to_be_given_again() -> None:
    _, commands = given(ForgetfulPlaces(STARTED))
    with pytest.raises(DependencyUnavailable):
        await commands.give("team", COMMAND)
