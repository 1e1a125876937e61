"""What people do with executions, told as stories that go on while a service is killed.

Each story brings its executions to a point at which they wait for somebody, and meets the others there. Then all
replicas of the service are killed at once. When they are back, the story is told to its end while single replicas are
killed, and checks how its executions have ended. Every command is given more than once, as by a caller that hears no
answer.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.chassis.grpc.errors import remote_error
from tests.chaos.history import calls_in
from tests.chaos.load import FINAL_SECONDS, PatientClient
from tests.support.api import new_workspace
from tests.support.pace import pause
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import dead_letters_pb2 as pb
from windlass.api.v1 import executions_pb2, resources_pb2
from windlass.api.v1.dead_letters_pb2_grpc import DeadLetterServiceStub

Execution = resources_pb2.Execution
DeadLetter = pb.DeadLetter
# How many executions each story is told of, and how often each command is given.
COUNT: Final = 3
REPEATS: Final = 3
# It fails for good until its inputs are good.
_STRICT: Final = {"id": "bad", "module": "ledger.strict@1", "inputs": {"good": False}}
_AFTER: Final = {"id": "after", "module": "ledger.put@1"}
_EDGES: Final = [{"from": "bad", "to": "after"}]
_ENDLESS: Final = {"id": "bad", "module": "ledger.put@1", "idempotent": True, "config": {"seconds": 3_600}}


def _sub(workflow: str) -> dict[str, Any]:
    return {"id": "kid", "module": "sub_workflow@1", "config": {"workflow": workflow}}


WORKFLOWS: Final[dict[str, dict[str, Any]]] = {
    "letters-ended": {"nodes": [_STRICT, _AFTER], "edges": _EDGES},
    "letters-redriven": {"nodes": [_STRICT, _AFTER], "edges": _EDGES},
    "letters-held": {"nodes": [_STRICT, _AFTER], "edges": _EDGES, "onFailure": "HOLD"},
    "letters-manual": {"nodes": [_ENDLESS, _AFTER], "edges": _EDGES, "onFailure": "HOLD"},
    "pauses": {
        "nodes": [
            {"id": "nap", "module": "sleep@1", "config": {"duration": "1s"}},
            {"id": "wait", "module": "wait_signal@1", "config": {"signal": "go"}},
            {"id": "rested", "module": "ledger.put@1"},
            {"id": "told", "module": "ledger.put@1"},
        ],
        "edges": [{"from": "nap", "to": "rested"}, {"from": "wait", "to": "told"}],
    },
    "child": {
        "nodes": [{"id": "wait", "module": "wait_signal@1", "config": {"signal": "go"}}, _AFTER],
        "edges": [{"from": "wait", "to": "after"}],
    },
    "parent": {"nodes": [_sub("child"), _AFTER], "edges": [{"from": "kid", "to": "after"}]},
    "calls": {
        "nodes": [{"id": "call", "module": "ledger.call@1", "inputs": {"target": "{{ input.target }}"}}],
        "retry": {"attempts": 100, "initialDelay": "100ms", "maxDelay": "500ms"},
    },
    "endless": {"nodes": [_ENDLESS]},
    "plain": {"nodes": [_AFTER]},
}


class Kills:
    """The deaths of one service, and the places at which all stories meet."""

    def __init__(self, stack: Stack, service: str, stories: int) -> None:
        self._stack = stack
        self._service = service
        self._draw = random.Random(service)
        self._all_wait = asyncio.Barrier(stories + 1)
        self._all_are_back = asyncio.Event()

    async def happen(self) -> None:
        """All replicas at once, and then one after the other. Work with which three runners have died is rightly set
        aside as poison, so each runner dies once more at most."""
        replicas = [each["replica"] for each in self._stack.entries(self._service)]
        await self._all_wait.wait()
        pids = [(replica, self._stack.kill(self._service, replica)) for replica in replicas]
        for replica, pid in pids:
            await self._stack.ready_again(self._service, replica, pid)
        self._all_are_back.set()
        for replica in replicas[:1] if self._service == "runner" else replicas:
            await pause(self._draw.uniform(0.1, 0.6))
            await self._stack.ready_again(self._service, replica, self._stack.kill(self._service, replica))

    async def survive(self) -> None:
        """A story calls it when its executions wait for somebody."""
        await self._all_wait.wait()
        await self._all_are_back.wait()


class People:
    """Those who give commands in one workspace, and look at what became of them."""

    def __init__(self, stack: Stack, ledger: Path, key: str = "") -> None:
        self.stack = stack
        self.ledger = ledger
        self.client = PatientClient(stack, key)
        self.letters: Any = DeadLetterServiceStub(stack.channel())
        # Those of a workspace with one slot.
        self.others = self
        self._draw = random.Random(0)

    async def prepare(self) -> None:
        self.others = People(self.stack, self.ledger, (await new_workspace(self.stack, "small", executions_max=1)).key)
        for people in (self, self.others):
            for name, graph in WORKFLOWS.items():
                await people.client.apply(name, **graph)

    async def start(self, workflow: str, count: int = COUNT, **given: str) -> list[str]:
        payload = Struct()
        payload.update(given)
        return [
            (await self.client.start(workflow, request_id=uuid.uuid4().hex, input=payload)).id for _ in range(count)
        ]

    async def again_and_again(self, give: Callable[..., Awaitable[Any]], *given: Any) -> None:
        for _ in range(REPEATS):
            await pause(self._draw.uniform(0.0, 0.3))
            await give(*given)

    async def to_each(self, give: Callable[..., Awaitable[Any]], ids: Sequence[str]) -> None:
        """To all at once, and to each of them again and again."""
        await asyncio.gather(*(self.again_and_again(give, each) for each in ids))

    async def ends_as(self, execution_id: str, state: Execution.State.ValueType) -> None:
        """It may have ended before, and be about to go on."""

        async def has_ended() -> bool:
            execution = await self.client.get(execution_id)
            return execution.state == state and execution.HasField("end_time")

        await eventually(has_ended, FINAL_SECONDS, f"{execution_id} to end as {Execution.State.Name(state)}")

    async def events_of(self, execution_id: str) -> Counter[str]:
        request = executions_pb2.ListEventsRequest(execution_id=execution_id, page_size=1_000)
        events = (await self.client.call(self.client.executions.ListEvents, request)).events
        return Counter(event.type for event in events)

    async def has_event(self, execution_id: str, kind: str, count: int = 1) -> None:
        async def is_there() -> bool:
            return (await self.events_of(execution_id))[kind] >= count

        await eventually(is_there, FINAL_SECONDS, f"{kind} of {execution_id}")

    async def letter_of(self, execution_id: str) -> Any:
        """Its open dead letter."""
        request = pb.ListDeadLettersRequest(filter=f'execution_id = "{execution_id}" AND resolution = PENDING')

        async def found() -> Any:
            return (await self.client.call(self.letters.ListDeadLetters, request)).dead_letters

        (letter,) = await eventually(found, FINAL_SECONDS, f"the dead letter of {execution_id}")
        return letter

    async def resolution_of(self, letter_id: str) -> int:
        request = pb.GetDeadLetterRequest(dead_letter_id=letter_id)
        return int((await self.client.call(self.letters.GetDeadLetter, request)).dead_letter.resolution)

    async def requeue(self, letter_id: str, *, is_mended: bool = True) -> None:
        request = pb.RequeueDeadLetterRequest(dead_letter_id=letter_id, request_id="the same")
        if is_mended:
            request.input_overrides.update({"good": True})
        await self.client.call(self.letters.RequeueDeadLetter, request)

    async def fix(self, letter_id: str) -> None:
        request = pb.MarkDeadLetterFixedRequest(dead_letter_id=letter_id)
        json_format.ParseDict({"by": "hand"}, request.output)
        await self.client.call(self.letters.MarkDeadLetterFixed, request)

    async def discard(self, letter_id: str) -> None:
        await self.client.call(self.letters.DiscardDeadLetter, pb.DiscardDeadLetterRequest(dead_letter_id=letter_id))

    async def signal(self, execution_id: str) -> None:
        request = executions_pb2.SignalExecutionRequest(execution_id=execution_id, signal="go", request_id="the same")
        await self.client.call(self.client.executions.SignalExecution, request)

    async def pause(self, execution_id: str) -> None:
        request = executions_pb2.PauseExecutionRequest(execution_id=execution_id, request_id="the same")
        await self.client.call(self.client.executions.PauseExecution, request)

    async def resume(self, execution_id: str) -> None:
        request = executions_pb2.ResumeExecutionRequest(execution_id=execution_id, request_id="the same")
        await self.client.call(self.client.executions.ResumeExecution, request)

    async def retry(self, execution_id: str) -> None:
        request = executions_pb2.RetryExecutionRequest(execution_id=execution_id, request_id="the same")
        await self.client.call(self.client.executions.RetryExecution, request)

    def works(self, execution_id: str, node: str) -> int:
        """How many pieces of work of the node have begun. All attempts at one have the same effect key."""
        calls = calls_in(self.ledger)
        return len({each["effect_key"] for each in calls if (each["execution"], each["node"]) == (execution_id, node)})


Story = Callable[[People, Kills], Coroutine[Any, Any, None]]


async def _letters(people: People, kills: Kills, workflow: str) -> None:
    """The work of one is done again, that of another is done by hand, and the third is given up. About the fourth they
    do not agree: whoever comes first decides."""
    ids = await people.start(workflow, 4)
    letters = [(await people.letter_of(each)).id for each in ids]
    await kills.survive()

    async def argue() -> None:
        decisions = (people.requeue, people.fix, people.discard)
        await asyncio.gather(*(_allowing("ALREADY_RESOLVED", decide(letters[3])) for decide in decisions))

    await asyncio.gather(
        people.again_and_again(people.requeue, letters[0]),
        people.again_and_again(people.fix, letters[1]),
        people.again_and_again(people.discard, letters[2]),
        people.again_and_again(argue),
    )
    await people.has_event(ids[3], "DeadLetterResolved")
    is_given_up = await people.resolution_of(letters[3]) == DeadLetter.DISCARDED
    for execution_id, is_done in zip(ids, (True, True, False, not is_given_up), strict=True):
        await people.ends_as(execution_id, Execution.SUCCESS if is_done else Execution.FAILED)
        assert (await people.events_of(execution_id))["DeadLetterResolved"] == 1
        assert people.works(execution_id, "after") == is_done, "what stands behind it is done once, or not at all"


async def _allowing(reason: str, call: Awaitable[None]) -> bool:
    """False: it was refused for this reason."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        if remote_error(error).reason != reason:
            raise
        return False
    return True


