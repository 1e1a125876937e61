"""The streams to dispatchers and coordinators go on when peers on real sockets fall silent, break and come back.

The peers follow a script. The api is the real one, on a real PostgreSQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest
import pytest_asyncio
from google.protobuf import json_format
from prometheus_client import REGISTRY

from services.chassis.grpc.errors import RemoteError, remote_error
from tests.integration.api.conftest import RunningApi, make_key, running_api
from tests.support.postgres import PostgresCluster, free_port
from tests.support.probe import until
from windlass.api.v1 import executions_pb2, resources_pb2, workflows_pb2, workspaces_pb2
from windlass.api.v1.executions_pb2_grpc import ExecutionServiceStub
from windlass.api.v1.workflows_pb2_grpc import WorkflowServiceStub
from windlass.api.v1.workspaces_pb2_grpc import WorkspaceServiceStub
from windlass.coordinator.v1 import reads_pb2, reads_pb2_grpc
from windlass.dispatcher.v1 import queue_pb2, queue_pb2_grpc

Execution = resources_pb2.Execution
LEAVING = "leaving"


class ScriptedDispatcher:
    """Keeps the messages that arrive, and answers, ends the stream or stays silent as its script says."""

    def __init__(self) -> None:
        self.behaviour = "answer"
        self.outcome = queue_pb2.EnqueueAnswer.QUEUED
        self.batches: list[list[str]] = []
        self.rows: dict[str, queue_pb2.Queued] = {}
        self.configured: list[queue_pb2.ConfigureWorkspaceRequest] = []
        self.going_on = asyncio.Event()
        self.answered: Callable[[str], None] = lambda execution_id: None

    async def Enqueue(self, request_iterator: Any, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            self.batches.append([item.start.execution_id for item in request.items])
            if self.behaviour == "hang up":
                return
            if self.behaviour == "wait":
                await self.going_on.wait()
            if self.behaviour == "silent":
                continue
            answers = []
            for item in request.items:
                execution_id = item.start.execution_id
                self.rows[execution_id] = queue_pb2.Queued(start=item.start, state=queue_pb2.Queued.PENDING)
                answers.append(queue_pb2.EnqueueAnswer(execution_id=execution_id, outcome=self.outcome))
                self.answered(execution_id)
            await context.write(queue_pb2.EnqueueResponse(answers=answers))

    async def GetQueued(self, request: Any, context: Any) -> queue_pb2.GetQueuedResponse:
        return queue_pb2.GetQueuedResponse(items=[self.rows[id_] for id_ in request.execution_ids if id_ in self.rows])

    async def FindRequests(self, request: Any, context: Any) -> queue_pb2.FindRequestsResponse:
        return queue_pb2.FindRequestsResponse()

    async def ConfigureWorkspace(self, request: Any, context: Any) -> queue_pb2.ConfigureWorkspaceResponse:
        if self.behaviour == "away":
            await context.abort(grpc.StatusCode.UNAVAILABLE)
        self.configured.append(request)
        return queue_pb2.ConfigureWorkspaceResponse()

    def has_heard_of(self, workspace: str) -> bool:
        return any(request.workspace == workspace for request in self.configured)

    async def ListQueued(self, request: Any, context: Any) -> queue_pb2.ListQueuedResponse:
        items = [row for row in self.rows.values() if row.start.workspace == request.workspace]
        return queue_pb2.ListQueuedResponse(items=items)

    async def Deliver(self, request: Any, context: Any) -> queue_pb2.DeliverResponse:
        return queue_pb2.DeliverResponse(found=request.message.execution_id in self.rows)

    async def GetQueuePlace(self, request: Any, context: Any) -> queue_pb2.GetQueuePlaceResponse:
        return queue_pb2.GetQueuePlaceResponse()

    async def ListFailed(self, request: Any, context: Any) -> queue_pb2.ListFailedResponse:
        return queue_pb2.ListFailedResponse()

    async def GetFailed(self, request: Any, context: Any) -> queue_pb2.GetFailedResponse:
        return queue_pb2.GetFailedResponse()

    async def ResolveFailed(self, request: Any, context: Any) -> queue_pb2.ResolveFailedResponse:
        return queue_pb2.ResolveFailedResponse()

    async def WakeParked(self, request: Any, context: Any) -> queue_pb2.WakeParkedResponse:
        return queue_pb2.WakeParkedResponse()


class ScriptedCoordinator:
    """Knows one execution, and pushes its end when the test says so."""

    def __init__(self) -> None:
        self.records: dict[str, reads_pb2.ExecutionRecord] = {}
        self.subscriptions: dict[str, reads_pb2.Subscription] = {}
        self.streams: list[Any] = []

    async def Watch(self, request_iterator: Any, context: Any) -> None:
        self.streams.append(context)
        try:
            while (request := await context.read()) is not grpc.aio.EOF:
                self.subscriptions.update((each.execution_id, each) for each in request.subscriptions)
        finally:
            self.streams.remove(context)

    async def push(self, update: reads_pb2.Update) -> None:
        for stream in self.streams:
            await stream.write(reads_pb2.WatchResponse(updates=[update]))

    def commit(self, execution_id: str, *, workspace: str = "default", is_final: bool = False) -> None:
        state = Execution.SUCCESS if is_final else Execution.RUNNING
        execution = Execution(id=execution_id, state=state, last_seq=1)
        self.records[execution_id] = reads_pb2.ExecutionRecord(execution=execution, workspace=workspace)

    async def GetExecutions(self, request: Any, context: Any) -> reads_pb2.GetExecutionsResponse:
        found = [self.records[id_] for id_ in request.execution_ids if id_ in self.records]
        return reads_pb2.GetExecutionsResponse(executions=found)

    async def ListEvents(self, request: Any, context: Any) -> reads_pb2.ListEventsResponse:
        return reads_pb2.ListEventsResponse(workspace="default")

    async def ListExecutions(self, request: Any, context: Any) -> reads_pb2.ListExecutionsResponse:
        return reads_pb2.ListExecutionsResponse(executions=self.records.values())

    async def ListRuns(self, request: Any, context: Any) -> reads_pb2.ListRunsResponse:
        return reads_pb2.ListRunsResponse()

    async def FindAnswer(self, request: Any, context: Any) -> reads_pb2.FindAnswerResponse:
        return reads_pb2.FindAnswerResponse()

    async def GetStartOrder(self, request: Any, context: Any) -> reads_pb2.GetStartOrderResponse:
        return reads_pb2.GetStartOrderResponse()

    async def GetPastExecution(self, request: Any, context: Any) -> reads_pb2.GetPastExecutionResponse:
        return reads_pb2.GetPastExecutionResponse()

    async def ExplainExecution(self, request: Any, context: Any) -> reads_pb2.ExplainExecutionResponse:
        return reads_pb2.ExplainExecutionResponse()

    async def ListApprovals(self, request: Any, context: Any) -> reads_pb2.ListApprovalsResponse:
        return reads_pb2.ListApprovalsResponse()

    async def GetApproval(self, request: Any, context: Any) -> reads_pb2.GetApprovalResponse:
        return reads_pb2.GetApprovalResponse()

    async def ListModules(self, request: Any, context: Any) -> reads_pb2.ListModulesResponse:
        return reads_pb2.ListModulesResponse()

    async def GetRun(self, request: Any, context: Any) -> reads_pb2.GetRunResponse:
        return reads_pb2.GetRunResponse()

    async def ReadRunInputs(self, request: Any, context: Any) -> reads_pb2.ReadRunInputsResponse:
        return reads_pb2.ReadRunInputsResponse()

    async def StreamRunInputs(self, request: Any, context: Any) -> AsyncIterator[reads_pb2.StreamRunInputsResponse]:
        yield reads_pb2.StreamRunInputsResponse(data=b"{}")

    async def ReadRunOutput(self, request: Any, context: Any) -> AsyncIterator[reads_pb2.ReadRunOutputResponse]:
        yield reads_pb2.ReadRunOutputResponse(data=b"{}")


class World:
    def __init__(self, api: RunningApi, peers: list[ScriptedDispatcher], coordinator: ScriptedCoordinator) -> None:
        self.dispatchers = peers
        self.coordinator = coordinator
        self.api = api
        self.channel = api.channel()
        self.metadata = api.bearer(api.keys.admin)
        self.executions = ExecutionServiceStub(self.channel)
        self.workflows = WorkflowServiceStub(self.channel)
        self.workspaces = WorkspaceServiceStub(self.channel)
        self.system = api.bearer(api.keys.system)

    def behave(self, behaviour: str) -> None:
        for dispatcher in self.dispatchers:
            dispatcher.behaviour = behaviour

    async def start(self, **fields: Any) -> executions_pb2.StartExecutionResponse:
        request = json_format.ParseDict({"workflow": "one", **fields}, executions_pb2.StartExecutionRequest())
        response: executions_pb2.StartExecutionResponse = await self.executions.StartExecution(
            request, metadata=self.metadata, timeout=20
        )
        return response

    async def apply(self, metadata: Any) -> None:
        """Apply the workflow in the workspace of the key."""
        request = json_format.ParseDict(
            {"definition": {"name": "one", "nodes": [{"id": "a", "module": "noop@1"}]}},
            workflows_pb2.ApplyWorkflowRequest(),
        )
        await self.workflows.ApplyWorkflow(request, metadata=metadata, timeout=10)

    async def refusal(self, **fields: Any) -> RemoteError:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await self.start(**fields)
        return remote_error(failed.value)


DISPATCHER = (queue_pb2_grpc.add_EnqueueServiceServicer_to_server, queue_pb2_grpc.add_QueueServiceServicer_to_server)
COORDINATOR = (reads_pb2_grpc.add_ReadServiceServicer_to_server, reads_pb2_grpc.add_WatchServiceServicer_to_server)


async def served(servicer: Any, adders: Sequence[Any]) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server()
    for add in adders:
        add(servicer, server)
    address = f"127.0.0.1:{free_port()}"
    server.add_insecure_port(address)
    await server.start()
    return server, address


@pytest_asyncio.fixture(loop_scope="session")
async def world(postgres: PostgresCluster, tmp_path: Path) -> AsyncIterator[World]:
    database = await postgres.database(migrated=True)
    dispatchers, coordinator = [ScriptedDispatcher(), ScriptedDispatcher()], ScriptedCoordinator()
    peers = [await served(each, DISPATCHER) for each in dispatchers]
    addresses = [address for _, address in peers]
    peers.append(await served(coordinator, COORDINATOR))
    coordinator_address = peers[-1][1]
    async with running_api(
        database, tmp_path, dispatchers=",".join(addresses), coordinators=coordinator_address
    ) as api:
        made = World(api, dispatchers, coordinator)
        await made.apply(made.metadata)
        yield made
        await made.channel.close()
    for server, _ in peers:
        await server.stop(None)
    await postgres.drop(database)


def sent(world: World) -> list[str]:
    return [id_ for dispatcher in world.dispatchers for batch in dispatcher.batches for id_ in batch]


async def test_start_is_sent_again_under_its_id_when_the_stream_ends_before_the_answer(world: World) -> None:
    world.behave("hang up")
    starting = asyncio.create_task(world.start())
    await until(lambda: len(sent(world)) >= 2, 10, "the start to be sent a second time")
    world.behave("answer")
    response = await starting
    assert response.execution.state == Execution.PENDING
    assert set(sent(world)) == {response.execution.id}


async def test_start_that_nobody_answers_is_given_up_as_unavailable(world: World) -> None:
    world.behave("silent")
    error = await world.refusal()
    assert (error.code.name, error.reason) == ("UNAVAILABLE", "DEPENDENCY_UNAVAILABLE")
    assert error.retry_after


async def test_starts_that_arrive_during_a_commit_are_sent_together(world: World) -> None:
    world.behave("wait")
    starting = [asyncio.create_task(world.start()) for _ in range(60)]
    await until(lambda: REGISTRY.get_sample_value("windlass_api_starts_waiting") == 60, 10, "all of them to wait")
    for dispatcher in world.dispatchers:
        dispatcher.going_on.set()
    ids = {response.execution.id for response in await asyncio.gather(*starting)}
    assert sorted(sent(world)) == sorted(ids)
    assert len(ids) == 60
    # Two messages were sent to each before. The rest had gathered.
    assert sum(len(each.batches) for each in world.dispatchers) <= 5


@pytest.mark.parametrize(
    ("outcome", "code", "reason"),
    [
        ("REQUEST_ID_REUSED", "ALREADY_EXISTS", "REQUEST_ID_REUSED"),
        ("QUEUE_FULL", "RESOURCE_EXHAUSTED", "QUEUE_FULL"),
        ("WORKSPACE_CLOSED", "UNAUTHENTICATED", "KEY_INVALID"),
        ("REJECTED", "INTERNAL", "INTERNAL"),
    ],
)
async def test_outcome_has_its_reason(world: World, outcome: str, code: str, reason: str) -> None:
    for dispatcher in world.dispatchers:
        dispatcher.outcome = queue_pb2.EnqueueAnswer.Outcome.Value(outcome)
    error = await world.refusal(requestId="r")
    assert (error.code.name, error.reason) == (code, reason)
    if outcome == "QUEUE_FULL":
        assert error.quota
        assert error.retry_after


async def test_waiting_start_has_subscribed_before_it_is_sent(world: World) -> None:
    heard_before: list[bool] = []

    def note(execution_id: str) -> None:
        world.coordinator.commit(execution_id, is_final=True)
        heard_before.append(execution_id in world.coordinator.subscriptions)

    async def finish() -> None:
        await until(lambda: bool(world.coordinator.subscriptions), 10, "a subscription")
        (execution_id,) = world.coordinator.subscriptions
        await until(lambda: execution_id in world.coordinator.records, 10, "its start")
        update = reads_pb2.Update(execution_id=execution_id, final=world.coordinator.records[execution_id])
        await world.coordinator.push(update)

    for dispatcher in world.dispatchers:
        dispatcher.answered = note
    finishing = asyncio.create_task(finish())
    response = await world.start(wait="15s")
    await finishing
    assert response.execution.state == Execution.SUCCESS
    assert not world.coordinator.subscriptions[response.execution.id].events


async def test_waiting_start_learns_that_it_was_never_admitted(world: World) -> None:
    waiting = asyncio.create_task(world.start(wait="15s"))
    await until(lambda: any(each.rows for each in world.dispatchers), 10, "the start")
    for dispatcher in world.dispatchers:
        for row in dispatcher.rows.values():
            row.state = queue_pb2.Queued.FAILED
            row.failure_reason = "VERSION_NOT_FOUND"
            row.failure_time.GetCurrentTime()
    # Any replica answers for any row.
    rows = {id_: row for each in world.dispatchers for id_, row in each.rows.items()}
    for dispatcher in world.dispatchers:
        dispatcher.rows = rows
    execution = (await waiting).execution
    assert (execution.state, execution.error.type) == (Execution.FAILED, "ADMISSION")
    assert execution.error.message.startswith("VERSION_NOT_FOUND")


@pytest.mark.parametrize(
    ("tier", "weight"), [(workspaces_pb2.FREE, 1), (workspaces_pb2.PRO, 2), (workspaces_pb2.ENTERPRISE, 4)]
)
async def test_a_start_brings_the_weight_of_its_workspaces_tier(
    world: World, tier: workspaces_pb2.Tier.ValueType, weight: int
) -> None:
    """By it coordinators share the places of runners (tests/integration/coordinator/test_weights.py)."""
    create = workspaces_pb2.CreateWorkspaceRequest(workspace="weighed", tier=tier)
    await world.workspaces.CreateWorkspace(create, metadata=world.system, timeout=10)
    await make_key(world.api, "of the weighed", "WORKFLOW", workspace="weighed")
    member = world.api.bearer("of the weighed")
    await world.apply(member)
    request = executions_pb2.StartExecutionRequest(workflow="one")
    started = await world.executions.StartExecution(request, metadata=member, timeout=20)
    (order,) = [each.rows[id_].start for each in world.dispatchers for id_ in each.rows if id_ == started.execution.id]
    assert order.runner_weight == weight


async def revoke(world: World, key_id: str) -> None:
    await _change_key(world, "UPDATE api_keys SET revoke_time = now() WHERE key_id = %s", key_id)


async def let_expire(world: World, key_id: str) -> None:
    await _change_key(world, "UPDATE api_keys SET expire_time = now() + interval '1 s' WHERE key_id = %s", key_id)


async def close_its_workspace(world: World, key_id: str) -> None:
    request = workspaces_pb2.DeleteWorkspaceRequest(workspace=LEAVING)
    await world.workspaces.DeleteWorkspace(request, metadata=world.system, timeout=10)


async def _change_key(world: World, statement: str, key_id: str) -> None:
    async with await psycopg.AsyncConnection.connect(world.api.url) as connection:
        await connection.execute(statement, (key_id,))


@pytest.mark.parametrize(
    ("end", "reason"), [(revoke, "KEY_INVALID"), (let_expire, "KEY_EXPIRED"), (close_its_workspace, "KEY_INVALID")]
)
async def test_a_watch_and_a_waiting_start_end_with_their_key(
    world: World, end: Callable[[World, str], Awaitable[None]], reason: str
) -> None:
    """How soon is in tests/unit/api/test_ended_keys.py."""
    create = workspaces_pb2.CreateWorkspaceRequest(workspace=LEAVING, tier=workspaces_pb2.PRO)
    await world.workspaces.CreateWorkspace(create, metadata=world.system, timeout=10)
    key_id = await make_key(world.api, "of a person who leaves", "WORKFLOW", workspace=LEAVING)
    leaver = world.api.bearer("of a person who leaves")
    await world.apply(leaver)
    start = json_format.ParseDict({"workflow": "one", "wait": "60s"}, executions_pb2.StartExecutionRequest())
    watched = executions_pb2.StartExecutionRequest(workflow="one")
    watched_id = (await world.executions.StartExecution(watched, metadata=leaver, timeout=20)).execution.id
    world.coordinator.commit(watched_id, workspace=LEAVING)
    watch = world.executions.WatchExecution(
        executions_pb2.WatchExecutionRequest(execution_id=watched_id), metadata=leaver, timeout=60
    )
    waiting: list[Any] = [
        asyncio.ensure_future(watch.read()),
        world.executions.StartExecution(start, metadata=leaver, timeout=60),
        world.executions.StartExecution(start, metadata=leaver),
    ]
    staying: asyncio.Future[Any] = asyncio.ensure_future(
        world.executions.StartExecution(start, metadata=world.metadata, timeout=60)
    )
    await until(lambda: len(sent(world)) == 4 and watched_id in world.coordinator.subscriptions, 10, "all to wait")
    await end(world, key_id)
    async with asyncio.timeout(20):
        ended = await asyncio.gather(*waiting, return_exceptions=True)
    errors = [remote_error(each) for each in ended if isinstance(each, grpc.aio.AioRpcError)]
    assert [(each.code.name, each.reason) for each in errors] == [("UNAUTHENTICATED", reason)] * 3
    assert not staying.done()
    staying.cancel()


async def test_limits_reach_every_dispatcher(world: World) -> None:
    await until(lambda: all(each.configured for each in world.dispatchers), 10, "the limits of the first workspace")
    for dispatcher in world.dispatchers:
        told = dispatcher.configured[-1]
        assert (told.workspace, told.limits.executions_max, told.closed) == ("default", 1_000, False)


async def test_limits_reach_who_is_there_and_the_one_that_was_away_when_it_is_back(world: World) -> None:
    # They are asked in turn, so that the one that is away is sometimes the first.
    for number, away in enumerate(world.dispatchers):
        other = world.dispatchers[1 - number]
        away.behaviour = "away"
        request = workspaces_pb2.CreateWorkspaceRequest(workspace=f"w{number}", tier=workspaces_pb2.PRO)
        await world.workspaces.CreateWorkspace(request, metadata=world.system, timeout=10)
        await until(partial(other.has_heard_of, request.workspace), 10, "the limits at the one that is there")
        assert not away.has_heard_of(request.workspace)
        away.behaviour = "answer"
        await until(partial(away.has_heard_of, request.workspace), 10, "the limits at the one that came back")


async def test_peers_come_and_go_with_their_list(postgres: PostgresCluster, tmp_path: Path) -> None:
    database = await postgres.database(migrated=True)
    dispatchers = [ScriptedDispatcher(), ScriptedDispatcher()]
    (leaving, first_address), (staying, second_address) = [await served(each, DISPATCHER) for each in dispatchers]
    listed = tmp_path / "dispatchers"
    listed.write_text(first_address)
    async with running_api(database, tmp_path, dispatchers=f"@{listed}") as api:
        world = World(api, dispatchers, ScriptedCoordinator())
        request = json_format.ParseDict(
            {"definition": {"name": "one", "nodes": []}}, workflows_pb2.ApplyWorkflowRequest()
        )
        await world.workflows.ApplyWorkflow(request, metadata=world.metadata, timeout=10)
        first = (await world.start()).execution.id
        listed.write_text(second_address)
        await leaving.stop(None)
        second = (await world.start()).execution.id
        await world.channel.close()
    assert dispatchers[0].batches == [[first]]
    assert dispatchers[1].batches == [[second]]
    await staying.stop(None)
    await postgres.drop(database)
