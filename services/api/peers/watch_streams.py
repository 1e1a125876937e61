"""Subscribes to executions at the coordinators: one stream to each coordinator, with many executions on it.

A subscription is sent to every coordinator, because any of them may hold the execution or take it over. A new start
needs no subscription message: it carries our name (StartOrder.watcher), and the coordinator that is granted the start
subscribes us to it. Each coordinator pushes what it commits. The first final record ends the watch.

After a lost stream, all subscriptions are sent again, to all coordinators: only the lost one knew of the subscriptions
that starts had carried to it. Coordinators then catch up from the journal, and readers of events read it themselves.

A subscription that a start carries is lost when the coordinator that is granted the start has no stream to us. So while
any known coordinator has no stream, we also send normal subscriptions for new starts to all the others. We may also not
know that coordinator yet: when a start has not ended after CARRIED_SECONDS, we subscribe to it at one more coordinator.
Coordinators read the rows of executions that they do not hold, so each end is found within 2 s.

When the last watch of an execution closes, its subscription is cancelled at all coordinators. Its start may be granted
only after that, so a coordinator names the executions to which starts have subscribed us, and we cancel those that
nobody watches.

Hazard: updates come in the order of arrival, with repeats and gaps; `app/watching.py` puts them in sequence.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import Any, Final
from uuid import uuid4

from services.api.app.ports import EventView, ExecutionView
from services.api.peers.coordinators import event_of, execution_of
from services.api.peers.streams import keep_open
from services.chassis.grpc.client import Channel
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.process.batcher import Level
from services.chassis.telemetry.metrics import gauge
from windlass.coordinator.v1 import reads_pb2, reads_pb2_grpc

UPDATES_WAITING_MAX: Final = 1_000
SUBSCRIPTIONS_PER_MESSAGE: Final = 500
WATCHED_MAX: Final = 50_000
# How long a start relies on the subscription that it carries. Nearly all executions have ended by then.
CARRIED_SECONDS: Final = 4.0
_SWEEP_SECONDS: Final = 1.0

_watched = gauge("windlass_api_watched_executions", "Executions that somebody waits for or follows here.")


class OpenWatch:
    """One caller's watch of one execution."""

    def __init__(self, watches: WatchStreams, execution_id: str, after_seq: int, *, events: bool) -> None:
        self._watches = watches
        self.execution_id = execution_id
        self.after_seq = after_seq
        self.events = events
        self.opened_at = asyncio.get_running_loop().time()
        # None: updates may be missing, so the journal has to be read.
        self._arrived: deque[EventView | ExecutionView | None] = deque()
        self.level = Level()

    async def next(self, seconds: float) -> EventView | ExecutionView | None:
        while not self._arrived and not self._watches.is_draining:
            # The level may still be set for an update that was taken already.
            if not await self.level.wait(seconds):
                break
        if self._watches.is_draining:
            raise Refusal("DRAINING", "this server is going away; ask another", retry_after=0.1)
        return self._arrived.popleft() if self._arrived else None

    def put(self, update: EventView | ExecutionView | None) -> None:
        if len(self._arrived) >= UPDATES_WAITING_MAX:
            # A slow reader continues from the journal.
            self._arrived.clear()
            update = None
        self._arrived.append(update)
        self.level.set()

    def close(self) -> None:
        self._watches.forget(self)


class CoordinatorStream:
    """The messages that wait to be sent to one coordinator: for each execution only the latest one."""

    def __init__(self) -> None:
        self.subscriptions: dict[str, reads_pb2.Subscription] = {}
        self.cancelled: set[str] = set()
        self.level = Level()
        # The coordinator subscribes us to starts that carry our name.
        self.knows_us = False
        self.owes_name = True
        # Executions that the coordinator follows for us, as far as is known here.
        self.followed: set[str] = set()

    def subscribe(self, subscription: reads_pb2.Subscription) -> None:
        self.cancelled.discard(subscription.execution_id)
        self.subscriptions[subscription.execution_id] = subscription
        self.followed.add(subscription.execution_id)

    def cancel(self, execution_id: str) -> None:
        # A cancel is needed even if this subscription was not sent yet, because an earlier one may have been.
        self.subscriptions.pop(execution_id, None)
        self.followed.discard(execution_id)
        self.cancelled.add(execution_id)
        self.level.set()

    def ended(self, execution_id: str, *, is_known: bool) -> None:
        """The execution has ended. If this coordinator follows it for us and does not know of the end, cancel that."""
        if is_known:
            self.subscriptions.pop(execution_id, None)
            self.followed.discard(execution_id)
        elif execution_id in self.followed:
            self.cancel(execution_id)


