"""What coordinators tell of executions that somebody here follows: one stream with each, many executions on it.

A subscription goes to every coordinator, because any of them may hold the execution, or take it over; that of a start
rides with it to whichever coordinator is granted it (StartOrder.watcher), which on an idle system is a frame less. Each
pushes what it commits; the first final record ends the watch. A stream that was lost is opened again and told all
subscriptions anew, to be caught up from the journal, and so are the other coordinators, since what rode was known to
the lost one alone; whoever reads events is told to read for himself.

What rides comes to nothing at a coordinator that has no stream with us. While one of those that are listed has none,
the others are told of each start; for one that is not listed, a start that has been waited for some seconds is told to
one more. Any coordinator looks at the rows of what it was told and does not hold, and so finds every end within 2 s.

Whoever gives up takes his execution back from all, but a start may be granted later than that, or again. So a
coordinator says what it goes on following for what rode, and is told to leave what nobody watches here any more.

Hazard: the order of updates is that of arrival, with repeats and gaps: `app/watching.py` makes a sequence of it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import Any, Final
from uuid import uuid4

from services.api.peers.streams import keep_open
from services.chassis.grpc.client import Channel
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.process.batcher import Level
from services.chassis.telemetry.metrics import gauge
from windlass.coordinator.v1 import reads_pb2, reads_pb2_grpc

UPDATES_WAITING_MAX: Final = 1_000
SUBSCRIPTIONS_PER_MESSAGE: Final = 500
WATCHED_MAX: Final = 50_000
# How long the end of a start is left to what rides with it: nearly all have ended by then.
RIDES_SECONDS: Final = 4.0
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
        # None stands for a cut: read anew.
        self._arrived: deque[reads_pb2.Update | None] = deque()
        self._waiter: asyncio.Future[None] | None = None

    async def next(self, seconds: float) -> reads_pb2.Update | None:
        if not self._arrived:
            await self._wait(seconds)
        if self._watches.is_draining:
            raise Refusal("DRAINING", "this server is going away; ask another", retry_after=0.1)
        return self._arrived.popleft() if self._arrived else None

    def put(self, update: reads_pb2.Update | None) -> None:
        if len(self._arrived) >= UPDATES_WAITING_MAX:
            # A reader that is too slow goes on from the journal, which has it all.
            self._arrived.clear()
            update = None
        self._arrived.append(update)
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        self._watches.forget(self)

    async def _wait(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(seconds, self.wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None


class WatchStream:
    """What one coordinator is to be told next: the last word on each execution counts."""

    def __init__(self) -> None:
        self.subscriptions: dict[str, reads_pb2.Subscription] = {}
        self.cancelled: set[str] = set()
        self.level = Level()
        # It subscribes by itself to what names us.
        self.knows_us = False
        self.owes_name = True
        # What it follows, as far as is known here.
        self._told: set[str] = set()

    def begin(self) -> None:
        """A new stream, which has been told nothing."""
        self.subscriptions.clear()
        self.cancelled.clear()
        self._told.clear()
        self.knows_us, self.owes_name = False, True

    def is_told(self, execution_id: str) -> bool:
        return execution_id in self._told

    def follows(self, execution_id: str) -> None:
        """It has subscribed by itself."""
        self._told.add(execution_id)

    def subscribe(self, subscription: reads_pb2.Subscription) -> None:
        self.cancelled.discard(subscription.execution_id)
        self.subscriptions[subscription.execution_id] = subscription
        self._told.add(subscription.execution_id)

    def cancel(self, execution_id: str) -> None:
        # Also when the subscription has not been sent yet: an earlier one may have been.
        self.subscriptions.pop(execution_id, None)
        self._told.discard(execution_id)
        self.cancelled.add(execution_id)
        self.level.set()

    def ended(self, execution_id: str, *, is_known: bool) -> None:
        """It has ended, as this coordinator knows or has to be told. What it subscribed to by itself it finds out."""
        if is_known:
            self.subscriptions.pop(execution_id, None)
            self._told.discard(execution_id)
        elif execution_id in self._told:
            self.cancel(execution_id)


class WatchStreams:
    def __init__(self) -> None:
        # Of this process: nothing that was said to an earlier one holds.
        self.name: Final = str(uuid4())
        self.is_draining = False
        self._watches: dict[str, list[OpenWatch]] = {}
        self.streams: list[WatchStream] = []
        # Of coordinators that are listed, and have none at present.
        self._away: set[WatchStream] = set()
        # Starts that are watched and were left to what rides with them, and since when; oldest first.
        self._riding: dict[str, float] = {}

    def open(
        self, execution_id: str, *, after_seq: int = 0, events: bool = False, is_new: bool = False
    ) -> OpenWatch:
        if len(self._watches) >= WATCHED_MAX:
            raise DependencyUnavailable("this server", "too many executions are followed here")
        watch = OpenWatch(self, execution_id, after_seq, events=events)
        self._watches.setdefault(execution_id, []).append(watch)
        subscription = self._subscription(execution_id)
        if is_new:
            self._riding[execution_id] = watch.opened_at
        for stream in self.streams:
            if is_new and stream.knows_us and not self._away:
                continue
            stream.subscribe(subscription)
            if not is_new:
                stream.level.set()
        self._count()
        return watch

    def flush(self) -> None:
        """Tell what was kept back: an execution that is `is_new` runs nowhere before its start has been sent, and one
        message for many starts costs what one for each would."""
        for stream in self.streams:
            if stream.subscriptions:
                stream.level.set()

    def forget(self, watch: OpenWatch) -> None:
        """A watch that ended by its final record is gone already."""
        watches = self._watches.get(watch.execution_id)
        if watches is None or watch not in watches:
            return
        watches.remove(watch)
        if not watches:
            del self._watches[watch.execution_id]
            self._riding.pop(watch.execution_id, None)
            for stream in self.streams:
                stream.cancel(watch.execution_id)
            self._count()

    def waiting_since(self, time: float) -> list[str]:
        """Executions that have been watched since before `time` (of the loop's clock)."""
        return [id_ for id_, watches in self._watches.items() if watches[0].opened_at <= time]

    def final(self, record: reads_pb2.ExecutionRecord, told_by: WatchStream | None = None) -> None:
        """The last word on an execution: every watch of it ends."""
        execution_id = record.execution.id
        self._riding.pop(execution_id, None)
        update = reads_pb2.Update(execution_id=execution_id, final=record)
        for watch in self._watches.pop(execution_id, ()):
            watch.put(update)
        for stream in self.streams:
            stream.ended(execution_id, is_known=stream is told_by)
        self._count()

    async def drain(self) -> None:
        """Whoever waits here is told to ask elsewhere."""
        self.is_draining = True
        for watches in self._watches.values():
            for watch in watches:
                watch.wake()

    async def serve(self, address: str, channel: Channel) -> None:
        """The stream with one coordinator, for as long as that is listed."""
        stub = reads_pb2_grpc.WatchServiceStub(channel)
        stream = WatchStream()
        self._away.add(stream)
        try:
            await keep_open(
                channel,
                stub.Watch,
                write=lambda call: self._write(stream, call),
                heard=lambda response: self.heard(stream, response),
                opened=lambda: self.opened(stream),
                lost=lambda: self.lost(stream),
                name=f"watch {address}",
            )
        finally:
            self._away.discard(stream)

    async def sweep(self) -> None:
        """For ever: what has ridden for long is told. One timer for all instead of one for each."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.run_once(asyncio.get_running_loop().time() - RIDES_SECONDS)

    def run_once(self, time: float) -> None:
        """Whoever was granted what rides since before `time` may not be known here: one more is told of it."""
        if not self.streams:
            return  # the next one is told of all
        late = list(itertools.takewhile(lambda id_: self._riding[id_] <= time, self._riding))
        for execution_id in late:
            del self._riding[execution_id]
            # Each in its turn: they share the looks at rows.
            self.streams.append(self.streams.pop(0))
            untold = next((each for each in self.streams if not each.is_told(execution_id)), None)
            if untold is not None:
                untold.subscribe(self._subscription(execution_id, catch_up=True))
                untold.level.set()

    def _count(self) -> None:
        _watched.set(len(self._watches))

    def opened(self, stream: WatchStream) -> None:
        stream.begin()
        self._away.discard(stream)
        self._tell_all(stream)
        self.streams.append(stream)

    def _tell_all(self, stream: WatchStream) -> None:
        for execution_id in self._watches:
            stream.subscribe(self._subscription(execution_id, catch_up=True))
        stream.level.set()

    def lost(self, stream: WatchStream) -> None:
        if stream in self.streams:
            self.streams.remove(stream)
            self._away.add(stream)
            for other in self.streams:
                self._tell_all(other)
        for watches in self._watches.values():
            for watch in watches:
                if watch.events:
                    watch.put(None)

    def heard(self, stream: WatchStream, response: reads_pb2.WatchResponse) -> None:
        stream.knows_us = stream.knows_us or response.knows_watcher
        for execution_id in response.followed:
            if execution_id in self._watches:
                stream.follows(execution_id)
            else:
                stream.cancel(execution_id)
        for update in response.updates:
            if update.WhichOneof("update") == "final":
                self.final(update.final, told_by=stream)
                continue
            for watch in self._watches.get(update.execution_id, ()):
                if watch.events:
                    watch.put(update)

    def _subscription(self, execution_id: str, *, catch_up: bool = False) -> reads_pb2.Subscription:
        """What all watches of one execution need together."""
        watches = self._watches[execution_id]
        with_events = [watch.after_seq for watch in watches if watch.events]
        return reads_pb2.Subscription(
            execution_id=execution_id,
            after_seq=min(with_events, default=0),
            events=bool(with_events),
            catch_up=catch_up,
        )

    async def _write(self, stream: WatchStream, call: Any) -> None:
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
