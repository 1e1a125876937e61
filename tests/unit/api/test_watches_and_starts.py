"""The watch streams subscribe at the right coordinators, and the enqueue streams send the right starts."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from services.api.app.ports import ExecutionView
from services.api.peers import enqueue_streams, watch_streams
from services.api.peers.enqueue_streams import EnqueueStreams
from services.api.peers.watch_streams import WatchStreams
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from tests.support.probe import some
from windlass.api.v1 import resources_pb2
from windlass.coordinator.v1 import reads_pb2
from windlass.dispatcher.v1 import queue_pb2
from windlass.types.v1 import start_pb2

ID = "01a1ef02-cd5c-7fc1-ac68-79b46e7a0574"
SILENCE = 0.001


def final(execution_id: str = ID) -> ExecutionView:
    return ExecutionView(execution_id, "team", "SUCCESS", last_seq=3)


def event(seq: int) -> reads_pb2.WatchResponse:
    record = reads_pb2.EventRecord(event=resources_pb2.Event(seq=seq))
    return reads_pb2.WatchResponse(updates=[reads_pb2.Update(execution_id=ID, event=record)])


KNOWS_US = reads_pb2.WatchResponse(knows_watcher=True)


def knowing(watches: WatchStreams, count: int = 2) -> list[Any]:
    """Streams to coordinators that subscribe this api to the starts that name it."""
    streams = [watches.opened() for _ in range(count)]
    for stream in streams:
        watches.heard(stream, KNOWS_US)
    return streams


async def test_one_subscription_serves_all_watches_of_an_execution() -> None:
    watches = WatchStreams()
    stream = watches.opened()
    watches.open(ID)
    assert not stream.subscriptions[ID].events
    watches.open(ID, after_seq=7, events=True)
    watches.open(ID, after_seq=3, events=True)
    assert (stream.subscriptions[ID].events, stream.subscriptions[ID].after_seq) == (True, 3)


async def test_every_coordinator_is_subscribed_to_and_a_later_one_catches_up() -> None:
    watches = WatchStreams()
    first, second = watches.opened(), watches.opened()
    watches.open(ID)
    assert first.subscriptions.keys() == second.subscriptions.keys() == {ID}
    later = watches.opened()
    assert later.subscriptions[ID].catch_up
    assert not first.subscriptions[ID].catch_up


async def test_subscription_of_a_new_execution_is_sent_just_before_its_start() -> None:
    watches = WatchStreams()
    stream = watches.opened()
    await stream.level.wait()
    watches.open(ID, is_new=True)
    assert not stream.level.is_set
    watches.flush()
    assert stream.level.is_set


async def test_start_is_not_subscribed_to_where_its_order_subscribes() -> None:
    watches = WatchStreams()
    knowing, older = watches.opened(), watches.opened()
    watches.heard(knowing, KNOWS_US)
    watches.open(ID, is_new=True)
    assert (set(knowing.subscriptions), set(older.subscriptions)) == (set(), {ID})
    watches.open("other")
    assert knowing.subscriptions.keys() == {"other"}, "it is no new start"


async def test_started_execution_is_subscribed_to_at_the_others_when_a_coordinator_is_lost() -> None:
    watches = WatchStreams()
    lost, left = knowing(watches)
    watches.open(ID, is_new=True)
    watches.lost(lost)
    assert left.subscriptions[ID].catch_up
    again = watches.opened()
    assert not again.knows_us
    assert again.subscriptions[ID].catch_up


async def test_start_is_subscribed_to_while_a_coordinator_is_out_of_reach() -> None:
    watches = WatchStreams()
    lost, left = knowing(watches)
    watches.listed = 2
    watches.lost(lost)
    watches.open(ID, is_new=True)
    assert left.subscriptions.keys() == {ID}, "the lost one may be granted it, and cannot tell us"
    assert not left.subscriptions[ID].catch_up
    watches.heard(watches.opened(), KNOWS_US)
    watches.open("other", is_new=True)
    assert "other" not in left.subscriptions


async def test_start_that_is_waited_for_long_is_subscribed_to_at_one_more_coordinator() -> None:
    watches = WatchStreams()
    streams = knowing(watches)
    begin = watches.open("a", is_new=True).opened_at
    for name in "bcd":
        watches.open(name, is_new=True)
    watches.open("gone", is_new=True).close()
    watches.open("ended", is_new=True)
    watches.final(final("ended"))
    watches.subscribe_late_starts(begin - 1)
    assert [len(stream.subscriptions) for stream in streams] == [0, 0], "they are too new"
    for _ in range(2):
        watches.subscribe_late_starts(math.inf)
        assert [len(stream.subscriptions) for stream in streams] == [2, 2], "once, and each coordinator gets its share"
    assert all(each.catch_up for stream in streams for each in stream.subscriptions.values())


async def test_subscription_that_nobody_waits_for_is_cancelled() -> None:
    watches = WatchStreams()
    follower, other = knowing(watches)
    watches.open(ID, is_new=True)
    watches.heard(follower, reads_pb2.WatchResponse(followed=[ID, "given up"]))
    assert follower.cancelled == {"given up"}
    watches.subscribe_late_starts(math.inf)
    assert (follower.subscriptions.keys(), other.subscriptions.keys()) == (set(), {ID}), (
        "one more coordinator is enough"
    )
    watches.final(final(), reported_by=other)
    assert follower.cancelled == {"given up", ID}


async def test_execution_that_is_subscribed_to_is_not_subscribed_to_again() -> None:
    watches = WatchStreams()
    (stream,) = knowing(watches, 1)
    watches.open(ID, is_new=True)
    watches.open(ID, after_seq=7, events=True)
    watches.subscribe_late_starts(math.inf)
    assert not stream.subscriptions[ID].catch_up


async def test_new_stream_has_no_subscription_to_an_execution_that_ended_before() -> None:
    watches = WatchStreams()
    stream = watches.opened()
    watches.open(ID)
    watches.lost(stream)
    watches.final(final())
    again = watches.opened()
    assert not again.subscriptions
    assert not again.followed


async def test_end_cancels_the_subscriptions_at_other_coordinators() -> None:
    watches = WatchStreams()
    (teller, unasked), asked = knowing(watches), watches.opened()
    watches.open(ID, is_new=True)
    watches.final(final(), reported_by=teller)
    assert (teller.cancelled, asked.cancelled, unasked.cancelled) == (set(), {ID}, set())


async def test_start_that_nobody_waits_for_any_more_is_cancelled_everywhere() -> None:
    watches = WatchStreams()
    (stream,) = knowing(watches, 1)
    watches.open(ID, is_new=True).close()
    assert stream.cancelled == {ID}


async def test_final_record_ends_every_watch_and_is_told_to_the_other_coordinators() -> None:
    watches = WatchStreams()
    first, second = watches.opened(), watches.opened()
    waiting = [watches.open(ID), watches.open(ID, events=True)]
    record = reads_pb2.ExecutionRecord(execution=resources_pb2.Execution(id=ID))
    watches.heard(first, reads_pb2.WatchResponse(updates=[reads_pb2.Update(execution_id=ID, final=record)]))
    for watch in waiting:
        assert isinstance(await watch.next(SILENCE), ExecutionView)
    assert (first.cancelled, second.cancelled) == (set(), {ID})


async def test_subscription_is_cancelled_with_the_last_watch() -> None:
    watches = WatchStreams()
    stream = watches.opened()
    one, other = watches.open(ID), watches.open(ID)
    one.close()
    assert stream.cancelled == set()
    other.close()
    other.close()
    assert (stream.cancelled, stream.subscriptions) == ({ID}, {})


async def test_lost_stream_makes_readers_of_events_read_anew() -> None:
    watches = WatchStreams()
    stream = watches.opened()
    reader, waiter = watches.open(ID, events=True), watches.open(ID)
    watches.lost(stream)
    assert await reader.next(10) is None  # at once
    waiting = asyncio.create_task(waiter.next(10))
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_silence_is_none_and_drain_is_a_refusal() -> None:
    watches = WatchStreams()
    watch = watches.open(ID)
    assert await watch.next(SILENCE) is None
    waiting = asyncio.create_task(watch.next(10))
    await asyncio.sleep(0)
    await watches.drain()
    with pytest.raises(Refusal) as refused:
        await waiting
    assert refused.value.reason == "DRAINING"


async def test_slow_reader_goes_on_from_the_journal() -> None:
    watches = WatchStreams()
    stream = watches.opened()
    watch = watches.open(ID, events=True)
    for seq in range(watch_streams.UPDATES_WAITING_MAX + 1):
        watches.heard(stream, event(seq))
    assert await watch.next(10) is None
    assert await watch.next(SILENCE) is None


async def test_number_of_watched_executions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_streams, "WATCHED_MAX", 2)
    watches = WatchStreams()
    watches.open("a")
    last = watches.open("b")
    with pytest.raises(DependencyUnavailable):
        watches.open("c")
    last.close()
    watches.open("c")


def item(execution_id: str, *, content: bytes = b"{}") -> queue_pb2.EnqueueItem:
    return queue_pb2.EnqueueItem(start=start_pb2.StartOrder(execution_id=execution_id, input=content))


@pytest.mark.parametrize("limit", [("PENDING_MAX", 1), ("PENDING_BYTES_MAX", 10)], ids=lambda limit: limit[0])
async def test_unanswered_starts_are_bounded(monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int]) -> None:
    monkeypatch.setattr(enqueue_streams, *limit)
    streams = EnqueueStreams(lambda: None)
    streams.enqueue(item("a", content=bytes(10)), 0)
    with pytest.raises(DependencyUnavailable):
        streams.enqueue(item("b"), 1)
    streams.run_once()
    streams.enqueue(item("b"), 1)


async def test_start_that_is_given_up_leaves_the_outbox_of_a_dispatcher_that_takes_nothing() -> None:
    streams = EnqueueStreams(lambda: None)
    streams.opened()
    late, gone, waiting = (streams.enqueue(item(name), seconds) for name, seconds in zip("abc", (0, 9, 9), strict=True))
    gone.cancel()
    streams.run_once()
    assert isinstance(late.result(), DependencyUnavailable)
    assert [each.answer for each in streams.outbox] == [waiting]


async def test_message_is_bounded_by_items_and_by_bytes() -> None:
    streams, stream = EnqueueStreams(lambda: None), enqueue_streams.EnqueueStream()
    for number in range(enqueue_streams.ITEMS_PER_MESSAGE + 1):
        streams.enqueue(item(str(number)), 1)
    sizes = [len(some(streams.gathered(stream)).items) for _ in range(2)]
    assert sizes == [enqueue_streams.ITEMS_PER_MESSAGE, 1]
    large = bytes(256 * 1024)
    count = enqueue_streams.BYTES_PER_MESSAGE // len(large)
    for number in range(count + 1):
        streams.enqueue(item(f"large {number}", content=large), 1)
    request = some(streams.gathered(stream))
    assert len(request.items) == count


async def test_start_whose_caller_has_gone_is_not_sent() -> None:
    streams, stream = EnqueueStreams(lambda: None), enqueue_streams.EnqueueStream()
    streams.enqueue(item("a"), 1).cancel()
    assert streams.gathered(stream) is None
    assert stream.may_send


async def test_stream_that_ends_leaves_its_starts_to_the_next_in_their_order() -> None:
    streams = EnqueueStreams(lambda: None)
    first = streams.opened()
    for name in "abc":
        streams.enqueue(item(name), 1)
    streams.gathered(first)
    streams.enqueue(item("d"), 1)
    second = streams.opened()
    streams.lost(first)
    request = some(streams.gathered(second))
    assert [each.start.execution_id for each in request.items] == ["a", "b", "c", "d"]
