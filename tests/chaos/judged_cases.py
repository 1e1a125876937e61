"""Executions that bring about what `windlass admin verify` judges: waits, pauses, and decisions about dead letters."""

from __future__ import annotations

import time
from typing import Any, cast

from tests.chaos.load import Load
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import circuits_pb2, dead_letters_pb2, executions_pb2, resources_pb2
from windlass.api.v1.dead_letters_pb2_grpc import DeadLetterServiceStub


async def held_back(load: Load) -> str:
    client, name = load.client, "held-back"
    await client.apply(name, [{"id": "a", "module": "http.request@1", "config": {"url": "http://127.0.0.1:1/"}}])
    opening = circuits_pb2.OpenCircuitRequest(target="http.request@1 127.0.0.1:1")
    opening.until.FromMilliseconds(time.time_ns() // 1_000_000 + 5_000)
    await client.call(client.circuits.OpenCircuit, opening)

    async def one_that_waited() -> str:
        """Before a coordinator has heard of the circuit, a runner is granted the work: it makes the call, which is
        refused, or hands it back."""
        execution_id = await load.start(name)
        await load.final(execution_id)
        request = executions_pb2.ListEventsRequest(execution_id=execution_id, page_size=100)
        events = (await client.call(client.executions.ListEvents, request)).events
        types = [event.type for event in events]
        waited = "WorkLetThrough" in types and types.index("WorkHeldBack") < types.index("RunLeased")
        return execution_id if waited else ""

    return await eventually(one_that_waited, 30, "work that waits for a circuit")


async def discarded(stack: Stack, load: Load) -> str:
    client = load.client
    await client.apply("discarded", [{"id": "a", "module": "fail@1", "config": {"type": "PERMANENT"}}])
    execution_id = await load.start("discarded")
    await load.final(execution_id)
    letters: Any = DeadLetterServiceStub(stack.channel())
    request = dead_letters_pb2.DiscardDeadLetterRequest(dead_letter_id=f"{execution_id}.1")
    await client.call(letters.DiscardDeadLetter, request)
    return execution_id


async def paused(load: Load) -> str:
    client, name = load.client, "paused"
    nodes: list[dict[str, Any]] = [
        {"id": "wait", "module": "wait_signal@1", "config": {"signal": "go"}},
        {"id": "b", "module": "noop@1"},
    ]
    await client.apply(name, nodes, edges=[{"from": "wait", "to": "b"}])
    execution_id = await load.start(name)
    executions = client.executions
    paused = executions_pb2.PauseExecutionRequest(execution_id=execution_id, request_id="once")
    await client.call(executions.PauseExecution, paused)
    signal = executions_pb2.SignalExecutionRequest(execution_id=execution_id, signal="go")
    await client.call(executions.SignalExecution, signal)
    await client.call(executions.ResumeExecution, executions_pb2.ResumeExecutionRequest(execution_id=execution_id))
    await load.final(execution_id)
    return execution_id


async def fixed(stack: Stack, load: Load) -> None:
    """A person has done the work of its dead letter, so it goes on without another run."""
    client, letters = load.client, DeadLetterServiceStub(stack.channel())
    nodes: list[dict[str, Any]] = [
        {"id": "a", "module": "fail@1", "config": {"type": "PERMANENT"}},
        {"id": "b", "module": "noop@1"},
    ]
    await client.apply("fixed", nodes, edges=[{"from": "a", "to": "b"}])
    execution_id = await load.start("fixed")
    await load.final(execution_id)
    request = dead_letters_pb2.MarkDeadLetterFixedRequest(dead_letter_id=f"{execution_id}.1", notes="by hand")
    await client.call(cast("Any", letters).MarkDeadLetterFixed, request)
    assert (await client.end_of(execution_id)).state == resources_pb2.Execution.SUCCESS


async def loop_over_a_workflow(load: Load) -> None:
    await load.client.apply("item", [{"id": "a", "module": "noop@1"}])
    config = {"items": [1, 2], "body": {"workflow": "item"}}
    await load.client.apply("each", [{"id": "each", "module": "for_each@1", "config": config}])
    await load.final(await load.start("each"))
