"""A start command becomes the order that is queued, and the queue's answer becomes the answer to the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest

from services.api.app.checking.children import Checkers
from services.api.app.checking.engine import misfits
from services.api.app.identifiers import Identifiers, is_execution_id
from services.api.app.ports import EarlierStart, StartableRecord
from services.api.app.startables import Startables
from services.api.app.starts import INPUT_BYTES_MAX, PreparedStart, StartCommand, Starter
from services.api.peers.enqueue_streams import StartResult, outcome_of
from services.api.rpc import translate
from services.chassis.grpc.errors import DependencyUnavailable, Refusal, Violation
from services.chassis.telemetry.tracing import new_trace
from tests.support.manual_clock import ManualClock
from windlass.definition.input_schemas import compiled
from windlass.dispatcher.v1 import queue_pb2

SECOND = 1_000_000_000
COMMAND = StartCommand("intake", 0, {"id": 1}, "", {}, 0, 0)
TRACE = new_trace(sampled=False)
DEFINITION = {
    "name": "intake",
    "timeout": "60s",
    "inputSchema": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
}


class MemoryWorkflows:
    """One workflow, `intake`, in the workspace `team`, at version 3."""

    def __init__(self) -> None:
        self.definition: dict[str, Any] = DEFINITION
        self.is_archived = False
        self.reads = 0

    async def startable(self, workspace: str, workflow: str, version: int) -> StartableRecord | None:
        self.reads += 1
        if (workspace, workflow) != ("team", "intake") or version not in (0, 3):
            return None
        return StartableRecord("a version", 3, orjson.dumps(self.definition), self.is_archived, 2, 0, 7, 11)

    async def unused(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a start only looks")

    apply = get = page = versions = set_archived = version = startable_names = unused


class MemoryQueue:
    """A queue that gives every start the same answer at once."""

    def __init__(self) -> None:
        self.answer = queue_pb2.EnqueueAnswer(outcome=queue_pb2.EnqueueAnswer.QUEUED)

    def enqueue(self, item: queue_pb2.EnqueueItem, seconds: float) -> asyncio.Future[StartResult]:
        answered: asyncio.Future[StartResult] = asyncio.get_running_loop().create_future()
        answered.set_result(outcome_of(self.answer, item))
        return answered


class MemoryRequests:
    """The used request_ids, as dispatchers keep them. It counts how often somebody asks."""

    def __init__(self) -> None:
        self.used: dict[str, EarlierStart] = {}
        self.reads = 0

    async def requests(self, workspace: str, request_ids: Sequence[str]) -> Mapping[str, EarlierStart]:
        self.reads += 1
        return {id_: used for id_, used in self.used.items() if workspace == "team" and id_ in request_ids}

    async def unused(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a start reads no executions")

    queued = page = cancel = unused


class MemoryChecker(Checkers):
    """Checks in this process."""

    def __init__(self) -> None:
        super().__init__(children=1)

    async def violations(self, workspace: str, schema: bytes, document: bytes, most: int) -> Sequence[Violation]:
        found = misfits(compiled(orjson.loads(schema)), orjson.loads(document), most)
        return [Violation(*each) for each in found]


@pytest.fixture
def used() -> MemoryRequests:
    return MemoryRequests()


@pytest.fixture
def workflows() -> MemoryWorkflows:
    return MemoryWorkflows()


@pytest.fixture
def queue() -> MemoryQueue:
    return MemoryQueue()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def startables(workflows: MemoryWorkflows, clock: ManualClock) -> Startables:
    return Startables(workflows, clock)


@pytest.fixture
def starter(startables: Startables, queue: MemoryQueue, used: MemoryRequests, clock: ManualClock) -> Starter:
    return Starter(startables, queue, used, MemoryChecker(), Identifiers(clock), clock, enqueue_seconds=1.0)


async def prepared(starter: Starter, *, workspace: str = "team", **changed: Any) -> PreparedStart:
    return await starter.prepare(workspace, COMMAND._replace(**changed))


async def queued(starter: Starter, **changed: Any) -> queue_pb2.EnqueueItem:
    return translate.enqueue_item(await prepared(starter, **changed), "title", TRACE.header())


async def refusal(starter: Starter, **changed: Any) -> Refusal:
    with pytest.raises(Refusal) as refused:
        await prepared(starter, **changed)
    return refused.value


async def test_input_that_does_not_fit_is_refused_by_the_newest_and_by_the_named_version(
    starter: Starter, workflows: MemoryWorkflows
) -> None:
    refused = await refusal(starter, input={})
    assert refused.reason == "INPUT_MISMATCH"
    assert [each.field for each in refused.violations] == ["input"]
    assert (await refusal(starter, version=3, input={"id": "x"})).reason == "INPUT_MISMATCH"
    await prepared(starter, version=3)
    assert workflows.reads == 2


async def test_schema_that_is_not_plain_is_for_the_checker(starter: Starter, workflows: MemoryWorkflows) -> None:
    workflows.definition = {**DEFINITION, "inputSchema": {"properties": {"id": {"enum": [1, 2]}}}}
    assert (await queued(starter)).start.version == 3
    assert [each.reason for each in (await refusal(starter, input={"id": 3})).violations] == ["ENUM"]


async def test_order_pins_the_version_and_carries_all_that_is_needed(starter: Starter, clock: ManualClock) -> None:
    item = await queued(starter, labels={"region": "eu"})
    order = item.start
    assert is_execution_id(order.execution_id)
    assert (order.workspace, order.workflow, order.version, order.version_id) == ("team", "intake", 3, "a version")
    assert orjson.loads(order.input) == {"id": 1}
    assert (order.priority, dict(order.labels), order.caller) == (3, {"region": "eu"}, "title")
    assert order.create_time.ToNanoseconds() == clock.epoch_ns()
    assert order.traceparent == TRACE.header()
    assert (item.limits.executions_max, item.limits.queued_max, item.limits.revision) == (5, 7, 11)


@pytest.mark.parametrize(
    ("own", "of_workflow", "seconds"),
    [(0, "60s", 60), (10, "60s", 10), (90, "60s", 60), (10, None, 10), (0, None, None)],
)
async def test_shorter_timeout_counts(
    starter: Starter,
    workflows: MemoryWorkflows,
    clock: ManualClock,
    own: int,
    of_workflow: str | None,
    seconds: int | None,
) -> None:
    workflows.definition = {key: value for key, value in DEFINITION.items() if key != "timeout"}
    if of_workflow:
        workflows.definition["timeout"] = of_workflow
    order = (await queued(starter, timeout=own * SECOND)).start
    assert order.HasField("deadline_time") is (seconds is not None)
    if seconds is not None:
        assert order.deadline_time.ToNanoseconds() == clock.epoch_ns() + seconds * SECOND


async def test_two_starts_are_the_same_by_their_content(starter: Starter) -> None:
    first = (await prepared(starter, request_id="r", input={"id": 1, "x": 2})).request_hash
    same = (await prepared(starter, request_id="r", input={"x": 2, "id": 1})).request_hash
    assert first == same
    assert (await prepared(starter)).request_hash == b""
    others: Sequence[dict[str, Any]] = (
        {"input": {"id": 2}},
        {"version": 3},
        {"labels": {"a": "b"}},
        {"priority": 5},
        {"timeout": SECOND},
    )
    hashes = {(await prepared(starter, request_id="r", **other)).request_hash for other in others}
    assert len(hashes | {first}) == len(others) + 1


async def test_faulty_start_is_never_queued(
    starter: Starter, startables: Startables, workflows: MemoryWorkflows
) -> None:
    assert (await refusal(starter, workflow="ghost")).reason == "WORKFLOW_NOT_FOUND"
    assert (await refusal(starter, workspace="rival")).reason == "WORKFLOW_NOT_FOUND"
    assert (await refusal(starter, version=9)).reason == "VERSION_NOT_FOUND"
    mismatch = await refusal(starter, input={"id": "x"})
    assert (mismatch.reason, mismatch.violations[0].field) == ("INPUT_MISMATCH", "input.id")
    workflows.is_archived = True
    startables.forget("team", "intake")
    assert (await refusal(starter)).reason == "WORKFLOW_ARCHIVED"


@pytest.mark.parametrize(("extra", "is_fine"), [(0, True), (1, False)])
async def test_input_has_a_size(starter: Starter, extra: int, is_fine: bool) -> None:
    text = "x" * (INPUT_BYTES_MAX - len(orjson.dumps({"id": 1, "x": ""})) + extra)
    if is_fine:
        assert len((await prepared(starter, input={"id": 1, "x": text})).content) == INPUT_BYTES_MAX
    else:
        assert (await refusal(starter, input={"id": 1, "x": text})).violations[0].reason == "TOO_LARGE"


async def test_change_of_a_workspace_or_workflow_is_read_at_once(
    starter: Starter, startables: Startables, workflows: MemoryWorkflows
) -> None:
    await prepared(starter)
    await prepared(starter)
    assert workflows.reads == 1
    startables.forget("team")
    await prepared(starter)
    startables.forget("team", "other")
    startables.forget("rival")
    await prepared(starter)
    assert workflows.reads == 2
    startables.forget_all()
    await prepared(starter)
    assert workflows.reads == 3


async def settled(starter: Starter, queue: MemoryQueue, outcome: str, existing: str = "") -> str:
    """The id of the earlier start; "" for a new one, or the reason of the refusal."""
    start = await prepared(starter, request_id="r")
    queue.answer = queue_pb2.EnqueueAnswer(
        outcome=queue_pb2.EnqueueAnswer.Outcome.Value(outcome),
        existing_execution_id=start.execution_id if existing == "own" else existing,
    )
    try:
        settled = await starter.submit(start, translate.enqueue_item(start, "title", TRACE.header()))
        return "" if settled == start.execution_id else settled
    except Refusal as refused:
        return refused.reason
    except DependencyUnavailable:
        return "DEPENDENCY_UNAVAILABLE"


@pytest.mark.parametrize(
    ("outcome", "existing", "told"),
    [
        ("QUEUED", "", ""),
        ("EXISTING", "another", "another"),
        ("EXISTING", "own", ""),  # we have sent it twice ourselves
        ("REQUEST_ID_REUSED", "another", "REQUEST_ID_REUSED"),
        ("REQUEST_ID_REUSED", "", "REQUEST_ID_REUSED"),
        ("QUEUE_FULL", "", "QUEUE_FULL"),
        ("WORKSPACE_CLOSED", "", "KEY_INVALID"),
        ("REJECTED", "", "INTERNAL"),
        ("OUTCOME_UNSPECIFIED", "", "DEPENDENCY_UNAVAILABLE"),
    ],
)
async def test_caller_is_told_what_the_queue_answered(
    starter: Starter, queue: MemoryQueue, outcome: str, existing: str, told: str
) -> None:
    assert await settled(starter, queue, outcome, existing) == told


async def test_closed_workspace_is_forgotten(starter: Starter, queue: MemoryQueue, workflows: MemoryWorkflows) -> None:
    await settled(starter, queue, "WORKSPACE_CLOSED")
    await prepared(starter)
    assert workflows.reads == 2


async def test_request_id_that_was_used_is_recalled_by_its_content(starter: Starter, used: MemoryRequests) -> None:
    first = COMMAND._replace(request_id="r")
    used.used = {"r": EarlierStart((await prepared(starter, request_id="r")).request_hash, "old")}
    others = [first, first._replace(input={"id": 2}), first._replace(request_id="fresh")]
    same, other, fresh = await starter.recall("team", others)
    assert same == "old"
    assert isinstance(other, Refusal)
    assert (other.reason, other.metadata["execution_id"]) == ("REQUEST_ID_REUSED", "old")
    assert fresh is None
    assert used.reads == 1
