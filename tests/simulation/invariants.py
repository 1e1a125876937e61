"""What must always hold, checked from outside: by reading the stores after each commit, the frames as they are sent,
and the ledger of what modules did.

The journal of each execution is folded here too, event by event as it is committed. So every check sees what is durable
at that moment, and nothing of what the processes believe. S and L numbers are the promises of the architecture. `cases`
counts what each check has looked at. endings.py has what must hold when everything is over.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from deploy.audit.journals import waits_for_resume
from deploy.audit.states import differences
from services.chassis.lease.timing import RUN
from services.coordinator.core import events as ev
from services.coordinator.core.circuits import CircuitState
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.definition import Definition
from services.coordinator.core.fold import apply
from services.coordinator.core.projection import EXECUTION_COLUMNS, RUN_COLUMNS, execution_row, run_row
from services.coordinator.core.reopening import unfinished_nodes
from services.coordinator.core.run_ids import split_run_id
from services.coordinator.core.state import SETTLED, Execution, Run, WorkState
from services.coordinator.core.values import SECOND, DeadLetterResolution, RunState
from services.coordinator.store.codec import UnknownEvent, unseal
from services.coordinator.store.snapshots import restored
from services.dispatcher.core.items import State
from tests.simulation.endings import Endings, Fold
from tests.simulation.ledger import Call
from tests.simulation.loop import Host
from tests.simulation.network import Connection
from tests.simulation.settings import CIRCUIT_PERMITS
from tests.support.memory_journal import JournalRow
from windlass.coordinator.v1 import sessions_pb2 as runs_pb
from windlass.definition.examination import examine
from windlass.dispatcher.v1 import queue_pb2
from windlass.dispatcher.v1 import sessions_pb2 as executions_pb

if TYPE_CHECKING:
    from tests.simulation.world import World

_EXECUTION_HOP: Final = "/windlass.dispatcher.v1.CoordinatorSessions/Session"
_RUN_HOP: Final = "/windlass.coordinator.v1.RunnerSessions/Session"
_ENQUEUE: Final = "/windlass.dispatcher.v1.EnqueueService/Enqueue"
# What may still happen to an execution that has ended: it is reopened, or somebody is refused.
_AFTER_END: Final = (
    ev.ExecutionAdopted,
    ev.LateReportRejected,
    ev.CommandRefused,
    ev.ExecutionReopened,
    ev.DeadLetterResolved,
)


class Invariants:
    def __init__(self, world: World) -> None:
        self._world = world
        self.cases: Counter[str] = Counter()
        self._folds: dict[str, Fold] = {}
        self._definitions: dict[str, Definition] = {}
        # The highest epoch of each execution's fence, and the holder of each epoch.
        self._fences: dict[str, int] = {}
        self._granted: dict[int, tuple[str, str]] = {}
        self._epochs: dict[str, int] = {}
        # The reports that a holder has sent, by its life and their ids.
        self._reports: dict[tuple[Host, str, str], Any] = {}
        # The changes of the journal's tables that were looked at.
        self._changes = 0
        self._called: set[str] = set()
        self._keys: dict[str, tuple[str, str]] = {}

    def is_final(self, execution_id: str) -> bool:
        fold = self._folds.get(execution_id)
        return fold is not None and fold.execution.is_final

    def final_state(self, execution_id: str) -> str:
        """Empty: it goes on."""
        fold = self._folds.get(execution_id)
        return str(fold.execution.state) if fold is not None and fold.execution.is_final else ""

    def has_all_done(self, execution_id: str) -> bool:
        """It was stopped when nothing was left to do, so a retry is refused."""
        fold = self._folds.get(execution_id)
        return fold is not None and not unfinished_nodes(fold.execution)

    def seq_of(self, execution_id: str) -> int:
        """The newest event that is committed. 0: there is none."""
        fold = self._folds.get(execution_id)
        return 0 if fold is None else fold.execution.seq

    def first_node(self, execution_id: str) -> str:
        """The node of its first run."""
        return str(self._folds[execution_id].execution.runs[0].work.key.node)

    def deferred_runs(self, execution_id: str) -> list[int]:
        """The runs whose modules have left their work to somebody else."""
        fold = self._folds.get(execution_id)
        return [] if fold is None else list(fold.deferred)

    def live_run(self, execution_id: str, node: str) -> int:
        """The run of the node that is under way. 0: none is."""
        fold = self._folds.get(execution_id)
        live = [] if fold is None else fold.execution.live.values()
        return next((run.number for run in live if run.work.key.node == node), 0)

    def open_letters(self, execution_id: str) -> list[int]:
        """The dead letters about which nobody has decided. Those of compensations are not among them."""
        fold = self._folds.get(execution_id)
        letters = {} if fold is None else fold.execution.dead_letters
        pending = [each.run for each in letters.values() if each.resolution is DeadLetterResolution.PENDING]
        return [run.number for run in pending if not run.work.node.undoes]

    def check_end(self) -> None:
        """Everything is over."""
        Endings(self._world, self._folds, self._check).check()

    def _check(self, holds: bool, promise: str, what: str) -> None:
        self.cases[promise] += 1
        if not holds:
            self._world.found(f"{promise}: {what}")

    # ── after each commit ────────────────────────────────────────────────────────────────────────────────────────

    def check_commit(self) -> None:
        self._check_queue()
        self._check_circuits()
        tables = self._world.journal
        if tables.changes == self._changes:
            return
        self._changes = tables.changes
        for execution_id, rows in tables.journal.items():
            fold = self._folds.get(execution_id)
            for row in rows[len(fold.rows) if fold else 0 :]:
                self._check_row(execution_id, row)
        self._check_snapshots()
        for execution_id, values in tables.executions.items():
            self._fences[execution_id] = max(self._fences.get(execution_id, 0), values["epoch"])

    def _check_snapshots(self) -> None:
        """Records come with an append, so they are compared with the fold up to it."""
        for execution_id, records in self._world.journal.snapshots.items():
            fold = self._folds[execution_id]
            new, fold.records = records[fold.records :], len(records)
            if new and new[-1].is_whole:
                again = restored(execution_id, fold.execution.definition, records)
                apart = differences(fold.execution, again)
                self._check(not apart, "S6", f"the snapshot of {execution_id} differs in {apart}")

    def _check_queue(self) -> None:
        going: Counter[str] = Counter()
        for row in self._world.queue.queue.values():
            going[row.workspace] += row.is_going
            id_, before = row.execution_id, self._epochs.get(row.execution_id, 0)
            # A start that is sent again after the end makes a new row, which was never granted.
            if row.epoch and row.epoch != before:
                self._check(row.epoch > before, "S3", f"{id_} has epoch {row.epoch} after {before}")
                self._epochs[id_] = row.epoch
            if row.is_held:
                holder = (id_, row.holder or "")
                first = self._granted.setdefault(row.epoch, holder)
                self._check(first == holder, "S11", f"epoch {row.epoch} was granted to {first}, and to {holder}")
            if row.state is State.FAILED:
                self._world.found(f"{id_} is a dead letter: {row.failure_reason} {row.failure_message}")
        for workspace, count in going.items():
            slots = self._world.limits[workspace].executions_max
            self._check(count <= slots, "S13", f"{count} executions of {workspace} go at once, with {slots} slots")

    def _check_circuits(self) -> None:
        now = self._world.clock.epoch_ns() // 1_000
        for circuit in self._world.circuits.values():
            if circuit.state is not CircuitState.CLOSED:
                permits = sum(permit.until > now for permit in circuit.permits)
                self._check(permits <= CIRCUIT_PERMITS, "S20", f"{circuit.target} has {permits} permits")

    def _check_row(self, execution_id: str, row: JournalRow) -> None:
        stored = unseal(row.events)
        first = stored[0].event
        if execution_id not in self._folds:
            assert isinstance(first, ev.ExecutionStarted)
            self._folds[execution_id] = Fold(Execution(execution_id, self._definition(first.origin.version_id)))
        fold = self._folds[execution_id]
        fold.rows.append(row)
        fence = self._fences.get(execution_id, 0)
        self._check(row.epoch >= fence, "S2", f"{execution_id} got an append of epoch {row.epoch} behind {fence}")
        touched: set[int] = set()
        for seq, each in enumerate(stored, fold.execution.seq + 1):
            self._check((each.seq, each.execution_id) == (seq, execution_id), "S1", f"{each} is not event {seq}")
            assert not isinstance(each.event, UnknownEvent)
            self._check_event(fold, each.event)
            failures = self._failures(fold, each.event)
            apply(fold.execution, each.event)
            if isinstance(each.event, ev.RunLost | ev.RunReleased):
                is_free = self._failures(fold, each.event) == failures
                self._check(is_free, "S25", f"{type(each.event).__name__} of {each.event.key} counts as a failure")
            touched.add(getattr(each.event, "run", 0))
        self._check(row.last_seq == fold.execution.seq, "S1", f"{execution_id} ends at {row.last_seq}")
        self._check_projections(fold.execution, touched - {0})

    def _definition(self, version_id: str) -> Definition:
        if version_id not in self._definitions:
            document = self._world.workloads[version_id].definition
            self._definitions[version_id] = compile_definition(document, examine(document).references)
        return self._definitions[version_id]

    def _check_projections(self, execution: Execution, numbers: set[int]) -> None:
        tables, id_ = self._world.journal, execution.execution_id
        expected = dict(zip(EXECUTION_COLUMNS, execution_row(execution), strict=True))
        row = tables.executions[id_]
        differ = [name for name, value in expected.items() if row[name] != value]
        self._check(not differ, "S6", f"the row of {id_} differs from its journal in {differ}")
        for number in numbers:
            run = dict(zip(RUN_COLUMNS, run_row(execution, execution.runs[number - 1]), strict=True))
            differ = [name for name, value in run.items() if tables.runs[id_, number][name] != value]
            self._check(not differ, "S6", f"the row of run {id_}.{number} differs from its journal in {differ}")

    # ── each event ───────────────────────────────────────────────────────────────────────────────────────────────

    def _check_event(self, fold: Fold, event: ev.Event) -> None:
        execution = fold.execution
        self.cases[type(event).__name__] += 1
        is_after_end = execution.is_final and not isinstance(event, _AFTER_END)
        self._check(not is_after_end, "S7", f"{type(event).__name__} of {execution.execution_id} after its end")
        # A command may resolve several dead letters.
        if (message_id := getattr(event, "message_id", "")) and not isinstance(event, ev.DeadLetterResolved):
            effect = (type(event).__name__, message_id)
            self._check(effect not in fold.messages, "S5", f"{message_id} took effect twice")
            fold.messages.add(effect)
        if execution.paused_by is not None and waits_for_resume(event):
            self._world.found(f"S18: {type(event).__name__} of {execution.execution_id} while it was paused")
        match event:
            case ev.ExecutionPaused():
                self.cases["S18"] += 1
            case ev.DeadLetterResolved():
                is_first = event.run not in fold.resolved
                self._check(is_first, "S16", f"{execution.execution_id}.{event.run} was resolved twice")
                fold.resolved.add(event.run)
            case ev.ChildRequested():
                fold.children[event.child_execution_id] = event.is_cancelled_with_parent
            case ev.ChildCancelOrdered():
                id_ = event.child_execution_id
                self._check(fold.children[id_], "S7", f"the child {id_} was cancelled, and was to be left alone")
                fold.cancelled_children.add(id_)
            case ev.WorkHeldBack():
                fold.held_back.add(event.key)
            case ev.WorkLetThrough():
                self._check(event.key in fold.held_back, "S20", f"{event.key} was let through unasked")
                fold.held_back.discard(event.key)
            case ev.RunLeased():
                self._check_lease(fold, event)
            case ev.RunSucceeded():
                work = execution.work_of(event.key)
                self._check(work.state not in SETTLED, "S8", f"{event.key} succeeded in state {work.state}")
            case ev.WorkTakenOver():
                self._check_taken_over(execution, event)
            case ev.RunDeferred():
                fold.deferred.append(event.run)
            case ev.RunLost():
                self._check_loss(fold, event)
            case ev.WaitEnded(outcome=ev.WaitOutcome.EXPIRED):
                self._check_time(execution.waits[event.key].due, f"the wait of {event.key} ended")
            case ev.BackoffEnded():
                run = execution.work_of(event.key).run
                self._check_time(0 if run is None else run.retry_time, f"the backoff of {event.key} ended")
            case _:
                pass

    @staticmethod
    def _failures(fold: Fold, event: ev.Event) -> int:
        return fold.execution.work_of(event.key).failures if isinstance(event, ev.RunLost | ev.RunReleased) else 0

    def _check_time(self, due: int, what: str) -> None:
        now = self._world.clock.epoch_ns() // 1_000
        self._check(now >= due, "S19", f"{what} {due - now} µs early")

    def _check_lease(self, fold: Fold, event: ev.RunLeased) -> None:
        execution, key = fold.execution, event.key
        is_open = execution.work_of(key).state not in SETTLED
        self._check(is_open, "S8", f"{key} of {execution.execution_id} was leased though it has its outcome")
        self._check(key not in fold.held_back, "S20", f"{key} was leased though its circuit has not let it through")
        if event.attempt:
            attempt = (key, event.attempt)
            self._check(attempt not in fold.attempts, "S9", f"attempt {event.attempt} of {key} was granted twice")
            fold.attempts.add(attempt)
        live = [run.number for run in execution.live.values() if run.work.key == key]
        self._check(not live, "S11", f"{key} was leased while run {live} was live")
        row = self._world.queue.queue.get(execution.execution_id)
        is_slotless = row is not None and row.epoch == execution.epoch and row.is_held and row.ends_only
        self._check(not is_slotless or execution.is_ending, "S13", f"{key} was leased, and its execution has no slot")
        edges = self._edges_to(execution, key.node)
        states = [execution.target_of(source).state for source in edges]
        self._check(all(state in SETTLED for state in states), "S10", f"{key} began before {edges} were over: {states}")
        has_taken = not edges or any(state in (WorkState.SUCCEEDED, WorkState.FAILED) for state in states)
        self._check(has_taken, "S10", f"{key} began although nothing led to it")

    def _check_taken_over(self, execution: Execution, event: ev.WorkTakenOver) -> None:
        """Its origin has done this well."""
        id_, origin = execution.execution_id, execution.origin
        there = self._folds[origin.origin_execution_id].execution
        run = there.runs[event.origin_run - 1]
        same = (run.work.key.node, run.output, run.branch) == (event.key.node, event.output, event.branch)
        self._check(run.state is RunState.SUCCESS and same, "S8", f"{id_} took over {event.key}, which {run} is not")
        is_early = run.epoch <= origin.origin_seq
        self._check(is_early, "S8", f"{id_} took over {event.key}, which began after event {origin.origin_seq}")

    def _edges_to(self, execution: Execution, node: str) -> list[str]:
        edges = self._world.workloads[execution.origin.version_id].definition["edges"]
        return [edge["from"] for edge in edges if edge["to"] == node]

    def _check_loss(self, fold: Fold, event: ev.RunLost) -> None:
        run = fold.execution.runs[event.run - 1]
        fold.dead[event.key] += 1
        row = self._world.runner_sessions.get(run.instance_id)
        if run.is_idempotent or row is None:
            return
        unheard = row.unheard_seconds(self._world.clock.now())
        needed = RUN.granted_again * self._world.scale
        is_gone = not row.is_live and unheard >= needed - 1e-6
        self._check(is_gone, "S26", f"{event.key} was taken from {row.holder}, unheard for {unheard:.3f} s")

    # ── each frame ───────────────────────────────────────────────────────────────────────────────────────────────

    def frame_sent(self, connection: Connection, is_to_server: bool, data: bytes) -> None:
        match connection.method, is_to_server:
            case ("/windlass.dispatcher.v1.CoordinatorSessions/Session", True):
                self._remember(connection, executions_pb.SessionRequest.FromString(data))
            case ("/windlass.coordinator.v1.RunnerSessions/Session", True):
                self._remember(connection, runs_pb.SessionRequest.FromString(data))
            case ("/windlass.dispatcher.v1.CoordinatorSessions/Session", False):
                self._check_executions_frame(connection, executions_pb.SessionResponse.FromString(data))
            case ("/windlass.coordinator.v1.RunnerSessions/Session", False):
                self._check_runs_frame(connection, runs_pb.SessionResponse.FromString(data))
            case ("/windlass.dispatcher.v1.EnqueueService/Enqueue", False):
                self._check_answers(queue_pb2.EnqueueResponse.FromString(data))
            case _:
                pass

    def _remember(self, connection: Connection, frame: Any) -> None:
        for report in frame.reports:
            self._reports[connection.client, connection.method, report.head.report_id] = report

    def _check_answers(self, response: Any) -> None:
        for answer in response.answers:
            if answer.outcome == queue_pb2.EnqueueAnswer.QUEUED:
                id_ = answer.execution_id
                is_kept = id_ in self._world.queue.queue or id_ in self._folds
                self._check(is_kept, "S4", f"{id_} was accepted and is nowhere")

    def _check_executions_frame(self, connection: Connection, frame: Any) -> None:
        rows = self._world.queue.queue
        for grant in frame.grants:
            row = rows.get(grant.lease.lease_id)
            epoch = row.epoch if row is not None else self._epochs.get(grant.lease.lease_id, 0)
            self._check(epoch >= grant.lease.epoch, "S4", f"{grant.lease.lease_id} was granted before the commit")
        for report_id in frame.control.taken_reports:
            report = self._reports[connection.client, _EXECUTION_HOP, report_id]
            row, kind = rows.get(report.head.lease_id), report.WhichOneof("report")
            if row is None or row.epoch != report.head.epoch:
                continue
            holds = row.begun if kind == "begun" else not row.is_held
            self._check(holds, "S4", f"{kind} of {row.execution_id} was acknowledged before the commit")

    def _check_runs_frame(self, connection: Connection, frame: Any) -> None:
        for grant in frame.grants:
            run = self._run_of(grant.lease.lease_id)
            is_durable = run is not None and run.epoch == grant.lease.epoch
            self._check(is_durable, "S4", f"{grant.lease.lease_id} was granted before the commit")
        for report_id in frame.control.taken_reports:
            head = self._reports[connection.client, _RUN_HOP, report_id].head
            run, fold = self._run_of(head.lease_id), self._folds[split_run_id(head.lease_id)[0]]
            is_open = run is not None and run.epoch == head.epoch and run.number in fold.execution.live
            message_id = f"report:{head.lease_id}:{head.epoch}:{head.instance_id}"
            is_kept = not is_open or message_id in self._world.queue.mailbox
            self._check(is_kept, "S4", f"the report on {head.lease_id} was acknowledged before the commit")

    def _run_of(self, run_id: str) -> Any:
        execution_id, number = split_run_id(run_id)
        fold = self._folds.get(execution_id)
        return fold.execution.runs[number - 1] if fold is not None and number <= len(fold.execution.runs) else None

    # ── each call of a module ────────────────────────────────────────────────────────────────────────────────────

    def call_began(self, call: Call) -> None:
        self._check(call.run_id not in self._called, "S9", f"run {call.run_id} was called twice")
        self._called.add(call.run_id)
        work = (call.execution_id, call.node)
        first = self._keys.setdefault(call.effect_key, work)
        self._check(first == work, "S15", f"{first} and {work} have the same effect key")
        is_own = call.saw in (None, call.execution_id) or call.saw in self._origins_of(call.execution_id)
        self._check(is_own, "S12", f"{call.run_id} saw what belongs to {call.saw}")
        run, fold = self._run_of(call.run_id), self._folds[call.execution_id]
        if call.host.was_disturbed:
            # It was stopped in the middle of a step, and could not notice that its lease was gone.
            return
        is_open = run.number in fold.execution.live or self._is_set_aside_unheard(fold.execution, run)
        self._check(is_open or run.is_idempotent, "S11", f"{call.run_id} began although it was taken back")

    def _is_set_aside_unheard(self, execution: Execution, run: Run) -> bool:
        """A person has set the run aside, and its runner may not know it yet. Until then nobody else may have the work,
        and a runner that hears nothing begins nothing any more after a while."""
        if run.error is None or run.error.type != "QUARANTINED":
            return False
        unheard = self._world.clock.epoch_ns() // 1_000 - run.end_time
        is_alone = all(each.work.key[:2] != run.work.key[:2] for each in execution.live.values())
        return is_alone and unheard <= RUN.self_fence * self._world.scale * SECOND

    def _origins_of(self, execution_id: str) -> set[str]:
        """A fork sees what it has taken over, and its origin may be a fork too."""
        origin = self._folds[execution_id].execution.origin.origin_execution_id
        return {origin} | self._origins_of(origin) if origin else set()


__all__ = ["SECOND", "Fold", "Invariants"]
