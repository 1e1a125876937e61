"""Signals, decisions and outcomes from outside count once when services die under them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.chassis.grpc.errors import remote_error
from tests.chaos.load import PatientClient
from tests.chaos.verify import SHOWN, verify
from tests.support.api import Client
from tests.support.pace import pause
from tests.support.probe import eventually
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import approvals_pb2, executions_pb2, resources_pb2, runs_pb2, workspaces_pb2
from windlass.api.v1.workspaces_pb2_grpc import ApiKeyServiceStub

MODULES = Path(__file__).with_name("deferring_modules.py")
Approval = resources_pb2.Approval
COUNT = 30
# Each service dies so often, with one or the other of its replicas.
ROUNDS = 3
REPLICAS = {"api": 1, "dispatcher": 2, "coordinator": 2, "runner": 2}
# Two nodes wait for the same signal, so a signal that counted twice would end both.
NODES: list[dict[str, Any]] = [
    {"id": "first", "module": "wait_signal@1", "config": {"signal": "go"}},
    {"id": "second", "module": "wait_signal@1", "config": {"signal": "go"}},
    {"id": "ask", "module": "approval@1", "config": {"title": "Go on?", "required": 2}},
    {"id": "away", "module": "test.defers@1", "inputs": {"file": "{{ input.file }}"}},
    {"id": "end", "module": "noop@1"},
]
EDGES = [
    {"from": "first", "to": "second"},
    {"from": "second", "to": "ask"},
    {"from": "ask", "to": "away", "when": "approved"},
    {"from": "away", "to": "end"},
]


@pytest.mark.chaos
@pytest.mark.timeout(240)
async def test_killed_at_random_instants_each_signal_decision_and_completion_counts_once(ledger: Path) -> None:
    replicas: dict[str, Any] = {f"{service}s": count for service, count in REPLICAS.items()}
    async with running_stack(modules=[MODULES], **replicas) as stack:
        client, second_key = PatientClient(stack), await _second_key(stack)
        await client.apply("waits", NODES, edges=EDGES)
        inputs = [{"file": str(ledger / f"token-{number}")} for number in range(COUNT)]
        executions = [await client.start("waits", input=json_format.ParseDict(each, Struct())) for each in inputs]
        async with asyncio.TaskGroup() as group:
            group.create_task(_kill_many(stack))
            for execution, given in zip(executions, inputs, strict=True):
                group.create_task(_carry(client, second_key, execution.id, Path(given["file"])))
        for execution in executions:
            ended = await client.end_of(execution.id)
            assert ended.state == resources_pb2.Execution.SUCCESS, ended.error
            await _counted_once(client, execution.id)
        await verify(stack, SHOWN)


async def _kill_many(stack: Stack) -> None:
    draw = random.Random("waits")
    for _ in range(ROUNDS):
        for service in draw.sample(list(REPLICAS), len(REPLICAS)):
            replica = draw.randrange(REPLICAS[service])
            await pause(draw.uniform(0.1, 0.5))
            await stack.ready_again(service, replica, stack.kill(service, replica))


async def _carry(client: Client, second_key: Client, execution_id: str, file: Path) -> None:
    """Bring the execution to its end. Everything is sent twice, as by a caller that has lost the answer."""
    for number in (1, 2):
        signal = executions_pb2.SignalExecutionRequest(
            execution_id=execution_id, signal="go", request_id=f"go-{number}"
        )
        signal.payload.update({"number": number})
        for _ in range(2):
            await _sent(lambda signal=signal: client.call(client.executions.SignalExecution, signal))  # type: ignore[misc]
    request = approvals_pb2.ListApprovalsRequest(filter=f'execution_id = "{execution_id}"')

    async def asked() -> Any:
        with contextlib.suppress(grpc.aio.AioRpcError):
            return list((await client.call(client.approvals.ListApprovals, request)).approvals)
        return None

    (approval,) = await eventually(asked, 60.0, "the approval")
    decision = approvals_pb2.DecideApprovalRequest(approval_id=approval.id, decision=Approval.APPROVE)
    for key in (client, client, second_key, second_key):
        await _sent(lambda key=key: key.call(key.approvals.DecideApproval, decision))  # type: ignore[misc]
    beat = {"progress": 0.5, "message": "half of it"}
    failure = {"type": "BANK", "message": "closed", "retryable": True}
    failed = await _told(client, file, "", HeartbeatRun=beat, FailRun=failure)
    output = json_format.ParseDict({"of": execution_id}, Struct())
    await _told(client, file, failed, HeartbeatRun=beat, CompleteRun={"output": output})


async def _told(client: Client, file: Path, before: str, **calls: dict[str, Any]) -> str:
    """Make these calls with the token of the attempt that follows that of the token `before`. An attempt whose runner
    died before it was known to be deferred is over, and another one has a token of its own. Returns the token."""

    async def newer() -> str:
        found = await asyncio.to_thread(_text, file)
        return "" if found == before else found

    while True:
        token = await eventually(newer, 60.0, "the token")
        try:
            for name, fields in calls.items():
                request = getattr(runs_pb2, f"{name}Request")(token=token, **fields)
                for _ in range(2):
                    await _sent(lambda name=name, request=request: getattr(client.runs, name)(request, timeout=20.0))  # type: ignore[misc]
        except grpc.aio.AioRpcError as error:
            if remote_error(error).reason != "RUN_ENDED":
                raise
            before = token
        else:
            return str(token)


async def _sent(call: Callable[[], Awaitable[Any]]) -> None:
    """Repeat the call until it is answered."""

    async def is_answered() -> bool:
        try:
            await call()
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return False
            raise
        return True

    await eventually(is_answered, 60.0, "an answer")


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def _second_key(stack: Stack) -> Client:
    request = workspaces_pb2.CreateApiKeyRequest(workspace="default", role=workspaces_pb2.WORKFLOW, title="second")
    made = await ApiKeyServiceStub(stack.channel()).CreateApiKey(request, metadata=stack.metadata())
    return Client(stack, made.key)


async def _counted_once(client: Client, execution_id: str) -> None:
    request = executions_pb2.ListEventsRequest(execution_id=execution_id, page_size=1_000)
    events = list((await client.call(client.executions.ListEvents, request)).events)
    counts = {name: [each.type for each in events].count(name) for name in ("SignalReceived", "SignalTaken")}
    counts |= {name: [each.type for each in events].count(name) for name in ("ApprovalDecided", "OutsideAnswered")}
    assert counts == {"SignalReceived": 2, "SignalTaken": 2, "ApprovalDecided": 2, "OutsideAnswered": 2}
    runs = await client.runs_of(execution_id)
    outputs = {run.node: run.output for run in runs if run.HasField("output")}
    # The run of a runner that died is neither of these.
    (failed,) = [run for run in runs if run.error.type == "BANK"]
    (done,) = [run for run in runs if (run.node, run.state) == ("away", resources_pb2.Run.SUCCESS)]
    assert {failed.progress.message, done.progress.message} == {"half of it"}, "each before what follows it"
    numbers = [json_format.MessageToDict(outputs[node])["number"] for node in ("first", "second")]
    assert numbers == [1, 2], "in the order of their sender"
    assert json_format.MessageToDict(outputs["away"]) == {"of": execution_id}
