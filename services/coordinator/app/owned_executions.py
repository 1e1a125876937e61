"""The executions in the hands of this coordinator, and the doors through which everything reaches them.

Each door is a plain call that puts inputs into inboxes and wakes the turn loop; nothing is decided here. What is not
owned goes elsewhere: a misrouted report to the mailbox of its execution, a message back to wait for its holder.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from services.chassis.lease.frames import Grant, Lease, Refused
from services.chassis.process.batcher import Level
from services.chassis.process.clock import Clock
from services.chassis.telemetry.logs import logger
from services.coordinator.app.owned_execution import NOBODY, Answer, Input, OwnedExecution, owned_from
from services.coordinator.app.ports import Definitions, ExecutionLoader, MisroutedReports, RunnerSession
from services.coordinator.app.received import (
    GrantedExecution,
    ReceivedMessage,
    ReceivedProgress,
    ReceivedReport,
)
from services.coordinator.app.results import release_reason
from services.coordinator.app.run_ids import split_run_id
from services.coordinator.app.timers import Timers
from services.coordinator.core.commands import Command, LoseRunner, Release, Tick
from services.coordinator.core.state import Execution, Run
from services.coordinator.core.values import ReleaseReason

log = logger(__name__)

# Of many in one log line.
_NAMED_MAX: Final = 5


class OwnedExecutions:
    """`dirty` are those with something in the inbox, oldest first; `level` wakes the turn loop."""

    def __init__(
        self,
        *,
        clock: Clock,
        definitions: Definitions,
        loader: ExecutionLoader,
        misrouted_reports: MisroutedReports,
        mailbox_seconds: float,
    ) -> None:
        """`mailbox_seconds`: by when a report that reached another coordinator has come here."""
        self.by_id: dict[str, OwnedExecution] = {}
        self.dirty: OrderedDict[OwnedExecution, None] = OrderedDict()
        self.level = Level()
        self.timers = Timers(clock, self._timers_due)
        self._clock = clock
        self._definitions = definitions
        self._loader = loader
        self._misrouted_reports = misrouted_reports
        self._mailbox_seconds = mailbox_seconds
        # What is about to be given up, unless its runner names it: by lease and epoch.
        self._doubted: dict[tuple[str, int], asyncio.TimerHandle] = {}

    # ── from the dispatchers ─────────────────────────────────────────────────────────────────────────────────────

    def take_on(self, grants: Iterable[GrantedExecution]) -> None:
        now_ns = self._clock.epoch_ns()
        for grant in grants:
            owned = owned_from(grant, now_ns)
            before = self.by_id.get(owned.execution_id)
            if before is not None:
                if before.epoch >= owned.epoch:
                    continue
                self.drop(before)
            self.by_id[owned.execution_id] = owned
            owned.version = self._definitions.cached(grant.start.origin.version_id)
            if owned.version is None or grant.is_resumed:
                self._load(owned)
            else:
                self.begin(owned)

    def begin(self, owned: OwnedExecution) -> None:
        """A first start: nothing is in the journal, or so says the hint; the append finds out."""
        assert owned.version is not None
        owned.is_loading = False
        owned.execution = Execution(owned.execution_id, owned.version.definition)
        start = Input(owned.start)
        owned.inbox = [start, *self._granted(owned), *owned.inbox]
        self._mark(owned)

    def resume(self, owned: OwnedExecution, adopt: Command) -> None:
        """Its journal was folded."""
        owned.is_loading = False
        owned.inbox = [Input(adopt), *self._granted(owned), *owned.inbox]
        self._mark(owned)

    def reload(self, owned: OwnedExecution) -> None:
        """It turned out that its journal was begun before."""
        owned.execution = None
        self._load(owned)

    def _load(self, owned: OwnedExecution) -> None:
        owned.is_loading = True
        self._loader.add(owned)

    def deliver(self, messages: Iterable[ReceivedMessage]) -> None:
        """Several times each, when they wait for long: while an execution is being loaded, or cannot be written, its
        inbox holds no more than its mailbox."""
        for message in messages:
            owned = self.by_id.get(message.execution_id)
            if owned is not None and message.message_id not in owned.unanswered:
                owned.unanswered.add(message.message_id)
                self._put_all(owned, self._messages((message,), owned))

    def _granted(self, owned: OwnedExecution) -> list[Input]:
        """Messages that came with the grant; once, though it may be opened again (`reload`)."""
        messages, owned.granted_messages = owned.granted_messages, ()
        return self._messages(messages, owned)

    def _messages(self, messages: Iterable[ReceivedMessage], owned: OwnedExecution) -> list[Input]:
        inputs: list[Input] = []
        for message in messages:
            if message.command is None:
                # From a newer dispatcher: it stays in the mailbox for a coordinator that knows it.
                log.warning("unknown message", execution_id=owned.execution_id, message_id=message.message_id)
                continue
            inputs.append(Input(message.command, Answer(message_id=message.message_id)))
        return inputs

    def revoked(self, leases: Iterable[Lease | Refused]) -> None:
        gone = [
            owned
            for lease in leases
            if (owned := self.by_id.get(lease.lease_id)) is not None and owned.epoch <= lease.epoch
        ]
        for owned in gone:
            self.drop(owned)
        if gone:
            ids = [owned.execution_id for owned in gone[:_NAMED_MAX]]
            log.warning("execution leases revoked", executions=len(gone), first=ids)

    def drop_all(self) -> None:
        """The renewal was refused: others may hold them all by now."""
        for owned in list(self.by_id.values()):
            self.drop(owned)

    def drop(self, owned: OwnedExecution) -> None:
        """Out of memory at once, without a word to anybody: its journal is another's. Reports that it had not
        answered go where a holder will find them."""
        owned.is_dropped = True
        if self.by_id.get(owned.execution_id) is owned:
            del self.by_id[owned.execution_id]
        self.dirty.pop(owned, None)
        owned.wake = 0
        inputs, owned.inbox = owned.inbox, []
        self.send_away(each.answer for each in inputs)

    def forget(self, owned: OwnedExecution) -> None:
        """It is final or parked, and that is in the journal."""
        owned.is_dropped = True
        owned.wake = 0
        if self.by_id.get(owned.execution_id) is owned:
            del self.by_id[owned.execution_id]
        self.timers.trim(self.by_id.values(), len(self.by_id))

    def send_away(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            if answer.session is not None and answer.report is not None:
                self._misrouted_reports.add(answer.session, answer.report)

    # ── from the runners ─────────────────────────────────────────────────────────────────────────────────────────

    def reported(self, session: RunnerSession, reports: Sequence[ReceivedReport]) -> None:
        for report in reports:
            owned = self.by_id.get(report.execution_id)
            command = report.command
            if owned is None or command is None or not session.data.serves(owned.start.origin.workspace):
                self._misrouted_reports.add(session, report)
                continue
            owned.inbox.append(Input(command, Answer(session, report)))
            self.dirty.setdefault(owned)
        self.level.set()

    def progressed(self, progress: Iterable[ReceivedProgress]) -> None:
        for execution_id, commands in progress:
            owned = self.by_id.get(execution_id)
            if owned is not None:
                self._put_all(owned, [Input(command) for command in commands])

    def handed_back(self, instance_id: str, refused: Iterable[Refused]) -> None:
        """Grants that a runner did not take, and runs that it says it does not hold."""
        for lease_id, epoch, reason, _ in refused:
            if reason == "NOT_HELD":
                owned = self.by_id.get(split_run_id(lease_id)[0])
                if owned is not None:
                    self._doubt(owned, lease_id, epoch, instance_id)
            else:
                self._release(lease_id, epoch, release_reason(reason), instance_id, may_have_begun=False)

    def in_doubt(self, grants: Iterable[Grant]) -> None:
        """Their runner lives, out of our reach, and may be at work. Work that must not be done twice waits until it is
        heard of, or its instance has ended; the rest goes elsewhere, if its runner does not come back with it first."""
        for lease_id, epoch, _ in grants:
            execution_id, number = split_run_id(lease_id)
            owned = self.by_id.get(execution_id)
            run = None if owned is None or owned.execution is None else owned.execution.live.get(number)
            if owned is not None and run is not None and run.is_idempotent:
                self._doubted[lease_id, epoch] = self._doubt(owned, lease_id, epoch)

    def taken(self, grants: Iterable[Grant]) -> None:
        """Their runner has them: none of them is given up, however long it was away."""
        if self._doubted:
            for lease_id, epoch, _ in grants:
                if timer := self._doubted.pop((lease_id, epoch), None):
                    timer.cancel()

    def unsent(self, grants: Iterable[Grant]) -> None:
        """They never left this process."""
        for grant in grants:
            self._release(grant.lease_id, grant.epoch, ReleaseReason.WITHDRAWN, may_have_begun=False)

    def _doubt(
        self, owned: OwnedExecution, lease_id: str, epoch: int, instance_id: str = ""
    ) -> asyncio.TimerHandle:
        """A runner that does not hold the run may have done it and told another coordinator: then its report is on its
        way here by the mailbox, and must not come too late. So the run is given up only after that way's time."""
        loop = asyncio.get_running_loop()
        return loop.call_later(self._mailbox_seconds, self._give_up, owned, lease_id, epoch, instance_id)

    def _give_up(self, owned: OwnedExecution, lease_id: str, epoch: int, instance_id: str) -> None:
        self._doubted.pop((lease_id, epoch), None)
        if not owned.is_dropped:
            self._release(lease_id, epoch, ReleaseReason.WITHDRAWN, instance_id, may_have_begun=True)

    def _release(
        self, lease_id: str, epoch: int, reason: ReleaseReason, instance_id: str = "", *, may_have_begun: bool
    ) -> None:
        execution_id, number = split_run_id(lease_id)
        owned = self.by_id.get(execution_id)
        if owned is not None:
            self.put(owned, Release(number, epoch, reason, may_have_begun, instance_id))

    def runner_lost(self, instance_id: str, *, is_idempotent_only: bool) -> None:
        for owned in self.with_runs_of(instance_id):
            self.put(owned, LoseRunner(instance_id, is_idempotent_only))

    def with_runs_of(self, instance_id: str) -> list[OwnedExecution]:
        """Looks at all: asked when a runner comes or goes, never per run."""
        return [owned for owned in self.by_id.values() if _runs_of(owned, instance_id)]

    def leases_of(self, instance_id: str) -> list[Lease]:
        return [
            Lease(f"{owned.execution_id}.{run.number}", run.epoch)
            for owned in self.by_id.values()
            for run in _runs_of(owned, instance_id)
        ]

    def instances(self) -> set[str]:
        """All that hold a live run of ours."""
        return {
            run.instance_id
            for owned in self.by_id.values()
            if owned.execution is not None
            for run in owned.execution.live.values()
        }

    # ── inboxes ──────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, owned: OwnedExecution, command: Command) -> None:
        self._put_all(owned, (Input(command, NOBODY),))

    def _put_all(self, owned: OwnedExecution, inputs: Iterable[Input]) -> None:
        owned.inbox += inputs
        self._mark(owned)

    def _mark(self, owned: OwnedExecution) -> None:
        self.dirty.setdefault(owned)
        self.level.set()

    def _timers_due(self, due: list[OwnedExecution]) -> None:
        for owned in due:
            self.put(owned, Tick(random.random()))


def _runs_of(owned: OwnedExecution, instance_id: str) -> list[Run]:
    execution = owned.execution
    return [] if execution is None else [r for r in execution.live.values() if r.instance_id == instance_id]
