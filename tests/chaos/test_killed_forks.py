"""Processes are killed while forks start: each origin gets one fork, and no finished work runs again."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.history import calls_in
from tests.chaos.load import FINAL_SECONDS, PatientClient
from tests.chaos.verify import verify
from tests.support.pace import pause
from tests.support.probe import eventually
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import executions_pb2, resources_pb2

Execution = resources_pb2.Execution
MODULES = Path(__file__).with_name("ledger_modules.py")
ORIGINS = 12
REPLICAS = 2
EDGES = [{"from": "good", "to": "bad"}, {"from": "bad", "to": "after"}]


def put(id: str) -> dict[str, Any]:
    return {"id": id, "module": "ledger.put@1"}


@pytest.mark.chaos
@pytest.mark.timeout(240)
@pytest.mark.parametrize("victim", ["api", "coordinator", "dispatcher"])
async def test_killed_while_forks_start_none_is_lost_or_doubled_and_no_finished_work_runs_again(
    victim: str, ledger: Path
) -> None:
    replicas: dict[str, Any] = {f"{victim}s": REPLICAS}
    async with running_stack(modules=[MODULES], **replicas) as stack:
        client = PatientClient(stack)
        bad = {"id": "bad", "module": "fail@1", "config": {"type": "BAD"}, "retry": {"attempts": 1}}
        await client.apply("forked", [put("good"), bad, put("after")], edges=EDGES)
        started = [await client.start("forked") for _ in range(ORIGINS)]
        origins = [(await client.end_of(each.id)).id for each in started]
        await client.apply("forked", [put("good"), put("bad"), put("after")], edges=EDGES)
        draw = random.Random(victim)
        killing = asyncio.create_task(_kill_again_and_again(stack, victim, draw))
        try:
            asked = await asyncio.gather(*(_fork(client, each, draw) for each in origins))
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        for replica in range(REPLICAS):
            await stack.ready_again(victim, replica, previous_pid=0)
        assert [len(set(each)) for each in asked] == [1] * ORIGINS, "a repeat made another fork"
        forks = [each[0] for each in asked]
        for fork in forks:
            assert await _end_of(client, fork) == Execution.SUCCESS
        assert [await _forks_of(client, each) for each in origins] == [[each] for each in forks]
        called = {(call["execution"], call["node"]) for call in calls_in(ledger)}
        assert called == {(each, "good") for each in origins} | {(f, n) for f in forks for n in ("bad", "after")}
        await verify(stack, {"S1", "S6", "S7", "S8", "S10"})


async def _kill_again_and_again(stack: Stack, victim: str, draw: random.Random) -> None:
    for replica in [0, 1] * 20:
        await pause(draw.uniform(0.2, 0.8))
        pid = stack.kill(victim, replica)
        await stack.ready_again(victim, replica, pid)


async def _fork(client: PatientClient, origin: str, draw: random.Random) -> list[str]:
    """Ask for the same fork three times, as a caller does that hears no answer. Return the ids that it was told."""
    told = []
    for _ in range(3):
        await pause(draw.uniform(0, 1.0))
        request = executions_pb2.ForkExecutionRequest(execution_id=origin, version=2, request_id=f"fork {origin}")
        told.append((await client.call(client.executions.ForkExecution, request)).execution.id)
    return told


async def _end_of(client: PatientClient, fork: str) -> int:
    async def final() -> int:
        found = await client.get(fork)
        return found.state if found.HasField("end_time") else 0

    return await eventually(final, FINAL_SECONDS, "the end of the fork")


async def _forks_of(client: PatientClient, origin: str) -> list[str]:
    request = executions_pb2.ListExecutionsRequest(filter=f'origin_execution_id = "{origin}"')
    return [each.id for each in (await client.call(client.executions.ListExecutions, request)).executions]
