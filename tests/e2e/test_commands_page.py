"""docs/commands.md says what becomes of a command to an execution that is queued. A stack is asked the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc

from services.chassis.grpc.errors import remote_error
from tests.support.api import Client, new_workspace
from tests.support.commands_page import QUEUED, table
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import approvals_pb2, executions_pb2, resources_pb2, runs_pb2
from windlass.api.v1 import dead_letters_pb2 as letters_pb2
from windlass.api.v1.dead_letters_pb2_grpc import DeadLetterServiceStub

Execution = resources_pb2.Execution
APPROVE: Final = resources_pb2.Approval.APPROVE


def calls(client: Client, letters: DeadLetterServiceStub) -> dict[str, tuple[Any, Callable[[str], Any]]]:
    """The method of each command, and its request to the execution with this id, or to the first run that it will have.
    Nobody has a completion token of that run yet."""
    of, approvals, runs = client.executions, client.approvals, client.runs
    return {
        "cancel": (of.CancelExecution, lambda id: executions_pb2.CancelExecutionRequest(execution_id=id)),
        "pause": (of.PauseExecution, lambda id: executions_pb2.PauseExecutionRequest(execution_id=id)),
        "resume": (of.ResumeExecution, lambda id: executions_pb2.ResumeExecutionRequest(execution_id=id)),
        "signal": (of.SignalExecution, lambda id: executions_pb2.SignalExecutionRequest(execution_id=id, signal="go")),
        "decide": (
            approvals.DecideApproval,
            lambda id: approvals_pb2.DecideApprovalRequest(approval_id=f"{id}.1", decision=APPROVE),
        ),
        "complete": (runs.CompleteRun, lambda id: runs_pb2.CompleteRunRequest(token=f"{id}.1.guessed")),
        "fail": (runs.FailRun, lambda id: runs_pb2.FailRunRequest(token=f"{id}.1.guessed")),
        "heartbeat": (runs.HeartbeatRun, lambda id: runs_pb2.HeartbeatRunRequest(token=f"{id}.1.guessed")),
        "quarantine": (letters.QuarantineRun, lambda id: letters_pb2.QuarantineRunRequest(run_id=f"{id}.1")),
        "retry": (of.RetryExecution, lambda id: executions_pb2.RetryExecutionRequest(execution_id=id)),
        "requeue": (
            letters.RequeueDeadLetter,
            lambda id: letters_pb2.RequeueDeadLetterRequest(dead_letter_id=f"{id}.1"),
        ),
        "fix": (
            letters.MarkDeadLetterFixed,
            lambda id: letters_pb2.MarkDeadLetterFixedRequest(dead_letter_id=f"{id}.1"),
        ),
        "discard": (
            letters.DiscardDeadLetter,
            lambda id: letters_pb2.DiscardDeadLetterRequest(dead_letter_id=f"{id}.1"),
        ),
        "fork": (of.ForkExecution, lambda id: executions_pb2.ForkExecutionRequest(execution_id=id)),
    }


async def test_every_cell_of_the_first_column_is_what_a_stack_answers(shared_stack: Stack) -> None:
    client = await new_workspace(shared_stack, "all-commands-queued", executions_max=1)
    await client.apply("endless", [{"id": "a", "module": "test.waits@1"}])
    blocker = await client.start("endless")

    async def is_running() -> bool:
        return (await client.get(blocker.id)).state == Execution.RUNNING

    await eventually(is_running, 20.0, "the execution that has the only slot")

    async def answer(method: Any, make: Callable[[str], Any]) -> str:
        queued = await client.start("endless")
        try:
            response = await client.call(method, make(queued.id))
        except grpc.aio.AioRpcError as failure:
            return f"`{remote_error(failure).reason}`"
        shown = (await client.get(queued.id)).state
        is_done = shown == Execution.CANCELLED or response.execution.origin_execution_id == queued.id
        assert is_done or shown == Execution.PENDING
        return "done" if is_done else "kept"

    made = calls(client, DeadLetterServiceStub(shared_stack.channel()))
    answers = await asyncio.gather(*(answer(*each) for each in made.values()))
    page = {command: cells[QUEUED] for command, cells in table().items()}
    assert dict(zip(made, answers, strict=True)) == page
