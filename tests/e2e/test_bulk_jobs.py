"""One command for many executions: a job of the server gives it to each of them."""

import asyncio
import json
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import json_format

from services.chassis.grpc.errors import remote_error
from tests.support.api import Client, new_workspace
from tests.support.command_line import windlass
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2 as pb
from windlass.api.v1 import resources_pb2

Execution = resources_pb2.Execution
Job = resources_pb2.BulkJob
MANY = 500
SLEEPING = 'workflow = "sleeping" AND state = WAITING'


async def workspace(stack: Stack, name: str, count: int) -> Client:
    """A workspace of its own with so many executions that sleep."""
    made = await new_workspace(stack, name, executions_max=count)
    await made.apply("sleeping", [{"id": "nap", "module": "sleep@1", "config": {"duration": "1h"}}])
    await made.start_many("sleeping", count)
    awake = pb.ListExecutionsRequest(filter="NOT state = WAITING", page_size=1)

    async def all_sleep() -> bool:
        return not (await made.call(made.executions.ListExecutions, awake)).executions

    await eventually(all_sleep, 60.0, "all to sleep")
    return made


async def states(client: Client) -> list[int]:
    found, token = list[int](), ""
    while True:
        request = pb.ListExecutionsRequest(page_size=1_000, page_token=token)
        answer = await client.call(client.executions.ListExecutions, request)
        found += [each.state for each in answer.executions]
        token = answer.next_page_token
        if not token:
            return found


async def all_are(client: Client, state: int, count: int) -> bool:
    return (await states(client)).count(state) == count


async def bulk(client: Client, action: str, **fields: Any) -> pb.BulkExecutionsResponse:
    request = pb.BulkExecutionsRequest(filter=SLEEPING, action=Job.Action.Value(action))
    json_format.ParseDict(fields, request)
    return await client.call(client.executions.BulkExecutions, request)  # type: ignore[no-any-return]


async def job_of(client: Client, job_id: str) -> Job:
    return (await client.call(client.executions.GetBulkJob, pb.GetBulkJobRequest(job=job_id))).job  # type: ignore[no-any-return]


async def end_of(client: Client, job_id: str) -> Job:
    async def ended() -> Job | None:
        job = await job_of(client, job_id)
        return job if job.HasField("end_time") else None

    return await eventually(ended, 60.0, "the end of the job")


async def stop(client: Client, job_id: str) -> Job:
    return (await client.call(client.executions.StopBulkJob, pb.StopBulkJobRequest(job=job_id))).job  # type: ignore[no-any-return]


