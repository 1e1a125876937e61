"""A coordinator is granted an execution without a slot, to end it, and it goes on all the same."""

from services.chassis.postgres.database import Database
from services.coordinator.core.events import RunLeased
from tests.integration.coordinator.test_broken_executions import reports_of
from tests.integration.coordinator.test_running_executions import line, state_of
from tests.support.coordinator_stage import Stage, eventually
from tests.support.journals import stored_events
from windlass.coordinator.v1.commands_pb2 import ExecutionCommand

# As api makes it: with a digest of its content.
CANCEL = f"cancel:hasty#{'0' * 32}"


async def test_an_execution_that_was_to_be_ended_and_goes_on_is_queued_for_a_slot(
    on_stage: Stage, tables: Database
) -> None:
    """It was cancelled in the queue. A person has reopened it before the cancel was carried out."""
    version = on_stage.catalog.add("v-line", **line(1))
    session, runner = await on_stage.with_runner()
    order = on_stage.dispatcher.order(version, ends_only=True)
    id_ = order.lease.lease_id
    order.messages.add(message_id="m1", execution_id=id_).cancel.reason = "never mind"
    retry = ExecutionCommand(message_id="m2", caller="ann")
    retry.retry.SetInParent()
    order.messages.add(message_id="m2", execution_id=id_, command=retry.SerializeToString())
    on_stage.dispatcher.grant(session, [order])
    (parked,) = await eventually(lambda: reports_of(on_stage, order, "parked"))
    assert parked.wake_time.seconds >= order.grant_time.seconds, "the time has come"
    assert set(parked.seen_message_ids) == {"m1", "m2"}
    events = [stored.event for stored in await stored_events(tables, id_)]
    assert not [each for each in events if isinstance(each, RunLeased)], "it has no slot"
    assert (await state_of(tables, id_))[0] == "RUNNING"
    on_stage.start(session, version, id_=id_, resumed=True)
    await eventually(lambda: id_ in on_stage.dispatcher.finished)
    assert ((await state_of(tables, id_))[0], len(runner.grants)) == ("SUCCESS", 1)


async def test_a_late_copy_of_a_cancel_wakes_an_execution_and_changes_nothing(
    on_stage: Stage, tables: Database
) -> None:
    """It was cancelled and reopened. A copy of the cancel finds it parked, so it is granted without a slot."""
    nodes = [{"id": "rest", "module": "sleep@1", "config": {"duration": "3600s"}}]
    version = on_stage.catalog.add("v-sleep", name="w", nodes=nodes, edges=[])
    _, session = await on_stage.coordinator()
    order = on_stage.dispatcher.order(version)
    id_ = order.lease.lease_id
    for kind in ("cancel", "retry"):
        message = order.messages.add(message_id=CANCEL if kind == "cancel" else "m2", execution_id=id_)
        if kind == "cancel":
            message.cancel.reason = "never mind"
        else:
            retry = ExecutionCommand(message_id=message.message_id, caller="ann")
            retry.retry.SetInParent()
            message.command = retry.SerializeToString()
    on_stage.dispatcher.grant(session, [order])
    await eventually(lambda: reports_of(on_stage, order, "parked"))
    again = on_stage.dispatcher.order(version, id_=id_, resumed=True, ends_only=True)
    again.messages.add(message_id=CANCEL, execution_id=id_).cancel.reason = "never mind"
    on_stage.dispatcher.grant(session, [again])
    await eventually(lambda: len(reports_of(on_stage, order, "parked")) == 2)
    assert (await state_of(tables, id_))[0] == "WAITING"
    assert not on_stage.dispatcher.finished