async def letters_of_ended_executions(people: People, kills: Kills) -> None:
    await _letters(people, kills, "letters-ended")


async def letters_of_held_executions(people: People, kills: Kills) -> None:
    await _letters(people, kills, "letters-held")


async def retried(people: People, kills: Kills) -> None:
    """The work fails again each time it is done, so there are as many dead letters as times."""
    ids = await people.start("letters-ended")
    for execution_id in ids:
        await people.letter_of(execution_id)
    await kills.survive()
    await people.to_each(people.retry, ids)
    for execution_id in ids:
        await people.has_event(execution_id, "ExecutionFinished", 2)
        assert people.works(execution_id, "bad") == 2


async def redriven(people: People, kills: Kills) -> None:
    """A redrive ends with its call, and may be repeated, also when all were resolved and its last word was lost."""
    ids = await people.start("letters-redriven")
    for execution_id in ids:
        await people.letter_of(execution_id)
    await kills.survive()
    action = pb.BulkResolveDeadLettersRequest.REQUEUE
    request = pb.BulkResolveDeadLettersRequest(filter='workflow = "letters-redriven"', action=action)
    request.input_overrides.update({"good": True})

    told: list[object] = []

    async def is_done() -> bool:
        told.clear()
        try:
            call = people.letters.BulkResolveDeadLetters(request, metadata=people.client.metadata, timeout=10.0)
            async for response in call:
                told.append(response)
        except grpc.aio.AioRpcError as failure:
            told.append(failure)
            return False
        return bool(response.stage == pb.BulkResolveDeadLettersResponse.DONE)

    try:
        for _ in range(REPEATS):
            await eventually(is_done, FINAL_SECONDS, "the end of the redrive")
    except AssertionError as late:
        late.add_note(f"it said last: {told}")
        raise
    for execution_id in ids:
        await people.ends_as(execution_id, Execution.SUCCESS)
        assert (await people.events_of(execution_id))["DeadLetterResolved"] == 1
        assert people.works(execution_id, "after") == 1


