"""Outputs that are too large for a message reach runners that share no disk, and users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import orjson
import pytest

from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import ChannelPool
from services.chassis.grpc.errors import RemoteError, remote_error
from services.runner.core.job import OutputMissing, StoredOutput
from services.runner.peers.outputs import CoordinatorOutputs
from services.runner.peers.translate import job_of
from tests.support.coordinator_stage import RUNNER_KEY, Stage, StageRunner, eventually
from windlass.coordinator.v1 import reads_pb2
from windlass.coordinator.v1 import sessions_pb2 as pb
from windlass.coordinator.v1.reads_pb2_grpc import ReadServiceStub
from windlass.coordinator.v1.sessions_pb2_grpc import RunnerOutputsStub

# The limits of an upload (docs/runners.md).
PART_BYTES_MAX = 1024 * 1024
OUTPUT_BYTES_MAX = 64 * PART_BYTES_MAX
LARGE = orjson.dumps({"text": "x" * 3_000_000})
TWO = {
    "name": "w",
    "nodes": [
        {"id": "a", "module": "noop@1"},
        {"id": "b", "module": "x.y@1", "inputs": {"n": "{{ nodes.a.output|length }} {{ input|length }}"}},
    ],
    "edges": [{"from": "a", "to": "b"}],
}


@asynccontextmanager
async def outputs_of(runner: StageRunner, address: str, key: str = RUNNER_KEY) -> AsyncIterator[CoordinatorOutputs]:
    channels = ChannelPool(bearer=key)
    try:
        yield CoordinatorOutputs(None, AddressBook(address), channels, lambda: runner.holder.instance_id)
    finally:
        await channels.close()


async def at_b(on_stage: Stage, **more: Any) -> tuple[str, Any, StageRunner, Any]:
    """An execution whose second node is at the runner. The output of the first is large, and was uploaded."""
    address, session = await on_stage.coordinator()
    runner = await on_stage.runner(address)
    runner.work = lambda grant: None
    order = on_stage.start(session, on_stage.catalog.add("v-two", **TWO), **more)
    await eventually(lambda: runner.grants)
    async with outputs_of(runner, address) as outputs:
        lease = job_of(runner.grants[0], 0).lease
        kept = await outputs.put(LARGE, lease)
        assert kept == await outputs.put(LARGE, lease), "the same bytes may come again"
    report = pb.RunReport()
    report.succeeded.output.ref.key, report.succeeded.output.ref.sha256 = kept.key, kept.sha256
    report.succeeded.output.ref.size_bytes = kept.size_bytes
    runner.report(runner.grants[0], report)
    await eventually(lambda: len(runner.grants) == 2)
    return address, order, runner, runner.grants[1]


async def test_runner_brings_and_fetches_what_is_too_large(on_stage: Stage) -> None:
    address, order, runner, grant = await at_b(on_stage, input_={"text": "y" * 3_500_000})
    assert grant.ByteSize() < 4 * 1024 * 1024
    job = job_of(grant, 0)
    assert isinstance(job.execution_input, StoredOutput)
    assert isinstance(job.outputs["a"], StoredOutput)
    async with outputs_of(runner, address) as outputs:
        assert await outputs.get(job.outputs["a"]) == LARGE
        assert orjson.loads(await outputs.get(job.execution_input)) == {"text": "y" * 3_500_000}
        for key in ("runs/2", "runs/9", "ab/" + "0" * 64 + ".json", "../x"):
            with pytest.raises(OutputMissing):
                await outputs.get(StoredOutput(key, "", 9, job.lease))
        runner.answer(grant, {})
        await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
        with pytest.raises(OutputMissing, match="LEASE_ENDED"):
            await outputs.get(job.outputs["a"])
        with pytest.raises(OSError, match="LEASE_ENDED"):
            await outputs.put(b"{}", job.lease)


async def test_run_of_another_instance_or_workspace_is_nobodys(on_stage: Stage) -> None:
    address, _, runner, grant = await at_b(on_stage)
    on_stage.catalog.keys["theirs"] = "elsewhere"
    job = job_of(grant, 0)
    stranger = await on_stage.runner(address, "stranger", key="theirs")
    ref = job.outputs["a"]
    assert isinstance(ref, StoredOutput)
    for who, key in ((stranger, RUNNER_KEY), (runner, "theirs")):
        async with outputs_of(who, address, key) as outputs:
            with pytest.raises(OutputMissing, match="LEASE_NOT_FOUND"):
                await outputs.get(ref)
            with pytest.raises(OSError, match="LEASE_NOT_FOUND"):
                await outputs.put(b"{}", job.lease)


def held(runner: StageRunner, grant: pb.RunGrant) -> pb.HeldRun:
    return pb.HeldRun(lease=grant.lease, instance_id=runner.holder.instance_id)


def upload(run: pb.HeldRun, *parts: bytes) -> Iterator[pb.UploadOutputRequest]:
    yield pb.UploadOutputRequest(run=run)
    for part in parts:
        yield pb.UploadOutputRequest(data=part)


async def refusal_of(call: Any) -> RemoteError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return remote_error(refused.value)


async def test_uploads_that_break_the_rules_are_refused(on_stage: Stage) -> None:
    address, _, runner, grant = await at_b(on_stage)
    stub = RunnerOutputsStub(on_stage.channel(address))
    as_runner: dict[str, Any] = {"metadata": (("authorization", f"Bearer {RUNNER_KEY}"),), "timeout": 30}
    run = held(runner, grant)
    data = pb.UploadOutputRequest(data=b"{}")
    for requests in (
        [],
        [data],
        [*upload(run)],
        [*upload(run, b"")],
        [*upload(run), *upload(run)],
        [*upload(run, b"x" * (PART_BYTES_MAX + 1))],
    ):
        assert (await refusal_of(stub.UploadOutput(iter(requests), **as_runner))).reason == "INVALID_REQUEST"
    largest = [b"x" * PART_BYTES_MAX] * (OUTPUT_BYTES_MAX // PART_BYTES_MAX)
    kept = await stub.UploadOutput(upload(run, *largest), **as_runner)
    assert kept.output.size_bytes == OUTPUT_BYTES_MAX
    too_large = upload(run, *largest, b"x")
    assert (await refusal_of(stub.UploadOutput(too_large, **as_runner))).reason == "OUTPUT_TOO_LARGE"
    assert (await refusal_of(stub.UploadOutput(upload(run, b"{}")))).reason == "KEY_MISSING"


async def test_transfers_of_one_key_are_bounded(on_stage: Stage) -> None:
    address, _, runner, grant = await at_b(on_stage)
    stub = RunnerOutputsStub(on_stage.channel(address))
    as_runner: dict[str, Any] = {"metadata": (("authorization", f"Bearer {RUNNER_KEY}"),), "timeout": 30}
    calls: list[Any] = [stub.UploadOutput(**as_runner) for _ in range(9)]
    for call in calls:
        await call.write(pb.UploadOutputRequest(run=held(runner, grant)))
    done, _ = await asyncio.wait([asyncio.ensure_future(call.code()) for call in calls], return_when="FIRST_COMPLETED")
    assert [each.result() for each in done] == [grpc.StatusCode.RESOURCE_EXHAUSTED]
    for call in calls:
        call.cancel()


async def test_api_reads_any_output(on_stage: Stage) -> None:
    address, order, runner, grant = await at_b(on_stage)
    runner.answer(grant, {"small": True})
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
    reads = ReadServiceStub(on_stage.channel(address))
    as_api: dict[str, Any] = {"metadata": on_stage.api_metadata, "timeout": 30}

    async def output(run_id: str, workspace: str = "default") -> bytes:
        request = reads_pb2.ReadRunOutputRequest(run_id=run_id, workspace=workspace)
        return b"".join([response.data async for response in reads.ReadRunOutput(request, **as_api)])

    id_ = order.lease.lease_id
    assert await output(f"{id_}.1") == LARGE
    assert orjson.loads(await output(f"{id_}.2")) == {"small": True}
    for run_id, workspace in ((f"{id_}.3", "default"), ("x", "default"), (f"{id_}.1", "elsewhere")):
        assert (await refusal_of(output(run_id, workspace))).reason == "RUN_NOT_FOUND"


async def test_output_that_is_not_there_is_not_found(on_stage: Stage) -> None:
    address, order, _, grant = await at_b(on_stage)
    reads = ReadServiceStub(on_stage.channel(address))
    as_api: dict[str, Any] = {"metadata": on_stage.api_metadata, "timeout": 30}

    async def read(number: int) -> None:
        request = reads_pb2.ReadRunOutputRequest(run_id=f"{order.lease.lease_id}.{number}", workspace="default")
        async for _ in reads.ReadRunOutput(request, **as_api):
            pass

    assert (await refusal_of(read(2))).reason == "OUTPUT_NOT_FOUND", "the run is going"
    (on_stage.directory / "outputs" / grant.outputs["a"].ref.key).unlink()
    assert (await refusal_of(read(1))).reason == "OUTPUT_NOT_FOUND"
