"""The reads of api at a coordinator: rows, runs, events, and the watch of one execution."""

import asyncio
from typing import Any

import orjson

from services.coordinator.store.reads import PAGE_BYTES
from tests.support.coordinator_stage import Stage, eventually
from windlass.api.v1 import resources_pb2 as api
from windlass.coordinator.v1 import reads_pb2 as pb
from windlass.coordinator.v1.reads_pb2_grpc import ReadServiceStub, WatchServiceStub

NODES = [{"id": "a", "module": "noop@1"}, {"id": "b", "module": "noop@1"}]
PAIR = {"name": "w", "nodes": NODES, "edges": [{"from": "a", "to": "b"}]}


async def finished(on_stage: Stage, **more: Any) -> tuple[str, str]:
    """The coordinator's address, and the id of an execution that has ended."""
    version = on_stage.catalog.add("v-pair", **PAIR)
    address, session = await on_stage.coordinator()
    runner = await on_stage.runner(address)
    runner.work = lambda grant: {"from": grant.node}
    order = on_stage.dispatcher.order(version, input_={"x": 1}, **more)
    order.start.labels["region"], order.start.trigger_type = "eu", api.Execution.Trigger.MANUAL
    on_stage.dispatcher.grant(session, [order])
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
    return address, order.lease.lease_id


async def test_execution_is_read_with_its_runs_and_events(on_stage: Stage) -> None:
    address, id_ = await finished(on_stage)
    reads = ReadServiceStub(on_stage.channel(address))
    as_api: dict[str, Any] = {"metadata": on_stage.api_metadata, "timeout": 5}
    found = await reads.GetExecutions(pb.GetExecutionsRequest(execution_ids=[id_, "nonsense"]), **as_api)
    (record,) = found.executions
    assert record.execution.state == api.Execution.SUCCESS
    assert (record.workspace, dict(record.execution.labels)) == ("default", {"region": "eu"})
    assert orjson.loads(record.output) == {"b": {"from": "b"}}
    assert list(record.execution.summary.succeeded) == ["a", "b"]
    runs = await reads.ListRuns(pb.ListRunsRequest(workspace="default", execution_id=id_), **as_api)
    assert [(each.run.node, each.run.state) for each in runs.runs] == [("a", api.Run.SUCCESS), ("b", api.Run.SUCCESS)]
    elsewhere = await reads.ListRuns(pb.ListRunsRequest(workspace="other", execution_id=id_), **as_api)
    assert not elsewhere.runs
    events = await reads.ListEvents(pb.ListEventsRequest(execution_id=id_, after_seq=1), **as_api)
    assert [each.event.seq for each in events.events] == [2, 3, 4, 5, 6]
    assert [each.event.node for each in events.events] == ["a", "a", "b", "b", ""]


async def test_a_page_of_runs_is_cut_only_for_whoever_heeds_it_and_one_of_events_always(on_stage: Stage) -> None:
    version = on_stage.catalog.add(
        "v-wide", name="w", nodes=[{"id": f"n{number}", "module": "noop@1"} for number in range(13)]
    )
    address, session = await on_stage.coordinator()
    runner = await on_stage.runner(address)
    runner.work = lambda grant: "x" * 200_000
    order = on_stage.start(session, version)
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
    reads = ReadServiceStub(on_stage.channel(address))
    id_ = order.lease.lease_id
    request = pb.ListRunsRequest(workspace="default", execution_id=id_)
    as_api: dict[str, Any] = {"metadata": on_stage.api_metadata, "timeout": 5}
    for execution_id in (id_, ""):
        request.execution_id, request.takes_cut = execution_id, False
        whole = await reads.ListRuns(request, **as_api)
        request.takes_cut = True
        cut = await reads.ListRuns(request, **as_api)
        assert not whole.is_cut
        assert cut.is_cut
        assert len(whole.runs) >= 13
        assert list(cut.runs) == list(whole.runs[:11]), "the eleventh reaches PAGE_BYTES"
    read: list[int] = []
    while part := (
        await reads.ListEvents(pb.ListEventsRequest(execution_id=id_, after_seq=len(read)), **as_api)
    ).events:
        assert sum(len(each.details) for each in part[:-1]) < PAGE_BYTES
        read += [each.event.seq for each in part]
    assert read == list(range(1, len(read) + 1))
    assert len(read) >= 2 * 13 + 2


async def test_modules_are_those_of_the_runners_that_are_attached(on_stage: Stage) -> None:
    address, _ = await on_stage.coordinator()
    reads = ReadServiceStub(on_stage.channel(address))

    async def modules() -> list[str]:
        request = pb.ListModulesRequest(workspace="default")
        return list((await reads.ListModules(request, metadata=on_stage.api_metadata, timeout=5)).modules)

    assert await modules() == []
    await on_stage.runner(address)
    assert await modules() == ["noop@1", "transform@1", "x.y@1"]


async def test_a_watch_catches_up_and_ends_with_the_final_record(on_stage: Stage) -> None:
    address, id_ = await finished(on_stage)
    call: Any = WatchServiceStub(on_stage.channel(address)).Watch(metadata=on_stage.api_metadata)
    wanted = pb.Subscription(execution_id=id_, after_seq=2, events=True, catch_up=True)
    await call.write(pb.WatchRequest(subscriptions=[wanted]))
    updates: list[pb.Update] = []
    async with asyncio.timeout(10):
        while not (updates and updates[-1].HasField("final")):
            updates += (await call.read()).updates
    assert [each.event.event.seq for each in updates[:-1]] == [3, 4, 5, 6]
    assert updates[-1].final.execution.state == api.Execution.SUCCESS
    call.cancel()
