"""The dispatcher's mailboxes and periodic rounds in memory, on the tables of memory_queue.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

from services.dispatcher.core import mailbox_limits as limits
from services.dispatcher.core.items import Delivery, GivenUp, MailboxMessage, Measure, Requeued, State
from tests.support.memory_queue import MailboxRow, QueueRow, QueueTables, Statement, at_once, micros


class MemoryMailbox:
    def __init__(self, tables: QueueTables, run: Statement = at_once, *, redeliver_seconds: float) -> None:
        self._tables = tables
        self._run = run
        self._redeliver_after = timedelta(seconds=redeliver_seconds)
        self._last_resent = ""

    async def deliver(self, messages: Sequence[MailboxMessage]) -> list[Delivery | None]:
        return await self._run(lambda: self._deliver(messages))

    def _deliver(self, messages: Sequence[MailboxMessage]) -> list[Delivery | None]:
        tables, now = self._tables, self._tables.clock.now()
        for message in messages:
            self._make_row(message, now)
        unread = {n: self._unread_before(message) for n, message in enumerate(messages)}
        found = {n: row for n, message in enumerate(messages) if (row := self._row_of(message)) is not None}
        refused = self._refused([(n, messages[n]) for n in found])
        ending: dict[str, bool] = {}
        for n, row in found.items():
            message = messages[n]
            if n not in refused:
                ending[message.execution_id] = ending.get(message.execution_id, False) or message.is_ending
                mail = MailboxRow(message.message_id, message.execution_id, now, message.body)
                tables.mailbox.setdefault(message.message_id, mail)
                row.reopens |= message.row is not None and row.is_held
        holders = {n: row.holder for n, row in found.items()}
        woken = {id_ for id_, is_ending in ending.items() if self._wake(tables.queue[id_], is_ending=is_ending)}
        deliveries: list[Delivery | None] = [None] * len(messages)
        for n, row in found.items():
            was_woken = row.execution_id in woken
            is_ends_only = was_woken and row.ends_only
            deliveries[n] = Delivery(row.workspace, holders[n], was_woken, is_ends_only, n in refused, unread[n])
        return deliveries

    def _unread_before(self, message: MailboxMessage) -> list[bytes] | None:
        bodies = [mail.body for mail in self._tables.mail_of(message.execution_id)] if message.is_in_order else []
        is_short = len(bodies) <= limits.RESENT_MESSAGES_MAX and sum(map(len, bodies)) <= limits.RESENT_BYTES_EACH
        return bodies if is_short else None

    def _make_row(self, message: MailboxMessage, now: datetime) -> None:
        """The row of an execution that the message may reopen."""
        id_, new = message.execution_id, message.row
        if new is None or id_ in self._tables.queue:
            return
        epoch = next(self._tables.epochs)
        row = QueueRow(id_, message.workspace, State.PENDING, new.priority, epoch, None, now, None, None, "", new.start)
        row.urgent = row.begun = True
        self._tables.queue[id_] = row

    def _row_of(self, message: MailboxMessage) -> QueueRow | None:
        row = self._tables.queue.get(message.execution_id)
        if row is None or message.workspace not in ("", row.workspace):
            return None
        if row.state is State.FAILED and not message.waits_for_requeue:
            return None
        return row

    def _refused(self, messages: Sequence[tuple[int, MailboxMessage]]) -> set[int]:
        refused: set[int] = set()
        counts: dict[str, tuple[int, int]] = {}
        for n, message in sorted(messages, key=lambda each: (not each[1].is_ending, each[0])):
            id_, mailbox = message.execution_id, self._tables.mailbox
            if id_ not in counts:
                mail = self._tables.mail_of(id_)
                counts[id_] = (len(mail), sum(len(each.body) for each in mail))
            if message.message_id in mailbox:
                continue
            count, size = counts[id_] = (counts[id_][0] + 1, counts[id_][1] + len(message.body))
            more, more_bytes = (
                (limits.MAILBOX_ENDING_MESSAGES, limits.MAILBOX_ENDING_BYTES) if message.is_ending else (0, 0)
            )
            if count > limits.MAILBOX_MESSAGES_MAX + more or size > limits.MAILBOX_BYTES_MAX + more_bytes:
                refused.add(n)
        return refused

    def _wake(self, row: QueueRow, *, is_ending: bool) -> bool:
        is_ended_now = row.state is State.PENDING and is_ending and not row.ends_only
        if row.state is not State.PARKED and not is_ended_now:
            return False
        if row.state is State.PARKED:
            row.wake_time = self._tables.clock.now()
        row.state, row.ends_only = State.PENDING, row.ends_only or is_ending
        return True

    async def forget(self, message_ids: Sequence[str]) -> None:
        await self._run(lambda: self._tables.forget_mail(message_ids))

    async def unread(self) -> dict[str, list[bytes]]:
        chosen = await self._run(self._unread)
        by_holder: dict[str, list[bytes]] = {}
        for mail, holder in chosen:
            self._last_resent = mail.execution_id
            by_holder.setdefault(holder, []).append(mail.body)
        return by_holder

    def _unread(self) -> list[tuple[MailboxRow, str]]:
        """The messages to send again, each with its holder."""
        before = self._tables.clock.now() - self._redeliver_after
        lines: list[tuple[int, bool, str, MailboxRow]] = []
        for execution_id in dict.fromkeys(mail.execution_id for mail in self._tables.mailbox.values()):
            row = self._tables.queue.get(execution_id)
            if row is None or not row.is_held:
                continue
            size = 0
            old = [mail for mail in self._tables.mail_of(execution_id) if mail.create_time < before]
            for nth, mail in enumerate(old[: limits.RESENT_MESSAGES_MAX], 1):
                if size < limits.RESENT_BYTES_EACH:
                    lines.append((nth, execution_id <= self._last_resent, execution_id, mail))
                size += len(mail.body)
        lines.sort(key=lambda line: line[:3])
        chosen: list[tuple[MailboxRow, str]] = []
        size = 0
        for *_, mail in lines[: limits.RESENT_MESSAGES_MAX]:
            if size < limits.RESENT_BYTES_MAX:
                chosen.append((mail, self._tables.queue[mail.execution_id].holder or ""))
            size += len(mail.body)
        return chosen

    async def sweep(self) -> int:
        def work() -> int:
            before = self._tables.clock.now() - timedelta(minutes=1)
            gone = [
                mail.message_id
                for mail in self._tables.mailbox.values()
                if mail.create_time < before and mail.execution_id not in self._tables.queue
            ]
            self._tables.forget_mail(gone)
            return len(gone)

        return await self._run(work)


class MemoryHousekeeping:
    def __init__(
        self,
        tables: QueueTables,
        run: Statement = at_once,
        *,
        lost_grant_seconds: float,
        notified: Callable[[str, Sequence[str]], None] = lambda channel, payloads: None,
    ) -> None:
        self._tables = tables
        self._run = run
        self._lost_grant_after = timedelta(seconds=lost_grant_seconds)
        self._notified = notified

    def _rows(self) -> Iterator[QueueRow]:
        return iter(self._tables.queue.values())

    async def workspaces_with_work(self) -> tuple[list[str], bool]:
        def work() -> tuple[list[str], bool]:
            waiting = {row.workspace for row in self._rows() if row.is_waiting}
            return sorted(waiting), any(row.state is State.PENDING and row.ends_only for row in self._rows())

        return await self._run(work)

    async def wake(self) -> tuple[list[Requeued], float | None]:
        return await self._run(self._wake)

    def _wake(self) -> tuple[list[Requeued], float | None]:
        now = self._tables.clock.now()
        changed: list[Requeued] = []
        for row in self._rows():
            if row.state is State.PARKED and row.wake_time is not None and row.wake_time <= now:
                row.state = State.PENDING
                changed.append(row.requeued)
        for row in self._rows():
            if row.is_waiting and row.deadline_time is not None and row.deadline_time <= now:
                row.ends_only = True
                changed.append(row.requeued)
        wakes = [row.wake_time for row in self._rows() if row.state is State.PARKED]
        deadlines = [row.deadline_time for row in self._rows() if row.is_waiting]
        following = min((time for time in (*wakes, *deadlines) if time is not None), default=None)
        return changed, None if following is None else (following - now).total_seconds()

    async def wake_parked(self, workspace: str, leases: Sequence[tuple[str, int]]) -> tuple[list[Requeued], list[str]]:
        def work() -> tuple[list[Requeued], list[str]]:
            given = dict(leases)
            rows = [row for row in self._rows() if given.get(row.execution_id) == row.epoch]
            parked = [row for row in rows if row.state is State.PARKED and row.workspace == workspace]
            for row in parked:
                row.state, row.wake_time = State.PENDING, self._tables.clock.now()
            return [row.requeued for row in parked], [row.execution_id for row in rows if row.is_held]

        return await self._run(work)

    async def mark_dispatched(self, leases: Sequence[tuple[str, int]]) -> None:
        def work() -> None:
            for lease in leases:
                row = self._tables.held(*lease)
                if row is not None and row.state is State.CLAIMED:
                    row.state = State.DISPATCHED

        await self._run(work)

    async def lost_grants(self) -> dict[str, list[tuple[str, int]]]:
        def work() -> dict[str, list[tuple[str, int]]]:
            before = self._tables.clock.now() - self._lost_grant_after
            by_holder: dict[str, list[tuple[str, int]]] = {}
            for row in self._rows():
                if row.state is State.CLAIMED and row.granted_time is not None and row.granted_time < before:
                    by_holder.setdefault(row.holder or "", []).append((row.execution_id, row.epoch))
            return by_holder

        return await self._run(work)

    async def holders_gone(self) -> list[str]:
        def work() -> list[str]:
            holders = dict.fromkeys(row.holder for row in self._rows() if row.is_held and row.holder is not None)
            return [holder for holder in holders if not self._tables.is_live(holder)]

        return await self._run(work)

    async def untold(self, after: str) -> list[GivenUp]:
        def work() -> list[GivenUp]:
            dead = [row for row in self._rows() if row.state is State.FAILED and not row.parent_told]
            found = sorted((row for row in dead if row.execution_id > after), key=lambda row: row.execution_id)
            return [
                GivenUp(row.execution_id, row.start, row.failure_reason, row.failure_message, micros(row.failure_time))
                for row in found[:200]
            ]

        return await self._run(work)

    async def note_told(self, execution_ids: Sequence[str]) -> None:
        def work() -> None:
            for execution_id in execution_ids:
                row = self._tables.queue.get(execution_id)
                if row is not None and row.state is State.FAILED:
                    row.parent_told = True

        await self._run(work)

    async def measure(self) -> list[Measure]:
        def work() -> list[Measure]:
            now = self._tables.clock.now()
            measures: list[Measure] = []
            for workspace in dict.fromkeys(row.workspace for row in self._rows()):
                rows = [row for row in self._rows() if row.workspace == workspace]
                waiting = [row.enqueue_time for row in rows if row.is_waiting]
                going = [row.granted_time for row in rows if row.is_going and row.granted_time is not None]
                ages = [(now - min(times, default=now)).total_seconds() for times in (waiting, going)]
                if waiting or going:
                    measures.append(Measure(workspace, len(waiting), len(going), *ages))
            return measures

        return await self._run(work)

    async def forget_requests(self) -> int:
        """Nothing grows old in a test."""
        return 0

    async def forget_dead_letters(self) -> int:
        """As above."""
        return 0

    async def forget_requeues(self) -> int:
        """No row that failed is queued again."""
        return 0

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        await self._run(lambda: self._notified(channel, payloads))
