"""The executions that this coordinator owns, and the calls that bring them their inputs.

Each call puts inputs into inboxes and wakes the commit loop; nothing is decided here. A report for an execution that is
not owned goes to the mailbox of that execution. A message for it is ignored: the dispatcher repeats it to the holder.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from services.chassis.lease.frames import REPORT_INVALID, Grant, Lease, Refused, RefusedReport
from services.chassis.process.batcher import Level
from services.chassis.process.clock import Clock
from services.chassis.session.server import ServerSession
from services.chassis.telemetry.logs import logger
from services.coordinator.app.owned_execution import (
    CommandSource,
    Input,
    OwnedExecution,
    ReceivedMessage,
    ReceivedProgress,
    ReceivedReport,
)
from services.coordinator.app.ports import Definitions, Dispatch
from services.coordinator.app.runner_places import RunnerPlaces
from services.coordinator.app.timers import Timers
from services.coordinator.app.unchecked_reports import UncheckedReports
from services.coordinator.core.commands import AfterEndCommand, Command, LoseRunner, Release, Tick
from services.coordinator.core.effects import why_to_stop
from services.coordinator.core.results import names_stored_output, release_reason
from services.coordinator.core.run_ids import split_run_id
from services.coordinator.core.state import Execution, Run
from services.coordinator.core.values import ReleaseReason, RunState

log = logger(__name__)

_LOGGED_IDS_MAX: Final = 5
# The reason and the message of an execution that had begun and has no rows any more.
JOURNAL_GONE: Final = ("JOURNAL_GONE", "this execution had begun, and its rows are gone")


class OwnedExecutions:
    """`dirty` are those with something in the inbox, oldest first; `level` wakes the commit loop. `unloaded` are those
    whose definition or journal is needed first; `unloaded_level` wakes the journal loader. `unchecked` are reports of
    stored outputs, for the output checker."""

    def __init__(
        self,
        *,
        clock: Clock,
        definitions: Definitions,
        dispatch: Dispatch,
        forward: Callable[[ServerSession, ReceivedReport], None],
        mailbox_seconds: float,
    ) -> None:
        """`forward` takes a report whose execution is not owned here. `mailbox_seconds`: how long a report takes, at
        most, to come here from another coordinator."""
        self.by_id: dict[str, OwnedExecution] = {}
        self.dirty: OrderedDict[OwnedExecution, None] = OrderedDict()
        self.level = Level()
        self.unloaded: list[OwnedExecution] = []
        self.unloaded_level = Level()
        self.unchecked = UncheckedReports()
        self.timers = Timers(clock, self._timers_due)
        self.places = RunnerPlaces()
        self._clock = clock
        self._definitions = definitions
        self._dispatch = dispatch
        self._forward = forward
        self._mailbox_seconds = mailbox_seconds
        # Runs that are given up soon unless their runner names them, by lease and epoch.
        self._doubted: dict[tuple[str, int], asyncio.TimerHandle] = {}

    # ── from the dispatchers ─────────────────────────────────────────────────────────────────────────────────────

    def take_on(self, granted: Iterable[OwnedExecution]) -> None:
        now_ns = self._clock.epoch_ns()
        for owned in granted:
            owned.grant_time_ns = now_ns
            before = self.by_id.get(owned.execution_id)
            if before is not None:
                if before.epoch >= owned.epoch:
                    continue
                self.drop(before)
            self.by_id[owned.execution_id] = owned
            owned.version = self._definitions.cached(owned.start.origin.version_id)
            if owned.version is None or owned.is_resumed or owned.is_unprepared_fork:
                self._load(owned)
            else:
                self.begin(owned)

    def begin(self, owned: OwnedExecution) -> None:
        """A first start. The dispatcher's hint says that the journal is empty; if not, the append is refused."""
        assert owned.version is not None
        owned.is_loading = False
        owned.execution = Execution(owned.execution_id, owned.version.definition)
        self._open(owned, owned.start)

    def resume(self, owned: OwnedExecution, adopt: Command) -> None:
        """Its journal was folded."""
        owned.is_loading = False
        owned.has_begun = True
        owned.adopted_seq = 0 if owned.execution is None else owned.execution.seq
        self._open(owned, adopt)

    def _open(self, owned: OwnedExecution, command: Command) -> None:
        """The messages that came with the grant are taken once, though `reload` may open the execution again."""
        messages, owned.granted_messages = owned.granted_messages, ()
        owned.inbox = [Input(command), *self._messages(messages, owned), *owned.inbox]
        self._mark(owned)

    def reload(self, owned: OwnedExecution) -> None:
        """Its journal turned out not to be empty."""
        self.places.forget(owned)
        owned.execution = owned.snapshots = None
        self._load(owned)

    def _load(self, owned: OwnedExecution) -> None:
        owned.is_loading = True
        self.unloaded.append(owned)
        self.unloaded_level.set()

    def deliver(self, messages: Iterable[ReceivedMessage]) -> None:
        """A message that waits for long is delivered several times. It is taken once, so the inbox of an execution that
        is being loaded or cannot be written never holds more than its mailbox."""
        for message in messages:
            owned = self.by_id.get(message.execution_id)
            if owned is not None and message.message_id not in owned.unanswered:
                owned.unanswered.add(message.message_id)
                self._put_all(owned, self._messages((message,), owned))

    def _messages(self, messages: Iterable[ReceivedMessage], owned: OwnedExecution) -> list[Input]:
        inputs: list[Input] = []
        for message in messages:
            if message.command is None:
                # A newer dispatcher sent it. It stays in the mailbox for a coordinator that knows it.
                log.warning("unknown message", execution_id=owned.execution_id, message_id=message.message_id)
                continue
            if isinstance(message.command, AfterEndCommand):
                # An execution that has ended is not adopted: it goes on under this lease if it is reopened.
                message.command.epoch, message.command.holder = owned.epoch, owned.start.holder
            input_ = Input(message.command, CommandSource(message_id=message.message_id))
            if names_stored_output(message.command):
                self.unchecked.add(owned, input_)
            else:
                inputs.append(input_)
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
            ids = [owned.execution_id for owned in gone[:_LOGGED_IDS_MAX]]
            log.warning("execution leases revoked", executions=len(gone), first=ids)

    def drop_all(self) -> None:
        """The renewal was refused, so others may hold all executions by now."""
        for owned in list(self.by_id.values()):
            self.drop(owned)

    def return_lease(
        self, owned: OwnedExecution, reason: str, message: str = "", *, failed: bool = True, permanent: bool = False
    ) -> None:
        """Hands the execution back to the dispatchers. It is a dead letter after three failures or a permanent one."""
        self._dispatch.released(
            owned.execution_id, owned.epoch, reason, message, failed=failed, permanent=permanent, begun=owned.has_begun
        )
        self.drop(owned)

    def drop(self, owned: OwnedExecution) -> None:
        """Forgets the execution at once and tells nobody: it has ended or parked, or another holder writes its journal.
        Unanswered reports go to the mailbox, where that holder finds them."""
        owned.is_dropped = True
        if self.by_id.get(owned.execution_id) is owned:
            del self.by_id[owned.execution_id]
        self.dirty.pop(owned, None)
        self.places.forget(owned)
        owned.wake = 0
        inputs, owned.inbox = [*owned.inbox, *self.unchecked.drop(owned)], []
        self.send_away(each.source for each in inputs)
        self.timers.trim(self.by_id.values(), len(self.by_id))

    def send_away(self, sources: Iterable[CommandSource]) -> None:
        for source in sources:
            if source.session is not None and source.report is not None:
                self._forward(source.session, source.report)

    # ── from the runners ─────────────────────────────────────────────────────────────────────────────────────────

    def reported(self, session: ServerSession, reports: Sequence[ReceivedReport]) -> None:
        for report in reports:
            owned = self.by_id.get(report.execution_id)
            command = report.command
            if command is None:
                log.warning("a report has no outcome", lease_id=report.lease_id)
                session.refuse_reports([RefusedReport(report.report_id, REPORT_INVALID)])
                continue
            if owned is None or not session.data.serves(owned.start.origin.workspace):
                self._forward(session, report)
                continue
            input_ = Input(command, CommandSource(session, report))
            if names_stored_output(command):
                self.unchecked.add(owned, input_)
                continue
            owned.inbox.append(input_)
            self.dirty.setdefault(owned)
        self.level.set()

    def checked(self, owned: OwnedExecution, unchecked: Input, input_: Input) -> None:
        """A report of a stored output, and the same as it counts."""
        if self.unchecked.settle(owned, unchecked):
            self._put_all(owned, (input_,))

    def progressed(self, progress: Iterable[ReceivedProgress]) -> None:
        for execution_id, commands in progress:
            owned = self.by_id.get(execution_id)
            if owned is not None:
                self._put_all(owned, [Input(command) for command in commands])

    def handed_back(self, instance_id: str, refused: Iterable[Refused]) -> None:
        """Takes back grants that a runner refused, and runs that it says it does not hold."""
        for lease_id, epoch, reason, _ in refused:
            if reason == "NOT_HELD":
                owned = self.by_id.get(split_run_id(lease_id)[0])
                if owned is not None:
                    self._doubt(owned, lease_id, epoch, instance_id)
            else:
                self._release(lease_id, epoch, release_reason(reason), instance_id, may_have_begun=False)

    def in_doubt(self, grants: Iterable[Grant]) -> None:
        """The runner is alive but cannot be reached, and may be working. An idempotent run is given up unless the
        runner names it soon. Any other run waits until the runner reports it or the runner's instance has ended."""
        for lease_id, epoch, _ in grants:
            execution_id, number = split_run_id(lease_id)
            owned = self.by_id.get(execution_id)
            run = None if owned is None or owned.execution is None else owned.execution.live.get(number)
            if owned is not None and run is not None and run.is_idempotent:
                self._doubted[lease_id, epoch] = self._doubt(owned, lease_id, epoch)

    def taken(self, grants: Iterable[Grant]) -> None:
        """The runner has them, so none of them is given up, however long the runner was away."""
        if self._doubted:
            for lease_id, epoch, _ in grants:
                if timer := self._doubted.pop((lease_id, epoch), None):
                    timer.cancel()

    def unsent(self, grants: Iterable[Grant]) -> None:
        """The grants never left this process."""
        for grant in grants:
            self._release(grant.lease_id, grant.epoch, ReleaseReason.WITHDRAWN, may_have_begun=False)

    def _doubt(self, owned: OwnedExecution, lease_id: str, epoch: int, instance_id: str = "") -> asyncio.TimerHandle:
        """A runner that does not hold the run may have done it and reported it to another coordinator. That report
        comes here through the mailbox, so the run is given up only after the time that this takes."""
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
            self.put(owned, Release(number, epoch, reason, may_have_begun, instance_id=instance_id))

    def runner_lost(self, instance_id: str, *, is_idempotent_only: bool) -> None:
        runs = [(owned, run) for owned, run in self._live_runs() if run.instance_id == instance_id]
        has_begun_runs = any(run.state is RunState.RUNNING for _, run in runs)
        for owned in dict.fromkeys(owned for owned, _ in runs):
            self.put(owned, LoseRunner(instance_id, is_idempotent_only, has_begun_runs))

    def leases_of(self, instance_id: str) -> list[Lease]:
        """The live runs of the instance, except those that it is to stop."""
        return [
            Lease(f"{owned.execution_id}.{run.number}", run.epoch)
            for owned, run in self._live_runs()
            if run.instance_id == instance_id and not owned.is_stopping
        ]

    def ended_of(self, instance_id: str, held: Iterable[Lease]) -> list[Refused]:
        """Of the leases that an instance names, those that it must give up, as far as owned executions go."""
        ended: list[Refused] = []
        for lease in held:
            execution_id, number = split_run_id(lease.lease_id)
            owned = self.by_id.get(execution_id)
            if owned is None or owned.execution is None or not 0 < number <= len(owned.execution.runs):
                continue
            run = owned.execution.runs[number - 1]
            if run.epoch == lease.epoch and run.instance_id == instance_id:
                reason = why_to_stop(owned.execution, run)
                ended += [Refused(*lease, reason)] if reason else []
        return ended

    def instances(self) -> set[str]:
        """The instances that hold a live run of an owned execution."""
        return {run.instance_id for _, run in self._live_runs()}

    def _live_runs(self) -> Iterator[tuple[OwnedExecution, Run]]:
        """Looks at all executions, so it is asked when a runner comes or goes, never per run."""
        for owned in self.by_id.values():
            if owned.execution is not None:
                for run in owned.execution.live.values():
                    yield owned, run

    # ── inboxes ──────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, owned: OwnedExecution, command: Command) -> None:
        self._put_all(owned, (Input(command),))

    def look_again(self, owned: OwnedExecution) -> None:
        """It may give back its slot now, though nothing has arrived for it."""
        self._put_all(owned, ())

    def _put_all(self, owned: OwnedExecution, inputs: Iterable[Input]) -> None:
        owned.inbox += inputs
        self._mark(owned)

    def _mark(self, owned: OwnedExecution) -> None:
        self.dirty.setdefault(owned)
        self.level.set()

    def _timers_due(self, due: list[OwnedExecution]) -> None:
        for owned in due:
            self.put(owned, Tick(random.random()))
