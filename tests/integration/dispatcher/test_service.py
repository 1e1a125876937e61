"""A whole dispatcher on the wire, between an api's stream and a coordinator's session."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from services.chassis.grpc.errors import remote_error
from services.dispatcher.core.mailbox_limits import MEBIBYTE
from tests.integration.dispatcher.parties import SECONDS, Api, Coordinator
from tests.support.probe import eventually, until
from windlass.dispatcher.v1 import queue_pb2, sessions_pb2
from windlass.types.v1 import start_pb2

QUEUED = queue_pb2.EnqueueAnswer.QUEUED
State = queue_pb2.Queued.State


def item(
    workspace: str, *, executions_max: int = 5, queued_max: int = 1_000, deadline_in: float | None = None, **start: Any
) -> queue_pb2.EnqueueItem:
    order = start_pb2.StartOrder(
        execution_id=start.pop("execution_id", str(uuid.uuid4())), workspace=workspace, priority=3, **start
    )
    if deadline_in is not None:
        order.deadline_time.FromDatetime(datetime.now(UTC) + timedelta(seconds=deadline_in))
    limits = queue_pb2.TenantLimits(executions_max=executions_max, queued_max=queued_max, revision=1)
    return queue_pb2.EnqueueItem(start=order, request_hash=b"h", limits=limits)


async def state_of(api: Api, execution_id: str) -> queue_pb2.Queued | None:
    found = await api.queue.GetQueued(queue_pb2.GetQueuedRequest(execution_ids=[execution_id]))
    return found.items[0] if found.items else None


async def in_state(api: Api, execution_id: str, state: int) -> queue_pb2.Queued:
    async def probe() -> queue_pb2.Queued | None:
        row = await state_of(api, execution_id)
        return row if row is not None and row.state == state else None

    return await eventually(probe, SECONDS, f"state {State.Name(state)} of {execution_id}")  # type: ignore[arg-type]


async def gone(api: Api, execution_id: str) -> None:
    async def probe() -> bool:
        return await state_of(api, execution_id) is None

    await eventually(probe, SECONDS, f"the end of {execution_id}")


def cancel(execution_id: str, message_id: str = "", workspace: str = "") -> queue_pb2.DeliverRequest:
    body = sessions_pb2.ExecutionMessage.Cancel(reason="enough", caller="tests")
    message = sessions_pb2.ExecutionMessage(
        message_id=message_id or str(uuid.uuid4()), execution_id=execution_id, cancel=body
    )
    return queue_pb2.DeliverRequest(message=message, workspace=workspace)


async def test_execution_is_granted_and_finished(address: str, api: Api) -> None:
    async with Coordinator(address) as coordinator:
        sent = item("whole", input=b'{"a": 1}', labels={"k": "v"})
        (answer,) = await api.enqueue(sent)
        assert answer.outcome == QUEUED
        (grant,) = await coordinator.granted(1)
        assert grant.start == sent.start
        assert grant.lease.lease_id == sent.start.execution_id
        assert not grant.resumed
        await in_state(api, grant.lease.lease_id, State.DISPATCHED)
        await coordinator.finished(grant)
        assert coordinator.taken == [grant.lease.lease_id]
        await gone(api, grant.lease.lease_id)


async def test_one_bad_item_does_not_hold_back_its_batch(address: str, api: Api) -> None:
    async with Coordinator(address) as coordinator:
        good = [item("mixed") for _ in range(3)]
        bad = [
            item("mixed", execution_id="no-uuid"),
            item("mixed", request_id="x" * 600),
            item("mixed", request_id="nul \x00"),
            item("mix\x00ed"),
        ]
        answers = await api.enqueue(good[0], *bad, *good[1:])
        rejected = queue_pb2.EnqueueAnswer.REJECTED
        assert [each.outcome for each in answers] == [QUEUED, *[rejected] * 4, QUEUED, QUEUED]
        await coordinator.finished(*await coordinator.granted(3))


async def test_same_request_twice_in_one_message_starts_once(address: str, api: Api) -> None:
    async with Coordinator(address) as coordinator:
        first, second = item("twice", request_id="r"), item("twice", request_id="r")
        answers = await api.enqueue(first, second)
        assert answers[1].outcome == queue_pb2.EnqueueAnswer.EXISTING
        assert answers[1].existing_execution_id == first.start.execution_id
        await coordinator.finished(*await coordinator.granted(1))
        assert len(coordinator.grants) == 1


async def test_parked_execution_wakes_by_its_time(address: str, api: Api) -> None:
    async with Coordinator(address) as coordinator:
        grant = await coordinator.take(api, item("sleeper", executions_max=1))
        wake = datetime.now(UTC) + timedelta(seconds=0.3)
        coordinator.park(grant, wake_time=wake)
        await coordinator.reported()
        again = (await coordinator.granted(2))[1]
        assert datetime.now(UTC) >= wake
        assert again.lease.lease_id == grant.lease.lease_id
        assert again.resumed
        assert again.lease.epoch > grant.lease.epoch
        await coordinator.finished(again)


async def test_message_wakes_a_parked_execution_and_comes_with_the_grant(address: str, api: Api) -> None:
    async with Coordinator(address) as coordinator:
        grant = await coordinator.take(api, item("messages"))
        coordinator.park(grant)
        await coordinator.reported()
        request = cancel(grant.lease.lease_id, workspace="messages")
        assert (await api.queue.Deliver(request)).found
        again = (await coordinator.granted(2))[1]
        assert [each.message_id for each in again.messages] == [request.message.message_id]
        assert again.ends_only
        await coordinator.finished(again)
        await gone(api, grant.lease.lease_id)


async def test_message_is_pushed_to_the_holder_until_it_is_acknowledged(address: str, api: Api) -> None:
    async with Coordinator(address) as coordinator:
        grant = await coordinator.take(api, item("pushed"))
        request = cancel(grant.lease.lease_id, message_id="push-1", workspace="pushed")
        assert (await api.queue.Deliver(request)).found
        assert (await api.queue.Deliver(request)).found
        await until(lambda: len(coordinator.messages) >= 3, SECONDS, "the message, again and again")
        assert {each.message_id for each in coordinator.messages} == {"push-1"}
        coordinator.acknowledge_messages("push-1")
        await coordinator.finished(grant)


async def test_message_unseen_at_the_parking_wakes_at_once(address: str, api: Api) -> None:
    async with Coordinator(address) as coordinator:
        grant = await coordinator.take(api, item("unseen"))
        assert (await api.queue.Deliver(cancel(grant.lease.lease_id, "unseen-1", "unseen"))).found
        coordinator.park(grant)
        again = (await coordinator.granted(2))[1]
        assert [each.message_id for each in again.messages] == ["unseen-1"]
        coordinator.park(again, seen_message_ids=["unseen-1"])
        await coordinator.reported()
        await in_state(api, grant.lease.lease_id, State.PARKED)


async def test_full_mailbox_refuses_what_is_no_end(address: str, api: Api) -> None:
    sent = item("crammed", executions_max=0)
    await api.enqueue(sent)
    id_ = sent.start.execution_id

    def report(number: int) -> queue_pb2.DeliverRequest:
        message = sessions_pb2.ExecutionMessage(
            message_id=f"{id_}:{number}", execution_id=id_, run_report=bytes(MEBIBYTE)
        )
        return queue_pb2.DeliverRequest(message=message, workspace="crammed")

    for number in range(7):
        assert (await api.queue.Deliver(report(number))).found
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await api.queue.Deliver(report(7))
    remote = remote_error(refused.value)
    assert (remote.code, remote.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "MAILBOX_FULL")
    assert remote.retry_after
    assert remote.metadata == {"execution_id": id_, "try": f"windlass get {id_}"}
    assert (await api.queue.Deliver(cancel(id_, workspace="crammed"))).found
    async with Coordinator(address) as coordinator:
        (ending,) = await coordinator.granted(1)
        assert ending.lease.lease_id == id_
        assert [message.WhichOneof("body") for message in ending.messages] == ["run_report"] * 7 + ["cancel"]
        await coordinator.finished(ending)


async def test_cancel_of_a_queued_execution_needs_no_slot(address: str, api: Api) -> None:
    async with Coordinator(address) as coordinator:
        first, second = item("no-slot", executions_max=1), item("no-slot", executions_max=1)
        await api.enqueue(first, second)
        (running,) = await coordinator.granted(1)
        waiting = next(
            each.start.execution_id for each in (first, second) if each.start.execution_id != running.lease.lease_id
        )
        assert (await api.queue.Deliver(cancel(waiting, workspace="no-slot"))).found
        ending = (await coordinator.granted(2))[1]
        assert (ending.lease.lease_id, ending.ends_only, len(ending.messages)) == (waiting, True, 1)
        await coordinator.finished(ending, running)


async def test_deadline_that_passes_in_the_queue_ends_without_a_slot(address: str, api: Api) -> None:
    async with Coordinator(address) as coordinator:
        await api.enqueue(item("expired", executions_max=1), item("expired", executions_max=1, deadline_in=0.3))
        ending = (await coordinator.granted(2))[1]
        assert ending.ends_only
        await coordinator.finished(*coordinator.grants)


async def test_foreign_and_unknown_executions_are_not_found(address: str, api: Api) -> None:
    async with Coordinator(address) as coordinator:
        grant = await coordinator.take(api, item("owner"))
        assert not (await api.queue.Deliver(cancel(grant.lease.lease_id, workspace="thief"))).found
        assert not (await api.queue.Deliver(cancel(str(uuid.uuid4()), workspace="owner"))).found
        await coordinator.finished(grant)


async def test_refused_grants_go_elsewhere(address: str, api: Api) -> None:
    async with Coordinator(address, name="unwilling", capacity=1) as unwilling:
        unwilling.refuses_with = "NO_CAPACITY"
        await api.enqueue(item("picky"))
        async with Coordinator(address, name="willing", capacity=50) as willing:
            await willing.finished(*await willing.granted(1))


async def test_raised_limit_lets_the_next_go_at_once(address: str, api: Api) -> None:
    async with Coordinator(address) as coordinator:
        await api.enqueue(item("grown", executions_max=1), item("grown", executions_max=1))
        await coordinator.granted(1)
        limits = queue_pb2.TenantLimits(executions_max=2, queued_max=5, revision=2)
        await api.queue.ConfigureWorkspace(queue_pb2.ConfigureWorkspaceRequest(workspace="grown", limits=limits))
        await coordinator.finished(*await coordinator.granted(2))


async def test_permanent_failure_is_a_dead_letter_at_once_and_its_nul_is_replaced(address: str, api: Api) -> None:
    async with Coordinator(address) as coordinator:
        sent = item("nul-report")
        await api.enqueue(sent)
        (grant,) = await coordinator.granted(1)
        coordinator.release(grant, failed=True, permanent=True, reason="BROKEN", message="a\x00b")
        row = await in_state(api, sent.start.execution_id, State.FAILED)
        assert (row.failure_reason, row.failure_message) == ("BROKEN", "a\N{REPLACEMENT CHARACTER}b")


async def test_list_pages_in_order_of_ids(address: str, api: Api) -> None:
    ids = sorted(str(uuid.uuid4()) for _ in range(5))
    await api.enqueue(*[item("listed", execution_id=each) for each in ids])

    async def page(**request: Any) -> list[str]:
        answer = await api.queue.ListQueued(queue_pb2.ListQueuedRequest(workspace="listed", limit=2, **request))
        return [each.start.execution_id for each in answer.items]

    assert await page() == [ids[4], ids[3]]
    assert await page(from_execution_id=ids[3]) == [ids[2], ids[1]]
    assert await page(ascending=True, from_execution_id=ids[1]) == [ids[2], ids[3]]
    async with Coordinator(address) as coordinator:
        await coordinator.finished(*await coordinator.granted(5))


async def test_request_id_is_known_for_what_it_was_used_in_its_own_workspace(api: Api) -> None:
    new_start = item("asked", request_id="r1")
    await api.enqueue(new_start)

    async def found(workspace: str, *request_ids: str) -> list[queue_pb2.UsedRequest]:
        request = queue_pb2.FindRequestsRequest(workspace=workspace, request_ids=request_ids)
        return list((await api.queue.FindRequests(request)).requests)

    used = queue_pb2.UsedRequest(request_id="r1", request_hash=b"h", execution_id=new_start.start.execution_id)
    assert await found("asked", "r1", "r2") == [used]
    assert await found("another", "r1") == []
    assert await found("asked") == []
