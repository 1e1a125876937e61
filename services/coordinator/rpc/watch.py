"""The subscriptions of api replicas to executions, and the two sources of their updates.

Commits of this coordinator are pushed at once. The tables are read when a subscription asks to catch up, and every 2 s
for all executions that are not owned here. Both sources may bring the same event; the subscription knows the last one
that it has sent, and sends each event once, in order.

Hazards: nothing waits for a slow reader. A stream that is not read fast enough is cut, and its api subscribes again
from the last event that it has. If a bug keeps an update of one execution from being sent, the next commit or the next
read of the tables tries again, and the other subscriptions are not affected.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.batcher import Level
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter, gauge
from services.coordinator.app.ports import Row
from services.coordinator.core.events import Event
from services.coordinator.core.projection import EXECUTION_COLUMNS, execution_row
from services.coordinator.core.run_ids import is_execution_id
from services.coordinator.core.state import Execution
from services.coordinator.core.summary import summary
from services.coordinator.rpc.public_executions import event_record, fill_execution
from services.coordinator.rpc.reads import Reads, ReadServicer
from windlass.coordinator.v1 import reads_pb2 as pb

log = logger(__name__)

_POLL_SECONDS: Final = 2.0
_POLLS_UNTIL_TOLD: Final = 2
# The most updates that may wait for one stream; the same limit holds for `followed`.
_WAITING_MAX: Final = 20_000
_SUBSCRIPTIONS_MAX: Final = 100_000
_EVENTS_READ_MAX: Final = 1_000
_CHECKED_AT_ONCE: Final = 1_000
# A row may hold half a mebibyte.
_ROWS_AT_ONCE: Final = 50
_ITEMS_PER_MESSAGE: Final = 500
_MESSAGE_BYTES_MAX: Final = 3 * 1024 * 1024

_subscriptions = gauge("coordinator_watch_subscriptions", "Subscriptions of api replicas that are open here.")
_failed_updates = counter("coordinator_watch_failed_updates_total", "Updates that a bug kept from being sent.")


@contextmanager
def _isolated(execution_id: str) -> Iterator[None]:
    """A bug in one execution must not harm the others."""
    try:
        yield
    except DependencyUnavailable:
        raise
    except Exception as failure:
        _failed_updates.inc()
        log.error("an update of an execution cannot be sent", execution_id=execution_id, exc_info=failure)


@dataclass(slots=True, eq=False)
class Subscription:
    stream: WatchStream
    execution_id: str
    after_seq: int = 0
    events: bool = False
    # After this many more polls, the watcher is told that we follow the execution for it. 0: it asked for that itself,
    # or was told.
    polls_until_told: int = 0


class WatchStream:
    """One stream of an api replica: its subscriptions, and the updates that wait to be written."""

    def __init__(self) -> None:
        self.updates: deque[pb.Update] = deque()
        self.level = Level()
        self.by_execution: dict[str, Subscription] = {}
        self.is_cut = False
        # The name of the api process at the other end; "" until it gives one.
        self.watcher = ""
        self.owes_answer = False
        # Ids of executions that we follow for it although it did not ask, to be sent to it.
        self.followed: list[str] = []

    def push(self, update: pb.Update) -> None:
        if len(self.updates) >= _WAITING_MAX:
            self.is_cut = True
        else:
            self.updates.append(update)
        self.level.set()

    def take(self) -> pb.WatchResponse | None:
        """The next message, with as many updates as fit. None if nothing waits, or the stream is cut."""
        if self.is_cut or not (self.owes_answer or self.updates or self.followed):
            return None
        owes_answer, self.owes_answer = self.owes_answer, False
        followed, self.followed = self.followed[:_ITEMS_PER_MESSAGE], self.followed[_ITEMS_PER_MESSAGE:]
        updates: list[pb.Update] = []
        room = _MESSAGE_BYTES_MAX
        while self.updates and len(updates) < _ITEMS_PER_MESSAGE:
            room -= self.updates[0].ByteSize()
            if updates and room < 0:
                break
            updates.append(self.updates.popleft())
        return pb.WatchResponse(updates=updates, knows_watcher=owes_answer, followed=followed)


class WatchHub:
    """Implements `Watchers` for the commit loop."""

    def __init__(self, reads: Reads, reader: ReadServicer, owned: Callable[[], Collection[str]]) -> None:
        self._reads = reads
        self._reader = reader
        self._owned = owned
        self._by_execution: dict[str, list[Subscription]] = {}
        self._by_watcher: dict[str, WatchStream] = {}
        self._catching_up = Level()
        self._to_catch_up: deque[Subscription] = deque()
        _subscriptions.set_function(lambda: sum(map(len, self._by_execution.values())))

    # ── Watchers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def wants(self, execution_id: str, is_final: bool) -> bool:
        subscriptions = self._by_execution.get(execution_id, ())
        for each in subscriptions:
            if each.events:
                return True
        return is_final and bool(subscriptions)

    def advanced(self, execution: Execution, from_seq: int, events: Sequence[Event]) -> None:
        id_, epoch = execution.execution_id, execution.epoch
        subscriptions = list(self._by_execution.get(id_, ()))
        if any(each.events for each in subscriptions):
            # If this fails, the events are a gap, which is closed from the journal.
            with _isolated(id_):
                records = [event_record(event, id_, seq, epoch) for seq, event in enumerate(events, from_seq + 1)]
                for each in subscriptions:
                    self._push_events(each, records)
        if execution.is_final:
            with _isolated(id_):
                row: dict[str, Any] = dict(zip(EXECUTION_COLUMNS, execution_row(execution), strict=True))
                row["summary"] = summary(execution)._asdict()
                self._finish(subscriptions, row)

    # ── subscriptions ────────────────────────────────────────────────────────────────────────────────────────────

    def name_watcher(self, stream: WatchStream, watcher: str) -> None:
        """From now on, we follow each execution that is granted here and names this watcher, without being asked."""
        stream.watcher, stream.owes_answer = watcher, True
        self._by_watcher[watcher] = stream
        stream.level.set()

    def granted(self, execution_id: str, watcher: str) -> None:
        """Follows an execution for the watcher that its start names. A watcher without a stream here subscribes at
        another coordinator, which finds the end in the tables."""
        stream = self._by_watcher.get(watcher)
        # A subscription that was made while the execution was queued may ask for more than its end.
        if stream is not None and execution_id not in stream.by_execution:
            self._add(Subscription(stream, execution_id, polls_until_told=_POLLS_UNTIL_TOLD))

    def subscribe(self, stream: WatchStream, wanted: pb.Subscription) -> None:
        if not is_execution_id(wanted.execution_id):
            return
        self.cancel(stream, wanted.execution_id)
        subscription = Subscription(stream, wanted.execution_id, wanted.after_seq, wanted.events)
        self._add(subscription)
        if wanted.catch_up:
            self._catch_up(subscription)

    def _add(self, subscription: Subscription) -> None:
        stream, execution_id = subscription.stream, subscription.execution_id
        if len(stream.by_execution) < _SUBSCRIPTIONS_MAX:
            stream.by_execution[execution_id] = subscription
            self._by_execution.setdefault(execution_id, []).append(subscription)

    def cancel(self, stream: WatchStream, execution_id: str) -> None:
        subscription = stream.by_execution.pop(execution_id, None)
        if subscription is None:
            return
        others = self._by_execution[execution_id]
        others.remove(subscription)
        if not others:
            del self._by_execution[execution_id]

    def leave(self, stream: WatchStream) -> None:
        if self._by_watcher.get(stream.watcher) is stream:
            del self._by_watcher[stream.watcher]
        for execution_id in list(stream.by_execution):
            self.cancel(stream, execution_id)

    def _push_events(self, subscription: Subscription, records: Sequence[pb.EventRecord]) -> None:
        """Pushes the events that come after the last one sent. A gap is closed by reading the journal."""
        if not subscription.events:
            return
        for record in records:
            seq = record.event.seq
            if seq <= subscription.after_seq:
                continue
            if seq != subscription.after_seq + 1:
                self._catch_up(subscription)
                return
            subscription.after_seq = seq
            subscription.stream.push(pb.Update(execution_id=subscription.execution_id, event=record))

    def _finish(self, subscriptions: Iterable[Subscription], row: Row) -> None:
        update = pb.Update(execution_id=row["execution_id"])
        fill_execution(update.final, row)
        for each in subscriptions:
            if each.events and each.after_seq < row["last_seq"]:
                # Events before the end are missing. They are read from the journal and sent first.
                self._catch_up(each)
                continue
            each.stream.push(update)
            self.cancel(each.stream, each.execution_id)

    # ── from the tables ──────────────────────────────────────────────────────────────────────────────────────────

    def _catch_up(self, subscription: Subscription) -> None:
        self._to_catch_up.append(subscription)
        self._catching_up.set()

    async def run_catching_up(self) -> None:
        while True:
            await self._catching_up.wait()
            while self._to_catch_up:
                count = min(_CHECKED_AT_ONCE, len(self._to_catch_up))
                batch = [self._to_catch_up.popleft() for _ in range(count)]
                if not await self._try_check(batch):
                    self._to_catch_up.extend(batch)

    async def run_polling(self, scale: float) -> None:
        """Finds executions that another coordinator has finished, and ends that were missed in a take-over."""
        while True:
            await asyncio.sleep(_POLL_SECONDS * scale)
            self.tell_followed()
            owned = self._owned()
            not_owned = [each for id_, all_ in self._by_execution.items() if id_ not in owned for each in all_]
            for start in range(0, len(not_owned), _CHECKED_AT_ONCE):
                await self._try_check(not_owned[start : start + _CHECKED_AT_ONCE])

    def tell_followed(self) -> None:
        """Tells watchers which executions we follow for them, so that they can cancel those that nobody waits for. An
        execution is sent at the second poll, because nearly all have ended by then."""
        for stream in self._by_watcher.values():
            for each in stream.by_execution.values():
                if each.polls_until_told and len(stream.followed) < _WAITING_MAX:
                    each.polls_until_told -= 1
                    if not each.polls_until_told:
                        stream.followed.append(each.execution_id)
            if stream.followed:
                stream.level.set()

    async def _try_check(self, subscriptions: Sequence[Subscription]) -> bool:
        try:
            await self.check(subscriptions)
        except DependencyUnavailable as failure:
            log.warning("watches cannot be checked", error=str(failure))
            await asyncio.sleep(0.2)
            return False
        return True

    async def check(self, subscriptions: Sequence[Subscription]) -> None:
        """Sends each subscription what the tables have beyond its last event. Whole rows are read only for executions
        that have ended."""
        standings = await self._reads.standings(sorted({each.execution_id for each in subscriptions}))
        ended: list[Subscription] = []
        # A subscription that found several gaps is in the list several times.
        for each in dict.fromkeys(subscriptions):
            standing = standings.get(each.execution_id)
            if standing is None:
                continue
            with _isolated(each.execution_id):
                await self._bring_up(each, standing.last_seq)
            is_behind = each.events and each.after_seq < standing.last_seq
            if standing.is_final and not is_behind and self._is_live(each):
                ended.append(each)
        for start in range(0, len(ended), _ROWS_AT_ONCE):
            part = ended[start : start + _ROWS_AT_ONCE]
            for row in await self._reads.executions(sorted({each.execution_id for each in part})):
                with _isolated(row["execution_id"]):
                    mine = [each for each in part if each.execution_id == row["execution_id"] and self._is_live(each)]
                    self._finish(mine, row)

    async def _bring_up(self, subscription: Subscription, last_seq: int) -> None:
        while subscription.events and subscription.after_seq < last_seq and self._is_live(subscription):
            records = await self._reader.event_records(
                subscription.execution_id, subscription.after_seq, 0, _EVENTS_READ_MAX
            )
            if not records:
                break
            # The journal has no gap.
            self._push_events(subscription, records)

    @staticmethod
    def _is_live(subscription: Subscription) -> bool:
        return subscription.stream.by_execution.get(subscription.execution_id) is subscription
