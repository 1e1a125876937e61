"""An execution that was given up and is queued again leaves a record of how it had failed and of who decided so."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from services.api.app.ports import DeadLetterView, FailedRequeue
from services.api.peers.dead_letters import DispatcherDeadLetters
from services.api.peers.replicas import Replicas
from services.chassis.grpc.addresses import AddressBook
from services.dispatcher.core.items import LeaseReleased
from services.dispatcher.store.failed_rows import PostgresFailedRows
from services.dispatcher.store.housekeeping import PostgresHousekeeping
from tests.integration.dispatcher.conftest import Rig
from tests.integration.dispatcher.parties import Api, Coordinator, channels_of
from tests.integration.dispatcher.test_dead_children import deliver, end_of_child
from tests.integration.dispatcher.test_service import gone, in_state, item
from tests.unit.api.test_replicas import following
from windlass.dispatcher.v1 import queue_pb2, sessions_pb2
from windlass.types.v1 import start_pb2

State = queue_pb2.Queued.State
SECOND_NS = 10**9


class Failed:
    """An execution that a coordinator gives up, as often as the test says."""

    def __init__(self, api: Api, coordinator: Coordinator) -> None:
        self.api = api
        self.coordinator = coordinator
        self.workspace = f"requeued-{uuid.uuid4().hex[:8]}"
        self.item = item(self.workspace, executions_max=1, input=b'{"n":1}', workflow="w", version=3)
        self.id = self.item.start.execution_id

    async def begin(self, **how: Any) -> sessions_pb2.ExecutionGrant:
        grant = await self.coordinator.take(self.api, self.item)
        await self.fail(grant, **how)
        return grant

    async def fail(self, grant: sessions_pb2.ExecutionGrant, **how: Any) -> None:
        self.coordinator.release(grant, permanent=True, message="damaged", **{"reason": "DEFINITION_CORRUPT", **how})
        await self.coordinator.reported()
        await in_state(self.api, self.id, State.FAILED)

    async def requeue(self, *, notes: str = "", request_id: str = "", **more: Any) -> queue_pb2.ResolveFailedResponse:
        request = queue_pb2.ResolveFailedRequest(
            workspace=self.workspace,
            execution_id=self.id,
            start=self.item.start,
            reviewer="ann",
            notes=notes,
            request_id=request_id,
            request_hash=notes.encode(),
            **more,
        )
        answer: queue_pb2.ResolveFailedResponse = await self.api.queue.ResolveFailed(request)
        return answer

    async def last(self, workspace: str = "") -> queue_pb2.GetFailedResponse:
        request = queue_pb2.GetFailedRequest(execution_id=self.id, workspace=workspace or self.workspace)
        answer: queue_pb2.GetFailedResponse = await self.api.queue.GetFailed(request)
        return answer

    async def listed(self, **more: Any) -> list[queue_pb2.Queued]:
        request = queue_pb2.ListFailedRequest(workspace=self.workspace, **more)
        return list((await self.api.queue.ListFailed(request)).items)


async def test_what_was_queued_again_is_kept_with_the_decision_also_after_its_end(address: str, api: Api) -> None:
    async with Coordinator(address) as coordinator:
        failed = Failed(api, coordinator)
        await failed.begin(begun=True)
        before = (await failed.last()).row
        assert (before.resolution, before.begun, before.start) == ("", True, failed.item.start)
        first = await failed.requeue(notes="mended")
        assert (first.found, first.resolved) == (True, True)
        again = (await coordinator.granted(2))[1]
        assert (again.start.input, again.begun) == (b'{"n":1}', True)
        assert again.HasField("wake_time"), "an explanation can say how long it has waited for a slot again"
        await coordinator.finished(again)
        await gone(api, failed.id)
        kept = (await failed.last()).row
        assert (kept.state, kept.resolution, kept.reviewer, kept.notes) == (State.FAILED, "REQUEUED", "ann", "mended")
        assert (kept.failure_reason, kept.failure_message) == ("DEFINITION_CORRUPT", "damaged")
        assert (kept.failure_time, kept.dispatch_attempts) == (before.failure_time, 1)
        assert (kept.start.workflow, kept.start.version, kept.start.input) == ("w", 3, b"")
        assert (first.row, await failed.listed()) == (kept, [kept])
        assert not (await failed.last("another")).HasField("row")


async def test_a_repeat_under_its_request_id_gets_the_first_answer_also_after_another_failure(
    address: str, api: Api
) -> None:
    async with Coordinator(address) as coordinator:
        failed = Failed(api, coordinator)
        await failed.begin()
        first = await failed.requeue(notes="one", request_id="r-1")
        repeat = await failed.requeue(notes="one", request_id="r-1")
        assert (first.resolved, repeat.resolved, repeat.row) == (True, False, first.row)
        other = await failed.requeue(notes="two", request_id="r-1")
        assert (other.resolved, other.request_id_reused) == (False, True)
        await failed.fail((await coordinator.granted(2))[1], reason="INTERNAL")
        late = await failed.requeue(notes="one", request_id="r-1")
        assert (late.resolved, late.row, late.request_id_reused) == (False, first.row, False)
        open_ = (await failed.last()).row
        assert (open_.resolution, open_.failure_reason) == ("", "INTERNAL")
        assert open_.start.input == b'{"n":1}'
        shown = queue_pb2.Queued()
        shown.CopyFrom(open_)
        shown.start.ClearField("input")
        assert await failed.listed() == [shown, first.row]
        assert await failed.listed(ascending=True) == [first.row, shown]
        after = {"after_time": open_.failure_time, "after_execution_id": failed.id}
        assert await failed.listed(**after) == [first.row]
        assert (await failed.requeue(request_id="r-2")).resolved
        await coordinator.finished((await coordinator.granted(3))[2])


async def test_a_decision_about_one_failure_does_not_reach_the_next_one(address: str, api: Api) -> None:
    async with Coordinator(address) as coordinator:
        failed = Failed(api, coordinator)
        await failed.begin()
        seen = (await failed.last()).row.failure_time
        assert (await failed.requeue(failure_time=seen)).resolved
        await failed.fail((await coordinator.granted(2))[1])
        late = await failed.requeue(failure_time=seen)
        assert (late.resolved, late.row.resolution) == (False, "")
        discard = queue_pb2.ResolveFailedRequest(
            workspace=failed.workspace, execution_id=failed.id, failure_time=seen, reviewer="bob"
        )
        assert not (await api.queue.ResolveFailed(discard)).resolved
        discard.ClearField("failure_time")
        assert (await api.queue.ResolveFailed(discard)).resolved
        answer = await failed.requeue()
        assert (answer.resolved, answer.row.resolution, answer.row.reviewer) == (False, "DISCARDED", "bob")


async def test_a_redrive_follows_what_was_queued_again_until_it_has_begun_or_failed(address: str, api: Api) -> None:
    peers = Replicas("the dispatcher", AddressBook(address), channels_of("api"), call_seconds=8.0)
    letters = DispatcherDeadLetters(peers)
    async with Coordinator(address) as coordinator, following(peers):
        failed = Failed(api, coordinator)
        await failed.begin()

        async def letter() -> DeadLetterView:
            found = await letters.failed(failed.workspace, failed.id)
            assert found is not None
            return found

        async def requeued(count: int) -> tuple[DeadLetterView, sessions_pb2.ExecutionGrant]:
            """The dead letter as it was, and the grant that follows."""
            was = await letter()
            assert (await letters.requeue_failed(was, FailedRequeue("ann", "", "", b"", 0))).letter is not None
            return was, (await coordinator.granted(count))[-1]

        was, grant = await requeued(2)
        assert await letters.outcome_after(was) is None, "its coordinator has not said that it has begun"
        await failed.fail(grant)
        assert await letters.outcome_after(was) is False
        was, grant = await requeued(3)
        coordinator.park(grant)
        await in_state(api, failed.id, State.PARKED)
        assert await letters.outcome_after(was) is True
        # A message wakes it, and the next coordinator cannot go on with it.
        await deliver(address, failed.workspace, end_of_child(failed.id, str(uuid.uuid4())))
        await failed.fail((await coordinator.granted(4))[-1], reason="JOURNAL_CORRUPT")
        was, grant = await requeued(5)
        assert await letters.outcome_after(was) is None, "it had begun before it failed"
        coordinator.acknowledge_messages(grant.messages[0].message_id)
        await coordinator.finished(grant)
        await gone(api, failed.id)
        assert await letters.outcome_after(was) is True


async def test_every_requeue_gives_the_execution_the_whole_of_its_first_span(address: str, api: Api) -> None:
    peers = Replicas("the dispatcher", AddressBook(address), channels_of("api"), call_seconds=8.0)
    letters = DispatcherDeadLetters(peers)
    async with Coordinator(address) as coordinator, following(peers):
        failed = Failed(api, coordinator)
        begin, span = 1_000 * SECOND_NS, 60 * SECOND_NS
        failed.item.start.create_time.FromNanoseconds(begin)
        failed.item.start.deadline_time.FromNanoseconds(begin + span)
        await failed.begin()
        for count in (2, 3, 4):
            letter = await letters.failed(failed.workspace, failed.id)
            assert letter is not None
            now_ns = time.time_ns() + count * SECOND_NS
            await letters.requeue_failed(letter, FailedRequeue("ann", "", "", b"", now_ns))
            grant = (await coordinator.granted(count))[-1]
            assert grant.start.deadline_time.ToNanoseconds() == now_ns + span
            await failed.fail(grant)


async def test_an_execution_that_failed_after_its_deadline_needs_a_slot_when_it_is_queued_again(
    address: str, api: Api
) -> None:
    """It failed while it was only to be ended, without a slot. A requeue gives it another deadline, and it goes on."""
    async with Coordinator(address) as coordinator:
        failed = Failed(api, coordinator)
        await api.enqueue(item(failed.workspace, executions_max=1))
        (other,) = await coordinator.granted(1)
        failed.item.start.deadline_time.GetCurrentTime()
        await api.enqueue(failed.item)
        ending = (await coordinator.granted(2))[1]
        assert ending.ends_only
        await failed.fail(ending)
        failed.item.start.ClearField("deadline_time")
        assert (await failed.requeue()).resolved
        place = queue_pb2.GetQueuePlaceRequest(execution_id=failed.id, workspace=failed.workspace)
        waiting = await api.queue.GetQueuePlace(place)
        assert (waiting.state, waiting.slots_taken, waiting.slots_max) == (State.PENDING, 1, 1)
        await coordinator.finished(other)
        again = (await coordinator.granted(3))[2]
        assert (again.lease.lease_id, again.ends_only) == (failed.id, False)
        assert (await api.queue.GetQueuePlace(place)).slots_taken == 1
        await coordinator.finished(again)


async def test_lists_of_failures_read_no_inputs(empty_rig: Rig) -> None:
    (claim,) = await empty_rig.leased("large")
    order = start_pb2.StartOrder(execution_id=claim.execution_id, workspace="large", workflow="w", input=b'{"n":1}')
    start = order.SerializeToString()
    await empty_rig.database.execute("UPDATE dispatcher.queue SET start = %s", (start,))
    await empty_rig.leases.fail(LeaseReleased(claim.execution_id, claim.epoch, is_permanent=True, reason="BROKEN"))
    rows = PostgresFailedRows(empty_rig.database)
    (listed,) = await rows.list_of("large", None, 10, is_ascending=True)
    order.ClearField("input")
    assert listed.start == order.SerializeToString()
    found = await rows.find("large", claim.execution_id)
    assert found is not None
    assert found.start == start


async def test_somebody_else_s_execution_is_not_queued_again(address: str, api: Api) -> None:
    async with Coordinator(address) as coordinator:
        failed = Failed(api, coordinator)
        await failed.begin()
        request = queue_pb2.ResolveFailedRequest(
            workspace="another",
            execution_id=failed.id,
            start=start_pb2.StartOrder(execution_id=failed.id, workspace="another"),
        )
        assert not (await api.queue.ResolveFailed(request)).found
        assert (await failed.last()).row.resolution == ""


@pytest.mark.parametrize(("seconds", "left"), [(30 * 86_400.0, 2), (10 * 86_400.0, 1)])
async def test_records_are_kept_as_long_as_dead_letters(empty_rig: Rig, seconds: float, left: int) -> None:
    for days in (31, 29, 9):
        await empty_rig.database.execute(
            "INSERT INTO dispatcher.requeues (execution_id, failure_time, workspace, attempts, resolve_time, reviewer,"
            " notes, start) VALUES (%s, now(), 'w', 1, now() - %s * interval '1 day', '', '', '')",
            (uuid.uuid4(), days),
        )
    housekeeping = PostgresHousekeeping(
        empty_rig.database, lost_grant_seconds=1.0, request_key_seconds=1.0, dead_letter_seconds=seconds
    )
    assert await housekeeping.forget_requeues() == 3 - left
    assert await housekeeping.forget_requeues() == 0