async def refused(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code().name, remote_error(error.value).reason


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def few(shared_stack: Stack) -> Client:
    """Its five executions sleep. No test here changes them for good."""
    return await workspace(shared_stack, "bulk-few", 5)


async def test_each_of_500_executions_gets_the_command_and_later_ones_do_not(shared_stack: Stack) -> None:
    client = await workspace(shared_stack, "bulk-many", MANY)
    count = await bulk(client, "PAUSE", dryRun=True)
    assert (count.matched, count.cut, len(count.sample), count.HasField("job")) == (MANY, False, 10, False)
    assert await all_are(client, Execution.WAITING, MANY)
    job = (await bulk(client, "PAUSE", reason="look first")).job
    late = await client.start("sleeping")
    places = list[int]()
    while not job.HasField("end_time"):
        job = await job_of(client, job.id)
        places.append(job.done)
        await asyncio.sleep(0)
    assert (job.state, job.matched, job.done, job.failed, list(job.refused)) == (Job.DONE, MANY, MANY, 0, [])
    assert places == sorted(places)
    assert len(set(places)) > 2, "the progress is seen"
    found = await states(client)
    assert found.count(Execution.PAUSED) == MANY
    assert (await client.get(late.id)).state != Execution.PAUSED
    paused = await client.call(
        client.executions.ListExecutions, pb.ListExecutionsRequest(filter="state = PAUSED", page_size=1)
    )
    shown = (await client.get(paused.executions[0].id)).pause
    assert (shown.reason, shown.caller) == ("look first", "of the test")
    actions = await shared_stack.rows("SELECT action, actor FROM api.audit WHERE subject = %s", job.id)
    assert [action for action, _ in actions] == ["BulkExecutions"]
    assert actions[0][1]
    cancelled = (await bulk(client, "CANCEL", filter="state = PAUSED", reason="enough")).job
    assert (await end_of(client, cancelled.id)).done == MANY
    await eventually(lambda: all_are(client, Execution.CANCELLED, MANY), 60.0, "all to be cancelled")


async def test_a_stopped_job_leaves_the_rest_alone(shared_stack: Stack) -> None:
    client = await workspace(shared_stack, "bulk-stopped", 300)
    job = (await bulk(client, "PAUSE")).job

    async def has_begun() -> bool:
        return (await job_of(client, job.id)).done > 0

    await eventually(has_begun, 30.0, "the job to have begun")
    await stop(client, job.id)
    stopped = await end_of(client, job.id)
    assert (stopped.state, stopped.matched) == (Job.STOPPED, 300)
    assert 0 < stopped.done < 300
    assert await all_are(client, Execution.PAUSED, stopped.done)
    assert await stop(client, job.id) == stopped
    assert await all_are(client, Execution.PAUSED, stopped.done)
    actions = await shared_stack.rows("SELECT action FROM api.audit WHERE subject = %s ORDER BY audit_id", job.id)
    assert [action for (action,) in actions] == ["BulkExecutions", "StopBulkJob"]
    # The rows with the ids go with the job.
    assert await shared_stack.rows("SELECT FROM api.bulk_job_pages WHERE job_id = %s::uuid", job.id) == []


async def test_refusals_are_counted_by_their_reason(few: Client) -> None:
    job = await end_of(few, (await bulk(few, "RESUME")).job.id)
    assert (job.state, job.matched, job.done, job.failed) == (Job.DONE, 5, 0, 0)
    assert [(each.reason, each.count) for each in job.refused] == [("EXECUTION_NOT_PAUSED", 5)]
    assert len(job.samples) == 5
    assert {each.reason for each in job.samples} == {"EXECUTION_NOT_PAUSED"}
    assert await refused(stop(few, job.id)) == ("FAILED_PRECONDITION", "BULK_JOB_ENDED")


async def test_a_repeat_finds_the_job_and_other_content_is_refused(few: Client) -> None:
    first = await bulk(few, "RESUME", requestId="one")
    again = await bulk(few, "RESUME", requestId="one")
    assert (again.job.id, first.existing, again.existing) == (first.job.id, False, True)
    assert await refused(bulk(few, "PAUSE", requestId="one")) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")
    await end_of(few, first.job.id)


async def test_jobs_are_listed_newest_first_and_only_in_their_workspace(few: Client, shared_stack: Stack) -> None:
    ids = [(await end_of(few, (await bulk(few, "RESUME")).job.id)).id for _ in range(3)]
    listed, token = list[str](), ""
    while True:
        request = pb.ListBulkJobsRequest(page_size=2, page_token=token)
        answer = await few.call(few.executions.ListBulkJobs, request)
        listed += [job.id for job in answer.jobs]
        token = answer.next_page_token
        if not token:
            break
    assert listed[:3] == ids[::-1]
    assert listed == sorted(listed, reverse=True)
    other = Client(shared_stack)
    assert await refused(job_of(other, ids[0])) == ("NOT_FOUND", "BULK_JOB_NOT_FOUND")
    assert await refused(stop(other, ids[0])) == ("NOT_FOUND", "BULK_JOB_NOT_FOUND")
    mine = await other.call(other.executions.ListBulkJobs, pb.ListBulkJobsRequest())
    assert not {job.id for job in mine.jobs} & set(ids)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"action": "RESUME", "reason": "why"}, "reason"),
        ({"action": "CANCEL", "fromNode": "nap"}, "from_node"),
        ({"action": "PAUSE", "inputOverrides": {"nap": {"n": 1}}}, "input_overrides"),
        ({"action": "PAUSE", "filter": "colour = red"}, "filter"),
        ({"action": "PAUSE", "filter": ""}, "filter"),
    ],
)
async def test_what_an_action_does_not_take_is_refused(few: Client, fields: dict[str, Any], field: str) -> None:
    request = json_format.ParseDict({"filter": SLEEPING, **fields}, pb.BulkExecutionsRequest())
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await few.call(few.executions.BulkExecutions, request)
    found = remote_error(error.value)
    assert (found.reason, [each.field for each in found.violations]) == ("INVALID_REQUEST", [field])


