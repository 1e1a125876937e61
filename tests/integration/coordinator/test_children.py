"""Parents and children at a real coordinator: what is said when, and said again by the next holder."""

from __future__ import annotations

from typing import Any

from services.chassis.grpc.errors import Refusal
from services.chassis.postgres.database import Database
from tests.support.coordinator_stage import Stage, eventually
from tests.support.coordinator_stage import execution_id as new_id
from tests.support.journals import stored_events
from windlass.coordinator.v1.children_pb2 import ChildOutcome
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage
from windlass.journal.v1 import events_pb2

LEAF = {"name": "leaf", "nodes": [{"id": "a", "module": "noop@1"}]}
PARENT = {
    "name": "parent",
    "nodes": [{"id": "child", "module": "sub_workflow@1", "config": {"workflow": "leaf"}, "inputs": {"n": 7}}],
}


async def parked(on_stage: Stage, order: Any) -> Any:
    """The report that the execution gives its slot back."""

    def found() -> Any:
        reports = on_stage.dispatcher.reports
        epoch = order.lease.epoch
        return next((r for r in reports if r.head.epoch == epoch and r.WhichOneof("report") == "parked"), None)

    return await eventually(found)


def as_child(on_stage: Stage, session: Any, parent: str) -> Any:
    order = on_stage.dispatcher.order(on_stage.catalog.add("v-leaf", **LEAF))
    order.start.parent_execution_id = parent
    on_stage.dispatcher.grant(session, [order])
    return order


def success(order: Any, output: bytes) -> ExecutionMessage:
    """The end of the child that was started by this order."""
    outcome = ChildOutcome(state=events_pb2.FINAL_STATE_SUCCESS)
    outcome.output.json = output
    message = ExecutionMessage(message_id=f"child:{order.execution_id}:9", execution_id=order.parent_execution_id)
    message.child_ended.child_execution_id = order.execution_id
    message.child_ended.outcome = outcome.SerializeToString()
    return message


async def test_a_parent_starts_its_child_and_parks_until_it_is_over(on_stage: Stage, tables: Database) -> None:
    _, session = await on_stage.coordinator()
    parent = on_stage.start(session, on_stage.catalog.add("v-parent", **PARENT))
    report = await parked(on_stage, parent)
    assert not report.parked.HasField("wake_time"), "only a message wakes it"
    (order,) = on_stage.api.orders
    assert (order.workflow, order.input, order.depth) == ("leaf", b'{"n":7}', 1)
    assert (order.parent_execution_id, order.workspace) == (parent.lease.lease_id, "default")
    grant = on_stage.dispatcher.order("v-parent", id_=parent.lease.lease_id, resumed=True, begun=True)
    grant.messages.append(success(order, b'{"paid":7}'))
    on_stage.dispatcher.grant(session, [grant])
    await eventually(lambda: parent.lease.lease_id in on_stage.dispatcher.finished)
    events = [stored.event for stored in await stored_events(tables, parent.lease.lease_id)]
    names = [type(event).__name__ for event in events]
    assert names == [
        *("ExecutionStarted", "WaitStarted", "ChildRequested", "ChildStarted", "ExecutionAdopted"),
        *("WaitEnded", "RunSucceeded", "ExecutionFinished"),
    ]


async def test_the_next_holder_repeats_a_start_that_was_not_answered(on_stage: Stage) -> None:
    on_stage.api.refusals = [Refusal("DEPENDENCY_UNAVAILABLE", "away")] * 1_000
    _, first = await on_stage.coordinator("0")
    parent = on_stage.start(first, on_stage.catalog.add("v-parent", **PARENT))
    await eventually(lambda: on_stage.api.orders)
    _, second = await on_stage.coordinator("1")
    on_stage.start(second, "v-parent", id_=parent.lease.lease_id, resumed=True)
    on_stage.api.refusals.clear()
    await eventually(lambda: [r for r in on_stage.dispatcher.reports if r.WhichOneof("report") == "parked"])
    assert len({order.SerializeToString() for order in on_stage.api.orders}) == 1, "each start is the same"


async def test_a_parent_whose_queue_is_full_gives_its_slot_back_and_asks_again(on_stage: Stage) -> None:
    on_stage.api.refusals = [Refusal("QUEUE_FULL", "full")]
    _, session = await on_stage.coordinator()
    parent = on_stage.start(session, on_stage.catalog.add("v-parent", **PARENT))
    report = await parked(on_stage, parent)
    assert report.parked.HasField("wake_time")
    on_stage.start(session, "v-parent", id_=parent.lease.lease_id, resumed=True, begun=True)
    await eventually(lambda: len(on_stage.api.orders) == 2)


async def test_a_child_tells_its_parent_before_it_is_reported_finished(on_stage: Stage) -> None:
    session, _ = await on_stage.with_runner()
    on_stage.dispatcher.is_full = True
    parent = new_id()
    child = as_child(on_stage, session, parent)
    # Its mailbox is full. The child gives its slot back, because the parent may need it to read.
    report = await parked(on_stage, child)
    assert report.parked.HasField("wake_time")
    assert child.lease.lease_id not in on_stage.dispatcher.finished
    on_stage.dispatcher.is_full = False
    on_stage.start(session, "v-leaf", id_=child.lease.lease_id, resumed=True, begun=True)
    await eventually(lambda: child.lease.lease_id in on_stage.dispatcher.finished)
    (message,) = on_stage.dispatcher.delivered
    assert (message.execution_id, message.child_ended.child_execution_id) == (parent, child.lease.lease_id)


async def test_the_next_holder_tells_the_parent_again_under_the_same_id(on_stage: Stage) -> None:
    first, runner = await on_stage.with_runner("0")
    address, second = await on_stage.coordinator("1")
    await on_stage.attach_also(runner, address)
    child = as_child(on_stage, first, new_id())
    await eventually(lambda: child.lease.lease_id in on_stage.dispatcher.finished)
    on_stage.dispatcher.finished.clear()
    on_stage.start(second, "v-leaf", id_=child.lease.lease_id, resumed=True, begun=True)
    await eventually(lambda: child.lease.lease_id in on_stage.dispatcher.finished)
    said = [message.message_id for message in on_stage.dispatcher.delivered]
    assert (len(said), len(set(said))) == (2, 1)
