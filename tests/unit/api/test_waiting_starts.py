"""Each caller that waits for the end of a start is told the end, and a refused start leaves nothing behind."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from services.api.app import ports
from services.api.app.executions import Executions
from services.api.app.identifiers import Identifiers
from services.api.app.startables import Startables
from services.api.app.starts import Starter
from services.api.peers import enqueue_streams
from services.api.peers.coordinators import event_of, execution_of
from services.api.peers.enqueue_streams import EnqueueStreams
from services.api.peers.watch_streams import WatchStreams
from services.api.rpc import translate
from services.api.rpc.starting import Starting
from services.api.rpc.structs import document_of
from services.chassis.grpc.errors import DependencyUnavailable, remote_status
from services.chassis.identity.callers import CallerKind, Identity, set_caller
from services.chassis.process.clock import SystemClock
from services.chassis.telemetry.tracing import Sampler, new_trace
from tests.support.probe import INLINE_TURNS, some, turns_during, until
from tests.unit.api.test_start_orders import MemoryChecker, MemoryRequests, MemoryWorkflows
from windlass.api.v1 import executions_pb2, resources_pb2
from windlass.coordinator.v1 import reads_pb2
from windlass.dispatcher.v1 import queue_pb2

OUTPUT = {"list": [1, 2], "in": {"depth": ["a"]}}
TRACE = new_trace(sampled=False)
Answer = queue_pb2.EnqueueAnswer


class Running:
    """Coordinators and a queue that say of every execution that it goes on."""

    async def executions(self, execution_ids: Sequence[str]) -> Sequence[ports.ExecutionView]:
        execution = resources_pb2.Execution(id=execution_ids[0], state=resources_pb2.Execution.RUNNING)
        return [execution_of(reads_pb2.ExecutionRecord(execution=execution, workspace="team"))]

    async def queued(self, execution_ids: Sequence[str]) -> Sequence[ports.ExecutionView]:
        return ()


class Api:
    """Everything that a start passes through. The test has the other ends of both streams."""

    def __init__(self) -> None:
        set_caller(Identity(CallerKind.MEMBER, "key", "team", "ADMIN"))
        running: Any = Running()
        clock = SystemClock()
        self.watches = WatchStreams()
        self.coordinator = self.watches.opened()
        self.starts = EnqueueStreams(self.watches.flush)
        self.dispatcher = self.starts.opened()
        startables = Startables(MemoryWorkflows(), clock)
        starter = Starter(
            startables, self.starts, MemoryRequests(), MemoryChecker(), Identifiers(clock), clock, enqueue_seconds=5.0
        )
        executions = Executions(running, running, self.watches, clock)
        self.starting = Starting(starter, executions, self.watches, Sampler(0.0), clock)

    async def sent(self, count: int) -> list[str]:
        """The ids of the starts that the dispatcher gets, all at once."""
        await until(lambda: len(self.starts.outbox) == count, 5.0, f"{count} starts")
        request = some(self.starts.gathered(self.dispatcher))
        return [each.start.execution_id for each in request.items]

    def ended(self, execution_id: str) -> None:
        record = reads_pb2.ExecutionRecord(
            execution=resources_pb2.Execution(id=execution_id, state=resources_pb2.Execution.SUCCESS),
            workspace="team",
            input=b'{"id": 1}',
            output=orjson.dumps(OUTPUT),
        )
        update = reads_pb2.Update(execution_id=execution_id, final=record)
        self.watches.heard(self.coordinator, reads_pb2.WatchResponse(updates=[update]))


def waiting(**more: Any) -> executions_pb2.StartExecutionRequest:
    request = executions_pb2.StartExecutionRequest(workflow="intake", **more)
    request.input.update({"id": 1})
    request.wait.seconds = 20
    return request


async def test_all_who_wait_for_one_execution_are_told_the_same() -> None:
    api = Api()
    all_ = [asyncio.create_task(api.starting.one(waiting(request_id="r"), TRACE, math.inf)) for _ in range(3)]
    first, *repeats = await api.sent(3)
    answers = [Answer(execution_id=first, outcome=Answer.QUEUED)]
    answers += [Answer(execution_id=each, outcome=Answer.EXISTING, existing_execution_id=first) for each in repeats]
    api.starts.heard(api.dispatcher, queue_pb2.EnqueueResponse(answers=answers))

    def all_are_told() -> bool:
        api.ended(first)  # this is repeated, because callers that came later begin to wait a moment later
        return all(each.done() for each in all_)

    await until(all_are_told, 5.0, "all to be told")
    told = await asyncio.gather(*all_)
    assert [document_of(each.execution.output, 1_000) for each in told] == [OUTPUT] * 3


def test_a_record_stays_as_it_is_for_its_next_reader() -> None:
    content = orjson.dumps(OUTPUT)
    event, run = reads_pb2.EventRecord(details=content), reads_pb2.RunRecord(output=content)
    events = [translate.event(event_of(event)) for _ in range(2)]
    assert [document_of(each.details, 1_000) for each in events] == [OUTPUT] * 2
    runs = [translate.run(run) for _ in range(2)]
    assert [document_of(each.output.struct_value, 1_000) for each in runs] == [OUTPUT] * 2


async def test_others_are_served_while_a_large_answer_is_made() -> None:
    content = orjson.dumps({"list": [1.5] * 50_000})
    record = reads_pb2.ExecutionRecord(workspace="team", input=b"{}", output=content)
    answer, turns = await turns_during(translate.answer(executions_pb2.GetExecutionResponse(), execution_of(record)))
    assert document_of(answer.execution.output, 1_000_000) == orjson.loads(content)
    assert turns > INLINE_TURNS


async def test_start_that_is_refused_on_its_way_leaves_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue_streams, "PENDING_MAX", 1)
    api = Api()
    first = asyncio.create_task(api.starting.one(waiting(), TRACE, math.inf))
    (begun,) = await api.sent(1)
    with pytest.raises(DependencyUnavailable):
        await api.starting.one(waiting(), TRACE, math.inf)
    items = await api.starting.all([waiting(), waiting(), waiting()], None, math.inf)
    assert [remote_status(item.status).reason for item in items] == ["DEPENDENCY_UNAVAILABLE"] * 3
    assert api.watches.waiting_since(math.inf) == [begun]
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert not api.watches.waiting_since(math.inf)
