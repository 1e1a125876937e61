"""Coordinators and dispatchers are killed between a command and its answer: it is carried out once."""

import asyncio
import random
from typing import Any

import pytest

from tests.chaos.load import PatientClient
from tests.chaos.verify import verify
from tests.support.pace import pause
from tests.support.probe import eventually
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import dead_letters_pb2, executions_pb2, resources_pb2
from windlass.api.v1.dead_letters_pb2_grpc import DeadLetterServiceStub

Execution = resources_pb2.Execution
EXECUTIONS = 12
FAILURE = {"type": "BAD", "message": "always"}


@pytest.mark.chaos
@pytest.mark.timeout(240)
@pytest.mark.parametrize("victim", ["coordinator", "dispatcher"])
async def test_killed_between_command_and_answer_it_is_carried_out_once(victim: str) -> None:
    async with running_stack(coordinators=2, dispatchers=2) as stack:
        client = PatientClient(stack)
        bad = {"id": "bad", "module": "fail@1", "retry": {"attempts": 1}, "config": FAILURE}
        await client.apply("bad", [{"id": "good", "module": "noop@1"}, bad])
        started = [await client.start("bad") for _ in range(EXECUTIONS)]
        failed = [await client.end_of(each.id) for each in started]
        assert {each.state for each in failed} == {Execution.FAILED}
        runs = [run for each in failed for run in await client.runs_of(each.id) if run.node == "bad"]
        draw = random.Random(victim)
        killing = asyncio.create_task(_kill_again_and_again(stack, victim, draw))
        try:
            half = EXECUTIONS // 2
            await asyncio.gather(*(_retry(client, each.id, draw) for each in failed[:half]))
            await asyncio.gather(*(_requeue(stack, client, run.id, draw) for run in runs[half:]))
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        for replica in range(2):
            await stack.ready_again(victim, replica, previous_pid=0)
        for each in failed:
            ended = await _ended_again(client, each)
            assert ended.state == Execution.FAILED
            done = [(run.node, run.generation) for run in await client.runs_of(each.id)]
            assert sorted(done) == [("bad", 1), ("bad", 2), ("good", 1)]
        await verify(stack, {"S6", "S7", "S8", "S16"})


async def _kill_again_and_again(stack: Stack, victim: str, draw: random.Random) -> None:
    for replica in [0, 1] * 20:
        await pause(draw.uniform(0.2, 0.8))
        pid = stack.kill(victim, replica)
        await stack.ready_again(victim, replica, pid)


async def _retry(client: PatientClient, execution_id: str, draw: random.Random) -> None:
    """Give the same command three times, as a caller does that hears no answer."""
    for _ in range(3):
        await pause(draw.uniform(0, 0.5))
        request = executions_pb2.RetryExecutionRequest(execution_id=execution_id, request_id="the same")
        await client.call(client.executions.RetryExecution, request)


async def _requeue(stack: Stack, client: PatientClient, run_id: str, draw: random.Random) -> None:
    stub: Any = DeadLetterServiceStub(stack.channel())
    for _ in range(3):
        await pause(draw.uniform(0, 0.5))
        request = dead_letters_pb2.RequeueDeadLetterRequest(dead_letter_id=run_id, request_id="the same")
        await client.call(stub.RequeueDeadLetter, request)


async def _ended_again(client: PatientClient, before: Execution) -> Execution:
    async def is_over() -> Execution | None:
        found = await client.get(before.id)
        is_later = found.end_time.ToNanoseconds() > before.end_time.ToNanoseconds()
        return found if found.state == Execution.FAILED and is_later else None

    return await eventually(is_over, 60.0, "the second end")