async def quarantined(people: People, kills: Kills) -> None:
    """Work that would go on for an hour is set aside, and given up. If its runner dies before, it is done elsewhere."""
    ids = await people.start("letters-manual")
    for execution_id in ids:
        await people.has_event(execution_id, "RunLeased")
    await kills.survive()

    async def is_set_aside(execution_id: str) -> bool:
        *_, run = await people.client.runs_of(execution_id)
        request = pb.QuarantineRunRequest(run_id=run.id, notes="it hangs")
        return await _allowing("RUN_ENDED", people.client.call(people.letters.QuarantineRun, request))

    async def set_aside_and_give_up(execution_id: str) -> None:
        for _ in range(2):
            await eventually(partial(is_set_aside, execution_id), FINAL_SECONDS, "the run to be set aside")
        letter = await people.letter_of(execution_id)
        await people.again_and_again(people.discard, letter.id)

    await asyncio.gather(*map(set_aside_and_give_up, ids))
    for execution_id in ids:
        await people.ends_as(execution_id, Execution.FAILED)
        counts = await people.events_of(execution_id)
        assert (counts["RunQuarantined"], counts["DeadLetterResolved"]) == (1, 1)


async def paused(people: People, kills: Kills) -> None:
    """A signal comes and a timer is due while they are paused. Nothing begins before they are resumed."""
    ids = await people.start("pauses")
    await people.to_each(people.pause, ids)
    for execution_id in ids:
        await people.has_event(execution_id, "ExecutionPaused")
    begun = {each: people.works(each, "rested") for each in ids}
    await people.to_each(people.signal, ids)
    await kills.survive()
    for execution_id in ids:
        assert (await people.client.get(execution_id)).state == Execution.PAUSED
        assert people.works(execution_id, "told") == 0
        assert people.works(execution_id, "rested") == begun[execution_id]
    await people.to_each(people.resume, ids)
    for execution_id in ids:
        await people.ends_as(execution_id, Execution.SUCCESS)
        counts = await people.events_of(execution_id)
        assert (counts["ExecutionPaused"], counts["ExecutionResumed"], counts["SignalTaken"]) == (1, 1, 1)
        assert (people.works(execution_id, "rested"), people.works(execution_id, "told")) == (1, 1)


