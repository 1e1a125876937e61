"""A client under fire: it starts executions with request ids, repeats unanswered calls, and asks how each one ended."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc

from tests.chaos.history import GRAPHS, PEOPLE, History, calls_in
from tests.support.api import Client
from tests.support.pace import pause
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import approvals_pb2, dead_letters_pb2, executions_pb2, resources_pb2
from windlass.api.v1.dead_letters_pb2_grpc import DeadLetterServiceStub

T = TypeVar("T")
# A client may meet these codes while things die; any other code is a fault of ours.
PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
CALL_SECONDS = 5.0
# Less than such a test may take. Then it is the test that says what it has waited for.
FINAL_SECONDS = 90.0
PAUSE_SECONDS = 0.05
CLIENTS_MAX = 24
# Its one run goes on for longer than any test. If its runner dies, it may be done again.
HELD = "chaos-held"
HELD_NODE = {"id": "held", "module": "ledger.put@1", "idempotent": True, "config": {"seconds": 3_600}}


class HastyClient(Client):
    """A client that gives up soon."""

    call_seconds = CALL_SECONDS


class PatientClient(HastyClient):
    """A client that asks until it is answered."""

    async def call(self, method: Any, request: Any, *extra: tuple[str, str]) -> Any:
        async with asyncio.timeout(FINAL_SECONDS):
            while True:
                try:
                    return await super().call(method, request, *extra)
                except grpc.aio.AioRpcError as error:
                    if error.code() not in PASSING:
                        raise
                await pause(PAUSE_SECONDS)


@contextlib.asynccontextmanager
async def under_load(
    stack: Stack,
    ledger: Path,
    seed: int,
    *,
    count_min: int = 0,
    seconds_between: float = 0.15,
    held: int = 0,
    also: Sequence[str] = (),
) -> AsyncIterator[Load]:
    """The mixed graphs and those in `also` are started for as long as the block lasts, at least `count_min` executions.
    `held` executions go on during all of it. While CLIENTS_MAX clients are waiting for their answers, no other comes:
    more of them would take the machine from the processes that are to come back."""
    load = Load(stack, ledger, seed)
    await load.apply()
    is_over = asyncio.Event()

    async def keep_starting() -> None:
        clients: set[asyncio.Task[str]] = set()
        async with asyncio.TaskGroup() as group:
            while not is_over.is_set() or len(load.acknowledged) < count_min:
                for workflow in (load.any(), *also):
                    if len(clients) < CLIENTS_MAX:
                        clients.add(client := group.create_task(load.start(workflow)))
                        client.add_done_callback(clients.discard)
                await pause(seconds_between)

    async with load.held(held), asyncio.TaskGroup() as group:
        group.create_task(keep_starting())
        yield load
        is_over.set()


class Load:
    """Executions of the mixed graphs on one stack."""

    def __init__(self, stack: Stack, ledger: Path, seed: int) -> None:
        self.client = PatientClient(stack)
        self._letters: Any = DeadLetterServiceStub(stack.channel())
        self._ledger = ledger
        self._random = random.Random(seed)
        self.acknowledged: list[str] = []

    async def apply(self) -> None:
        for name, graph in {**GRAPHS, HELD: {"nodes": [HELD_NODE]}}.items():
            await self.client.apply(name, **graph)

    async def start(self, workflow: str) -> str:
        """Start an execution, which is durable on return. The history asks for its end."""
        execution_id = await self._start(workflow)
        self.acknowledged.append(execution_id)
        if workflow == PEOPLE:
            await self._attend(execution_id)
        return execution_id

    async def _attend(self, execution_id: str) -> None:
        """People pause it and let it go on, send its signal, approve, and mend what has failed."""
        client, executions = self.client, self.client.executions
        pause = executions_pb2.PauseExecutionRequest(execution_id=execution_id, request_id="the same")
        await client.call(executions.PauseExecution, pause)
        signal = executions_pb2.SignalExecutionRequest(execution_id=execution_id, signal="go", request_id="the same")
        await client.call(executions.SignalExecution, signal)
        resume = executions_pb2.ResumeExecutionRequest(execution_id=execution_id, request_id="the same")
        await client.call(executions.ResumeExecution, resume)
        filter_ = f'execution_id = "{execution_id}"'

        async def asked() -> Any:
            listed = await client.call(
                client.approvals.ListApprovals, approvals_pb2.ListApprovalsRequest(filter=filter_)
            )
            return listed.approvals

        (approval,) = await self._eventually(asked, "the approval", execution_id)
        yes = resources_pb2.Approval.APPROVE
        decision = approvals_pb2.DecideApprovalRequest(approval_id=approval.id, decision=yes)
        await client.call(client.approvals.DecideApproval, decision)

        async def failed() -> Any:
            request = dead_letters_pb2.ListDeadLettersRequest(filter=filter_)
            return (await client.call(self._letters.ListDeadLetters, request)).dead_letters

        (letter,) = await self._eventually(failed, "the dead letter", execution_id)
        fixed = dead_letters_pb2.MarkDeadLetterFixedRequest(dead_letter_id=letter.id)
        await client.call(self._letters.MarkDeadLetterFixed, fixed)

    async def _start(self, workflow: str) -> str:
        started = await self.client.start(workflow, request_id=uuid.uuid4().hex, input={"n": 42})
        return str(started.id)

    def any(self) -> str:
        return self._random.choice(list(GRAPHS))

    @contextlib.asynccontextmanager
    async def held(self, count: int) -> AsyncIterator[list[str]]:
        """This number of executions has a run under way from before the block until after it."""
        started = [await self._start(HELD) for _ in range(count)]
        for execution_id in started:
            await self._eventually(partial(self.client.runs_of, execution_id), "a grant", execution_id)
        yield started
        for execution_id in started:
            await self.client.cancel(execution_id)
        for execution_id in started:
            await self.final(execution_id)

    async def final(self, execution_id: str) -> resources_pb2.Execution:
        """The execution once it has ended."""

        async def ended() -> resources_pb2.Execution | None:
            execution = await self.client.get(execution_id)
            return execution if execution.HasField("end_time") else None

        return await self._eventually(ended, "the end", execution_id)

    async def _eventually(self, probe: Callable[[], Awaitable[T | None]], what: str, execution_id: str) -> T:
        """The first true answer of the probe. Without one, the failure shows the execution and what it waits for."""
        try:
            return await eventually(probe, FINAL_SECONDS, f"{what} of {execution_id}")
        except AssertionError as late:
            request = executions_pb2.ExplainExecutionRequest(execution_id=execution_id)
            explained = await self.client.call(self.client.executions.ExplainExecution, request)
            raise AssertionError(f"{late}: {await self.client.get(execution_id)} {explained}") from None

    async def history(self) -> History:
        """Everything that was acknowledged, once all of it is over."""
        history = History()
        for execution_id in self.acknowledged:
            history.executions[execution_id] = await self.final(execution_id)
            history.runs[execution_id] = await self.client.runs_of(execution_id)
        history.calls = calls_in(self._ledger)
        return history