async def test_failed_executions_are_retried_with_other_inputs(shared_stack: Stack) -> None:
    client = await new_workspace(shared_stack, "bulk-retry", executions_max=20)
    await client.apply("checked", [{"id": "check", "module": "test.check@1", "inputs": {"n": -1}}])
    await asyncio.gather(*(client.run("checked") for _ in range(5)))
    assert await all_are(client, Execution.FAILED, 5)
    job = (await bulk(client, "RETRY", filter="state = FAILED", inputOverrides={"check": {"n": 50}})).job
    assert (await end_of(client, job.id)).done == 5
    await eventually(lambda: all_are(client, Execution.SUCCESS, 5), 30.0, "all to succeed")


async def test_a_workspace_has_three_jobs_at_once(shared_stack: Stack) -> None:
    client = await workspace(shared_stack, "bulk-crowd", 300)
    jobs = [(await bulk(client, "PAUSE")).job.id for _ in range(3)]
    assert await refused(bulk(client, "PAUSE")) == ("RESOURCE_EXHAUSTED", "BULK_JOBS_EXCEEDED")
    for job_id in jobs:
        await stop(client, job_id)
        await end_of(client, job_id)
    again = (await bulk(client, "PAUSE", filter="state = SUCCESS")).job
    ended = await end_of(client, again.id)
    assert (ended.state, ended.matched, ended.counted) == (Job.DONE, 0, True)


async def test_the_command_line_follows_a_job_to_its_end(shared_stack: Stack) -> None:
    made = Client(shared_stack)
    await made.apply("bulk-cli", [{"id": "nap", "module": "sleep@1", "config": {"duration": "1h"}}])
    await made.start_many("bulk-cli", 20)
    chosen = 'workflow = "bulk-cli" AND NOT state = CANCELLED'

    def typed(*words: str) -> Any:
        return windlass(*words, "--home", shared_stack.options.home)

    counted = await asyncio.to_thread(typed, "cancel", "--filter", chosen, "--dry-run")
    assert counted.returncode == 0, counted.stderr
    assert counted.stdout.startswith("20 executions match; nothing was done")
    done = await asyncio.to_thread(typed, "cancel", "--filter", chosen, "--reason", "enough")
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.split()[1]
    assert "state    DONE" in done.stdout
    assert "done     20" in done.stdout
    shown = await asyncio.to_thread(typed, "jobs", "show", job_id, "--json")
    assert json.loads(shown.stdout)["done"] == "20"
    assert job_id in (await asyncio.to_thread(typed, "jobs", "list")).stdout
    assert (await asyncio.to_thread(typed, "jobs", "follow", job_id)).returncode == 0
    again = await asyncio.to_thread(typed, "pause", "--filter", 'workflow = "bulk-cli"')
    assert (again.returncode, "refused  20 EXECUTION_FINAL" in again.stdout) == (1, True)
    assert (await asyncio.to_thread(typed, "jobs", "follow", again.stdout.split()[1])).returncode == 1
    late = await asyncio.to_thread(typed, "jobs", "stop", job_id)
    assert late.returncode == 1
    assert "BULK_JOB_ENDED" in late.stderr
    both = await asyncio.to_thread(typed, "cancel", "an-id", "--filter", chosen)
    assert (both.returncode, "not both" in both.stderr) == (2, True)