async def families(people: People, kills: Kills) -> None:
    """Some parents wait for a child until it gets its signal. Others are cancelled, and their children with them."""
    ids = await people.start("parent", 2 * COUNT)
    for execution_id in ids:
        await people.has_event(execution_id, "ChildStarted")
    children = [await _child_of(people, each) for each in ids]
    await kills.survive()
    await asyncio.gather(
        people.to_each(people.signal, children[:COUNT]), people.to_each(people.client.cancel, ids[COUNT:])
    )
    for each in (*ids[:COUNT], *children[:COUNT]):
        await people.ends_as(each, Execution.SUCCESS)
        assert people.works(each, "after") == 1
    for each in (*ids[COUNT:], *children[COUNT:]):
        await people.ends_as(each, Execution.CANCELLED)
        assert people.works(each, "after") == 0
    for execution_id, child_id in zip(ids, children, strict=True):
        assert (await people.events_of(execution_id))["ChildRequested"] == 1
        assert await _child_of(people, execution_id) == child_id


async def _child_of(people: People, parent: str) -> str:
    request = executions_pb2.ListExecutionsRequest(filter=f'parent_execution_id = "{parent}"')
    (child,) = (await people.client.call(people.client.executions.ListExecutions, request)).executions
    return str(child.id)


async def behind_a_circuit(people: People, kills: Kills) -> None:
    """What they call fails until its circuit is open. When it answers again, all of them are done."""
    target = uuid.uuid4().hex
    ids = await people.start("calls", 10, target=target)

    async def is_one_held_back() -> bool:
        return any([(await people.events_of(each))["WorkHeldBack"] for each in ids])

    await eventually(is_one_held_back, FINAL_SECONDS, "the circuit to open")
    await kills.survive()
    (people.ledger / target).touch()
    for execution_id in ids:
        await people.ends_as(execution_id, Execution.SUCCESS)


async def not_admitted(people: People, kills: Kills) -> None:
    """Executions that no coordinator could begin are queued again or discarded."""
    others = people.others
    (blocker,) = await others.start("endless", 1)
    await others.has_event(blocker, "RunLeased")
    requeued, discarded = await others.start("plain", 2)
    changed = await people.stack.rows(
        "UPDATE dispatcher.queue SET state = 5, failure_time = now(), failure_reason = 'DEFINITION_CORRUPT',"
        " failure_message = 'a fault', attempts = 3 WHERE execution_id = ANY(%s::uuid[]) AND state = 1"
        " RETURNING execution_id",
        [requeued, discarded],
    )
    assert len(changed) == 2
    await kills.survive()

    async def queue_again() -> None:
        """When it is in the queue again, it is no dead letter any more."""
        await _allowing("DEAD_LETTER_NOT_FOUND", others.requeue(requeued, is_mended=False))

    await asyncio.gather(others.again_and_again(queue_again), others.again_and_again(others.discard, discarded))
    await others.client.cancel(blocker)
    await others.ends_as(requeued, Execution.SUCCESS)
    assert await others.resolution_of(discarded) == DeadLetter.DISCARDED
    assert (others.works(requeued, "after"), others.works(discarded, "after")) == (1, 0)


STORIES: Final[Sequence[Story]] = (
    letters_of_ended_executions,
    letters_of_held_executions,
    retried,
    redriven,
    quarantined,
    paused,
    families,
    behind_a_circuit,
    not_admitted,
)
