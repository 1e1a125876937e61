"""Apis die, and are told to stop, while they work on a job for many executions: each gets the command once."""

import asyncio
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.load import PatientClient
from tests.chaos.verify import verify
from tests.support.pace import pause
from tests.support.probe import eventually, until
from tests.support.stack import Stack, is_alive, running_stack
from windlass.api.v1 import executions_pb2 as pb
from windlass.api.v1 import resources_pb2

Execution = resources_pb2.Execution
Job = resources_pb2.BulkJob
EXECUTIONS = 120
# The job takes some fifteen seconds if nothing dies.
SLOW = "api:WINDLASS_BULK_PER_SECOND=8"


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_killed_again_and_again_each_execution_is_retried_once() -> None:
    async with running_stack(apis=2, extra_env=[SLOW]) as stack:
        client = PatientClient(stack)
        failed = await _failed(client)
        job_id = await _retry_all(client)
        draw, kills = random.Random(7), 0
        while not (await _job(client, job_id)).HasField("end_time"):
            await pause(draw.uniform(0.1, 0.6))
            replica = kills % 2
            await stack.ready_again("api", replica, stack.kill("api", replica))
            kills += 1
        await _each_was_retried_once(client, job_id, failed)
        # The first api that took it, and each that took it over.
        ((epoch,),) = await stack.rows("SELECT epoch FROM api.bulk_jobs WHERE job_id = %s::uuid", job_id)
        assert epoch > 1, "the job was over before it was taken over"
        await verify(stack, {"S6", "S7", "S8", "S16"})


@pytest.mark.chaos
@pytest.mark.timeout(240)
async def test_an_api_that_stops_hands_its_job_on_and_nothing_is_given_twice() -> None:
    # A lease lasts for 10 s here, so a job that is not handed on keeps its holder for longer than the stop takes.
    async with running_stack(apis=2, extra_env=[SLOW], lease_scale=1.0) as stack:
        client = PatientClient(stack)
        failed = await _failed(client)
        job_id = await _retry_all(client)
        await until(partial(_workers, stack, job_id), 30.0, "an api to take the job")
        (replica,) = _workers(stack, job_id)
        ((holder, epoch),) = await _lease(stack, job_id)
        pid = stack.kill("api", replica, signal.SIGTERM)
        await until(lambda: not is_alive(pid), 30.0, "the api to stop")
        ((holder_then, epoch_then),) = await _lease(stack, job_id)
        assert (holder_then, epoch_then) != (holder, epoch), "it has handed the job on"
        assert holder is not None
        await _each_was_retried_once(client, job_id, failed)


@pytest.mark.chaos
@pytest.mark.timeout(240)
async def test_what_a_person_has_retried_since_a_job_cancelled_it_is_not_cancelled_by_its_next_api(
    tmp_path: Path,
) -> None:
    """The api dies when the cancels are in the journals, and before the progress of the job is stored."""
    plan = tmp_path / "crash-at"
    plan.write_text("api.bulk.before_advance")
    # With such a lease, the job stays free for seconds after its api has died.
    async with running_stack(extra_env=[f"api:WINDLASS_CRASH_AT=@{plan}"], lease_scale=1.0) as stack:
        client = PatientClient(stack)
        await client.apply("asked", [{"id": "ask", "module": "wait_signal@1", "config": {"signal": "go"}}])
        waits, ends, untouched = [each.id for each in await client.start_many("asked", 3)]
        for execution_id in (waits, ends, untouched):
            await _reaches(client, execution_id, Execution.WAITING)
        pid = stack.pid("api")
        job_id = await _cancel_all(client)
        await until(lambda: not is_alive(pid), 60.0, "the api to die")
        await stack.rows("UPDATE api.bulk_jobs SET lease_time = now() + interval '1 hour' RETURNING job_id")
        plan.write_text("")
        for execution_id in (waits, ends, untouched):
            await _reaches(client, execution_id, Execution.CANCELLED)
        ((done,),) = await stack.rows("SELECT done FROM api.bulk_jobs")
        assert done == 0, "the job does not know of its cancels"
        for execution_id in (waits, ends):
            retry = pb.RetryExecutionRequest(execution_id=execution_id, from_node="ask")
            await client.call(client.executions.RetryExecution, retry)
        await client.call(client.executions.SignalExecution, pb.SignalExecutionRequest(execution_id=ends, signal="go"))
        await _reaches(client, waits, Execution.WAITING)
        await _reaches(client, ends, Execution.SUCCESS)
        await stack.rows("UPDATE api.bulk_jobs SET lease_time = now() RETURNING job_id")
        await _end_of(client, job_id, done=3)
        states = [(await client.get(each)).state for each in (waits, ends, untouched)]
        assert states == [Execution.WAITING, Execution.SUCCESS, Execution.CANCELLED]


async def _lease(stack: Stack, job_id: str) -> list[tuple[Any, ...]]:
    return await stack.rows("SELECT holder, epoch FROM api.bulk_jobs WHERE job_id = %s::uuid", job_id)


def _workers(stack: Stack, job_id: str) -> list[int]:
    """The replicas that have taken the job."""
    return [replica for replica in range(2) if f'"job":"{job_id}"' in stack.log("api", replica)]


async def _failed(client: PatientClient) -> list[Execution]:
    failure = {"type": "BAD", "message": "always"}
    await client.apply("bad", [{"id": "bad", "module": "fail@1", "retry": {"attempts": 1}, "config": failure}])
    started = await client.start_many("bad", EXECUTIONS)
    ended = await asyncio.gather(*(client.end_of(each.id) for each in started))
    assert {each.state for each in ended} == {Execution.FAILED}
    return ended


async def _retry_all(client: PatientClient) -> str:
    request = pb.BulkExecutionsRequest(filter="state = FAILED", action=Job.RETRY, request_id="the same")
    return str((await client.call(client.executions.BulkExecutions, request)).job.id)


async def _reaches(client: PatientClient, execution_id: str, state: int) -> None:
    async def has_reached() -> bool:
        return bool((await client.get(execution_id)).state == state)

    await eventually(has_reached, 60.0, f"the execution to be in state {state}")


async def _cancel_all(client: PatientClient) -> str:
    request = pb.BulkExecutionsRequest(filter="state = WAITING", action=Job.CANCEL, request_id="the same")
    return str((await client.call(client.executions.BulkExecutions, request)).job.id)


async def _job(client: PatientClient, job_id: str) -> Job:
    found = await client.call(client.executions.GetBulkJob, pb.GetBulkJobRequest(job=job_id))
    return found.job  # type: ignore[no-any-return]


async def _end_of(client: PatientClient, job_id: str, done: int) -> None:
    async def has_ended() -> Job | None:
        job = await _job(client, job_id)
        return job if job.HasField("end_time") else None

    job = await eventually(has_ended, 60.0, "the end of the job")
    counts = (job.state, job.matched, job.done, list(job.refused), job.failed)
    assert counts == (Job.DONE, done, done, [], 0)


async def _each_was_retried_once(client: PatientClient, job_id: str, failed: list[Execution]) -> None:
    await _end_of(client, job_id, done=len(failed))
    for before in failed:

        async def is_over_again(before: Execution = before) -> bool:
            found = await client.get(before.id)
            is_later = found.end_time.ToNanoseconds() > before.end_time.ToNanoseconds()
            return bool(found.state == Execution.FAILED and is_later)

        await eventually(is_over_again, 60.0, "the second end")
        assert sorted(run.generation for run in await client.runs_of(before.id)) == [1, 2]