class WatchStreams:
    def __init__(self) -> None:
        # It is unique to this process, so that starts of an earlier process do not subscribe this one.
        self.name: Final = str(uuid4())
        self.is_draining = False
        self._watches: dict[str, list[OpenWatch]] = {}
        self.streams: list[CoordinatorStream] = []
        # The number of coordinators that should have a stream.
        self.listed = 0
        # Starts that rely on the subscription that they carry, with the time of their watch; oldest first.
        self._carried: dict[str, float] = {}

    def open(self, execution_id: str, *, after_seq: int = 0, events: bool = False, is_new: bool = False) -> OpenWatch:
        if len(self._watches) >= WATCHED_MAX:
            raise DependencyUnavailable("this server", "too many executions are followed here")
        watch = OpenWatch(self, execution_id, after_seq, events=events)
        self._watches.setdefault(execution_id, []).append(watch)
        subscription = self._subscription(execution_id)
        if is_new:
            self._carried[execution_id] = watch.opened_at
        all_are_open = len(self.streams) >= self.listed
        for stream in self.streams:
            if is_new and stream.knows_us and all_are_open:
                continue
            stream.subscribe(subscription)
            if not is_new:
                stream.level.set()
        return watch

    def flush(self) -> None:
        """Send the subscriptions of new starts. They are kept until now, because no execution runs before its start is
        sent, and one message carries many of them."""
        for stream in self.streams:
            if stream.subscriptions:
                stream.level.set()

    def forget(self, watch: OpenWatch) -> None:
        """Close a watch. A watch that got its final record is closed already."""
        watches = self._watches.get(watch.execution_id)
        if watches is None or watch not in watches:
            return
        watches.remove(watch)
        if not watches:
            del self._watches[watch.execution_id]
            self._carried.pop(watch.execution_id, None)
            for stream in self.streams:
                stream.cancel(watch.execution_id)

    def waiting_since(self, time: float) -> list[str]:
        """Executions that have been watched since `time` (by the loop's clock) or longer."""
        return [id_ for id_, watches in self._watches.items() if watches[0].opened_at <= time]

    def final(self, execution: ExecutionView, reported_by: CoordinatorStream | None = None) -> None:
        """The execution is final: every watch of it ends."""
        self._carried.pop(execution.id, None)
        for watch in self._watches.pop(execution.id, ()):
            watch.put(execution)
        for stream in self.streams:
            stream.ended(execution.id, is_known=stream is reported_by)

    async def drain(self) -> None:
        """Refuse all waiting callers, so that they ask another replica."""
        self.is_draining = True
        for watches in self._watches.values():
            for watch in watches:
                watch.level.set()

    async def serve(self, address: str, channel: Channel) -> None:
        """Keep the stream to one coordinator while it is listed."""
        self.listed += 1
        try:
            await keep_open(self, channel, reads_pb2_grpc.WatchServiceStub(channel).Watch, f"watch {address}")
        finally:
            self.listed -= 1

    async def sweep(self) -> None:
        """Subscribe to starts that have long relied on the subscription that they carry. One timer serves all."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.subscribe_late_starts(asyncio.get_running_loop().time() - CARRIED_SECONDS)

    def subscribe_late_starts(self, opened_before: float) -> None:
        """The coordinator of a start that has not ended by now may have no stream to us, so subscribe to the start at
        one more coordinator.
        """
        _watched.set(len(self._watches))
        if not self.streams:
            return  # the next stream gets all subscriptions
        late = list(itertools.takewhile(lambda id_: self._carried[id_] <= opened_before, self._carried))
        for execution_id in late:
            del self._carried[execution_id]
            # Round robin, so that coordinators share the reads of rows.
            self.streams.append(self.streams.pop(0))
            another = next((each for each in self.streams if execution_id not in each.followed), None)
            if another is not None:
                another.subscribe(self._subscription(execution_id, catch_up=True))
                another.level.set()

    def opened(self) -> CoordinatorStream:
        stream = CoordinatorStream()
        self._subscribe_all(stream)
        self.streams.append(stream)
        return stream

    def _subscribe_all(self, stream: CoordinatorStream) -> None:
        for execution_id in self._watches:
            stream.subscribe(self._subscription(execution_id, catch_up=True))
        stream.level.set()

    def lost(self, stream: CoordinatorStream) -> None:
        self.streams.remove(stream)
        for other in self.streams:
            self._subscribe_all(other)
        for watches in self._watches.values():
            for watch in watches:
                if watch.events:
                    watch.put(None)

    def heard(self, stream: CoordinatorStream, response: reads_pb2.WatchResponse) -> None:
        stream.knows_us = stream.knows_us or response.knows_watcher
        for execution_id in response.followed:
            if execution_id in self._watches:
                stream.followed.add(execution_id)
            else:
                stream.cancel(execution_id)
        for update in response.updates:
            if update.WhichOneof("update") == "final":
                self.final(execution_of(update.final), reported_by=stream)
                continue
            for watch in self._watches.get(update.execution_id, ()):
                if watch.events:
                    watch.put(event_of(update.event))

    def _subscription(self, execution_id: str, *, catch_up: bool = False) -> reads_pb2.Subscription:
        """One subscription that serves all watches of an execution."""
        watches = self._watches[execution_id]
        with_events = [watch.after_seq for watch in watches if watch.events]
        return reads_pb2.Subscription(
            execution_id=execution_id,
            after_seq=min(with_events, default=0),
            events=bool(with_events),
            catch_up=catch_up,
        )

    async def write(self, stream: CoordinatorStream, call: Any) -> None:
        while True:
            await stream.level.wait()
            while stream.subscriptions or stream.cancelled or stream.owes_name:
                request = reads_pb2.WatchRequest(watcher=self.name if stream.owes_name else "")
                stream.owes_name = False
                while stream.subscriptions and len(request.subscriptions) < SUBSCRIPTIONS_PER_MESSAGE:
                    request.subscriptions.append(stream.subscriptions.pop(next(iter(stream.subscriptions))))
                while stream.cancelled and len(request.cancelled) < SUBSCRIPTIONS_PER_MESSAGE:
                    request.cancelled.append(stream.cancelled.pop())
                await call.write(request)
