"""The executions in the hands of this coordinator, and the doors through which everything reaches them.

Each door is a plain call that puts inputs into inboxes and wakes the turn loop; nothing is decided here. What is not
held goes elsewhere: a stray report to the mailbox of its execution, a message back to wait for its holder.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from services.chassis.lease.frames import NAME_MAX, Grant, Lease, Refused, Report
from services.chassis.process.batcher import Level
from services.chassis.process.clock import Clock
from services.chassis.telemetry.logs import logger
from services.coordinator.core.commands import Command, LoseRunner, Release, Tick
from services.coordinator.core.state import Execution, Run
from services.coordinator.core.values import ReleaseReason
from services.coordinator.handler.held import NOBODY, Answer, Held, Input, held_from, split_run_id
from services.coordinator.handler.ports import Arrivals, Definitions, RunnerSession, Strays
from services.coordinator.handler.reports import (
    cancel_command,
    progress_commands,
    release_reason,
    report_command,
    start_command,
)
from services.coordinator.handler.timers import Timers
from windlass.coordinator.v1 import sessions_pb2 as pb
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant, ExecutionMessage

log = logger(__name__)

# Of many in one log line.
_NAMED_MAX: Final = 5


class Carrier:
    """`dirty` are those with something in the inbox, oldest first; `level` wakes the turn loop."""

    def __init__(
        self,
        *,
        holder: str,
        clock: Clock,
        definitions: Definitions,
        arrivals: Arrivals,
        strays: Strays,
        mailbox_seconds: float,
    ) -> None:
        """`mailbox_seconds`: by when a report that reached another coordinator has come here."""
        self.held: dict[str, Held] = {}
        self.dirty: OrderedDict[Held, None] = OrderedDict()
        self.level = Level()
        self.timers = Timers(clock, self._timers_due)
        self.holder = holder
        self._clock = clock
        self._definitions = definitions
        self._arrivals = arrivals
        self._strays = strays
        self._mailbox_seconds = mailbox_seconds
        # What is about to be given up, unless its runner names it: by lease and epoch.
        self._doubted: dict[tuple[str, int], asyncio.TimerHandle] = {}

    # ── from the dispatchers ─────────────────────────────────────────────────────────────────────────────────────

    def take_on(self, grants: Iterable[ExecutionGrant]) -> None:
        now_ns = self._clock.epoch_ns()
        for grant in grants:
            held = held_from(grant, now_ns)
            before = self.held.get(held.execution_id)
            if before is not None:
                if before.epoch >= held.epoch:
                    continue
                self.drop(before)
            self.held[held.execution_id] = held
            held.version = self._definitions.cached(grant.start.version_id)
            if held.version is None or grant.resumed:
                self._load(held)
            else:
                self.begin(held)

    def begin(self, held: Held) -> None:
        """A first start: nothing is in the journal, or so says the hint; the append finds out."""
        assert held.version is not None
        held.is_loading = False
        held.execution = Execution(held.execution_id, held.version.definition)
        start = Input(start_command(held.grant, self.holder))
        held.inbox = [start, *self._granted(held), *held.inbox]
        self._mark(held)

    def resume(self, held: Held, adopt: Command) -> None:
        """Its journal was folded."""
        held.is_loading = False
        held.inbox = [Input(adopt), *self._granted(held), *held.inbox]
        self._mark(held)

    def reload(self, held: Held) -> None:
        """It turned out that its journal was begun before."""
        held.execution = None
        self._load(held)

    def _load(self, held: Held) -> None:
        held.is_loading = True
        self._arrivals.add(held)

    def deliver(self, messages: Iterable[ExecutionMessage]) -> None:
        """Several times each, when they wait for long: while an execution is being loaded, or cannot be written, its
        inbox holds no more than its mailbox."""
        for message in messages:
            held = self.held.get(message.execution_id)
            if held is not None and message.message_id not in held.unanswered:
                held.unanswered.add(message.message_id)
                self._put_all(held, self._messages((message,), held))

    def _granted(self, held: Held) -> list[Input]:
        """Messages that came with the grant; once, though it may be opened again (`reload`)."""
        inputs = self._messages(held.grant.messages, held)
        held.grant.ClearField("messages")
        return inputs

    def _messages(self, messages: Iterable[ExecutionMessage], held: Held) -> list[Input]:
        inputs: list[Input] = []
        for message in messages:
            command = self._message_command(message)
            if command is None:
                # From a newer dispatcher: it stays in the mailbox for a coordinator that knows it.
                log.warning("unknown message", execution_id=held.execution_id, message_id=message.message_id)
                continue
            inputs.append(Input(command, Answer(message_id=message.message_id)))
        return inputs

    def _message_command(self, message: ExecutionMessage) -> Command | None:
        body = message.WhichOneof("body")
        if body == "cancel":
            return cancel_command(message)
        if body == "run_report":
            report = pb.RunReport.FromString(message.run_report)
            return report_command(report, split_run_id(report.head.lease_id)[1])
        return None

    def revoked(self, leases: Iterable[Lease | Refused]) -> None:
        gone = [
            held
            for lease in leases
            if (held := self.held.get(lease.lease_id)) is not None and held.epoch <= lease.epoch
        ]
        for held in gone:
            self.drop(held)
        if gone:
            ids = [held.execution_id for held in gone[:_NAMED_MAX]]
            log.warning("execution leases revoked", executions=len(gone), first=ids)

    def drop_all(self) -> None:
        """The renewal was refused: others may hold them all by now."""
        for held in list(self.held.values()):
            self.drop(held)

    def drop(self, held: Held) -> None:
        """Out of memory at once, without a word to anybody: its journal is another's. Reports that it had not
        answered go where a holder will find them."""
        held.is_dropped = True
        if self.held.get(held.execution_id) is held:
            del self.held[held.execution_id]
        self.dirty.pop(held, None)
        held.wake = 0
        inputs, held.inbox = held.inbox, []
        self.send_away(each.answer for each in inputs)

    def forget(self, held: Held) -> None:
        """It is final or parked, and that is in the journal."""
        held.is_dropped = True
        held.wake = 0
        if self.held.get(held.execution_id) is held:
            del self.held[held.execution_id]
        self.timers.trim(self.held.values(), len(self.held))

    def send_away(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            if answer.session is not None and answer.report is not None:
                self._strays.add(answer.session, answer.report)

    # ── from the runners ─────────────────────────────────────────────────────────────────────────────────────────

    def reported(self, session: RunnerSession, reports: Sequence[Report]) -> None:
        for _, lease_id, _, body, _ in reports:
            assert isinstance(body, pb.RunReport)
            # It goes with the report wherever that goes: whoever decides it compares it with the run's.
            if not 0 < len(body.head.instance_id) <= NAME_MAX:
                body.head.instance_id = session.instance_id
            execution_id, number = split_run_id(lease_id)
            held = self.held.get(execution_id)
            command = None if held is None else report_command(body, number)
            if held is None or command is None or not session.data.serves(held.grant.start.workspace):
                self._strays.add(session, body)
                continue
            held.inbox.append(Input(command, Answer(session, body)))
            self.dirty.setdefault(held)
        self.level.set()

    def progressed(self, instance_id: str, notes: Iterable[pb.RunProgress]) -> None:
        for note in notes:
            execution_id, number = split_run_id(note.run_id)
            held = self.held.get(execution_id)
            if held is not None:
                commands = progress_commands(note, number, instance_id)
                self._put_all(held, [Input(command) for command in commands])

    def handed_back(self, instance_id: str, refused: Iterable[Refused]) -> None:
        """Grants that a runner did not take, and runs that it says it does not hold."""
        for lease_id, epoch, reason, _ in refused:
            if reason == "NOT_HELD":
                held = self.held.get(split_run_id(lease_id)[0])
                if held is not None:
                    self._doubt(held, lease_id, epoch, instance_id)
            else:
                self._release(lease_id, epoch, release_reason(reason), instance_id, may_have_begun=False)

    def in_doubt(self, grants: Iterable[Grant]) -> None:
        """Their runner lives, out of our reach, and may be at work. Work that must not be done twice waits until it is
        heard of, or its instance has ended; the rest goes elsewhere, if its runner does not come back with it first."""
        for lease_id, epoch, _ in grants:
            execution_id, number = split_run_id(lease_id)
            held = self.held.get(execution_id)
            run = None if held is None or held.execution is None else held.execution.live.get(number)
            if held is not None and run is not None and run.is_idempotent:
                self._doubted[lease_id, epoch] = self._doubt(held, lease_id, epoch)

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

    def _doubt(self, held: Held, lease_id: str, epoch: int, instance_id: str = "") -> asyncio.TimerHandle:
        """A runner that does not hold the run may have done it and told another coordinator: then its report is on its
        way here by the mailbox, and must not come too late. So the run is given up only after that way's time."""
        loop = asyncio.get_running_loop()
        return loop.call_later(self._mailbox_seconds, self._give_up, held, lease_id, epoch, instance_id)

    def _give_up(self, held: Held, lease_id: str, epoch: int, instance_id: str) -> None:
        self._doubted.pop((lease_id, epoch), None)
        if not held.is_dropped:
            self._release(lease_id, epoch, ReleaseReason.WITHDRAWN, instance_id, may_have_begun=True)

    def _release(
        self, lease_id: str, epoch: int, reason: ReleaseReason, instance_id: str = "", *, may_have_begun: bool
    ) -> None:
        execution_id, number = split_run_id(lease_id)
        held = self.held.get(execution_id)
        if held is not None:
            self.put(held, Release(number, epoch, reason, may_have_begun, instance_id))

    def runner_lost(self, instance_id: str, *, is_idempotent_only: bool) -> None:
        for held in self.with_runs_of(instance_id):
            self.put(held, LoseRunner(instance_id, is_idempotent_only))

    def with_runs_of(self, instance_id: str) -> list[Held]:
        """Looks at all: asked when a runner comes or goes, never per run."""
        return [held for held in self.held.values() if _runs_of(held, instance_id)]

    def leases_of(self, instance_id: str) -> list[Lease]:
        return [
            Lease(f"{held.execution_id}.{run.number}", run.epoch)
            for held in self.held.values()
            for run in _runs_of(held, instance_id)
        ]

    def instances(self) -> set[str]:
        """All that hold a live run of ours."""
        return {
            run.instance_id
            for held in self.held.values()
            if held.execution is not None
            for run in held.execution.live.values()
        }

    # ── inboxes ──────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, held: Held, command: Command) -> None:
        self._put_all(held, (Input(command, NOBODY),))

    def _put_all(self, held: Held, inputs: Iterable[Input]) -> None:
        held.inbox += inputs
        self._mark(held)

    def _mark(self, held: Held) -> None:
        self.dirty.setdefault(held)
        self.level.set()

    def _timers_due(self, due: list[Held]) -> None:
        for held in due:
            self.put(held, Tick(random.random()))


def _runs_of(held: Held, instance_id: str) -> list[Run]:
    execution = held.execution
    return [] if execution is None else [r for r in execution.live.values() if r.instance_id == instance_id]
