"""The composition root of api: the only file that names concrete classes. Read it from the top down."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

import uvloop

from services.api.app.approvals import Approvals
from services.api.app.authenticator import Authenticator
from services.api.app.bulk_jobs import BulkDesk
from services.api.app.bulk_worker import BulkWorker
from services.api.app.changes import Changes
from services.api.app.checking.children import Checkers
from services.api.app.commands import Commands
from services.api.app.dead_letters import DeadLetters
from services.api.app.executions import Executions
from services.api.app.explanations import Explanations
from services.api.app.identifiers import Identifiers
from services.api.app.key_material import KeyMint
from services.api.app.letter_outcomes import LetterOutcomes
from services.api.app.outside_work import OutsideWork
from services.api.app.redriving import Redriver
from services.api.app.startables import Startables
from services.api.app.starts import Starter
from services.api.app.watching import EventWatcher
from services.api.config import ApiSettings
from services.api.peers.circuits import CoordinatorCircuits
from services.api.peers.coordinators import CoordinatorReads
from services.api.peers.dead_letters import CoordinatorDeadLetters, DispatcherDeadLetters
from services.api.peers.dispatchers import DispatcherQueue
from services.api.peers.enqueue_streams import EnqueueStreams
from services.api.peers.limits import LimitsConfigurer
from services.api.peers.replays import CoordinatorReplays
from services.api.peers.replicas import Replicas
from services.api.peers.watch_streams import WatchStreams
from services.api.rpc.allowed_callers import RULES
from services.api.rpc.approvals import ApprovalServicer
from services.api.rpc.bulk_jobs import BulkServing, ExecutionCommands
from services.api.rpc.children import ChildServicer
from services.api.rpc.circuits import CircuitServicer
from services.api.rpc.dead_letters import DeadLetterServicer
from services.api.rpc.examining import DefinitionExaminer
from services.api.rpc.executions import ExecutionServicer
from services.api.rpc.exports import ExportServicer
from services.api.rpc.forking import Forking
from services.api.rpc.letter_inputs import LetterInputs
from services.api.rpc.runs import RunServicer
from services.api.rpc.starting import Starting
from services.api.rpc.workflows import CatalogServicer, WorkflowServicer
from services.api.rpc.workspaces import ApiKeyServicer, WorkspaceServicer
from services.api.store import audit, bulk_jobs
from services.api.store.audit import PostgresAudit
from services.api.store.bulk_jobs import PostgresBulkJobs
from services.api.store.keys import PostgresKeys
from services.api.store.workflows import PostgresWorkflows
from services.api.store.workspaces import PostgresWorkspaces
from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import ChannelPool
from services.chassis.grpc.guard import Guard
from services.chassis.grpc.server import GrpcServer
from services.chassis.postgres import migrations
from services.chassis.postgres.database import Database
from services.chassis.postgres.notifications import Notifications
from services.chassis.process.batcher import Level
from services.chassis.process.clock import SystemClock
from services.chassis.process.lifecycle import Loops, Steps
from services.chassis.process.retention import Retention
from services.chassis.process.service import run_service
from services.chassis.telemetry.tracing import Sampler
from windlass.api.v1 import (
    approvals_pb2_grpc,
    circuits_pb2_grpc,
    dead_letters_pb2_grpc,
    executions_pb2_grpc,
    exports_pb2_grpc,
    runs_pb2_grpc,
    workflows_pb2_grpc,
    workspaces_pb2_grpc,
)
from windlass.catalog.v1 import catalog_pb2_grpc, children_pb2_grpc
from windlass.coordinator.v1.sessions_pb2 import RunGrant

SERVICE: Final = "api"
# The purpose of completion tokens is the field in which coordinators send them to runners.
COMPLETION: Final = RunGrant.DESCRIPTOR.fields_by_name["completion_token"].full_name
MIGRATIONS: Final = Path(__file__).parent / "migrations"
# The share of the drain's time in which the calls that are under way may finish.
FINISHING_SHARE: Final = 0.8
# The share in which bulk jobs are handed on. What takes longer is taken over when its lease has ended.
HANDING_ON_SHARE: Final = 0.15


def main(settings: ApiSettings) -> int:
    # A fifth of the time of a start is spent in the event loop itself. Requests leave no cycles.
    return run_service(SERVICE, settings, ApiService, new_loop=uvloop.new_event_loop, collects_rarely=True)


class ApiService:
    """The parts of one api, joined. Nothing runs yet."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self.name = f"{SERVICE}-{settings.replica}"
        self._clock = SystemClock()
        self._sampler = Sampler(settings.traces_per_second)
        self._limits_changed, self._jobs_changed = Level(), Level()
        self._connect()
        self._join_peers()
        self._join_use_cases()
        self._serve()

    def _connect(self) -> None:
        settings = self._settings
        self._database = Database(settings.database_url, name=SERVICE, connections=settings.database_connections)
        self._keys = PostgresKeys(self._database)
        self._workspaces = PostgresWorkspaces(self._database)
        self._workflows = PostgresWorkflows(self._database)
        self._jobs = PostgresBulkJobs(self._database)

    def _join_peers(self) -> None:
        settings = self._settings
        # Each service has a channel pool of its own, so that neither affects the connections of the other.
        self._dispatchers, self._coordinators = (
            Replicas(
                name,
                AddressBook(source),
                ChannelPool(credential=settings.credential(SERVICE), tls=settings.tls),
                call_seconds=settings.read_seconds,
            )
            for name, source in (("the dispatcher", settings.dispatchers), ("the coordinator", settings.coordinators))
        )
        self._watches = WatchStreams()
        # A caller that waits for a start subscribes just before the start is sent.
        self._enqueuer = EnqueueStreams(before_send=self._watches.flush)
        self._queue = DispatcherQueue(self._dispatchers)
        self._reads = CoordinatorReads(self._coordinators)
        self._dispatchers.keep(self._enqueuer.serve)
        self._coordinators.keep(self._watches.serve)

    def _join_use_cases(self) -> None:
        self._authenticator = Authenticator(self._keys, self._clock)
        self._startables = Startables(self._workflows, self._clock)
        self._executions = Executions(self._reads, self._queue, self._watches, self._clock)
        self._watcher = EventWatcher(self._executions, self._reads, self._watches)
        self._commands = Commands(self._executions, self._queue, self._reads, self._watcher)
        runs, failed = CoordinatorDeadLetters(self._coordinators), DispatcherDeadLetters(self._dispatchers)
        self._dead_letters = DeadLetters(runs, failed, self._reads, self._commands, self._clock)
        self._letter_outcomes = LetterOutcomes(self._dead_letters, runs, failed, self._executions)
        self._bulk_worker = BulkWorker(
            self._jobs,
            self._executions,
            ExecutionCommands(self._executions, self._commands),
            self._jobs_changed,
            self._clock,
            per_second=self._settings.bulk_per_second,
            lease_scale=self._settings.lease_scale,
        )
        self._checkers = Checkers(self._settings.checkers)
        self._starter = Starter(
            startables=self._startables,
            enqueuer=self._enqueuer,
            queue=self._queue,
            checker=self._checkers,
            identifiers=Identifiers(self._clock),
            clock=self._clock,
            enqueue_seconds=self._settings.enqueue_seconds,
        )

    def _serve(self) -> None:
        settings, authenticator = self._settings, self._authenticator
        credential = settings.credential(SERVICE)
        server = self.server = GrpcServer(
            settings.grpc_address,
            guard=Guard(RULES, keys=authenticator, credential=credential, sampler=self._sampler),
            tls=settings.tls,
            public=settings.public,
        )
        starting = Starting(self._starter, self._executions, self._watches, self._sampler, self._clock)
        forking = Forking(self._starter, self._executions, self._workflows)
        explanations = Explanations(self._executions, self._reads, self._queue)
        bulk = BulkServing(BulkDesk(self._jobs, self._executions, Identifiers(self._clock), self._clock))
        executions = ExecutionServicer(
            starting,
            forking,
            self._executions,
            self._commands,
            explanations,
            self._watcher,
            self._reads,
            bulk,
            self._clock,
        )
        examiner = DefinitionExaminer(self._checkers)
        workflows = WorkflowServicer(self._workflows, self._startables, self._reads, examiner)
        workspaces = WorkspaceServicer(self._workspaces, self._startables, authenticator, self._limits_changed)
        keys = ApiKeyServicer(self._keys, self._workspaces, authenticator, _key_mint(settings), self._clock)
        outside = OutsideWork(self._reads, self._workspaces, self._commands, COMPLETION)
        runs = RunServicer(self._executions, self._reads, outside)
        approvals = ApprovalServicer(Approvals(self._reads, self._commands, self._checkers), self._reads)
        circuits = CircuitServicer(CoordinatorCircuits(self._coordinators), PostgresAudit(self._database), self._clock)
        workflows_pb2_grpc.add_WorkflowServiceServicer_to_server(workflows, server)
        executions_pb2_grpc.add_ExecutionServiceServicer_to_server(executions, server)
        runs_pb2_grpc.add_RunServiceServicer_to_server(runs, server)
        approvals_pb2_grpc.add_ApprovalServiceServicer_to_server(approvals, server)
        circuits_pb2_grpc.add_CircuitServiceServicer_to_server(circuits, server)
        letters = DeadLetterServicer(
            self._dead_letters,
            Redriver(self._dead_letters, self._clock),
            self._letter_outcomes,
            LetterInputs(self._reads, self._workflows),
        )
        dead_letters_pb2_grpc.add_DeadLetterServiceServicer_to_server(letters, server)
        exports = ExportServicer(
            self._executions,
            self._workflows,
            CoordinatorReplays(self._coordinators),
            examiner,
            Identifiers(self._clock),
        )
        exports_pb2_grpc.add_ExportServiceServicer_to_server(exports, server)
        workspaces_pb2_grpc.add_WorkspaceServiceServicer_to_server(workspaces, server)
        workspaces_pb2_grpc.add_ApiKeyServiceServicer_to_server(keys, server)
        children_pb2_grpc.add_ChildServiceServicer_to_server(ChildServicer(self._starter), server)
        catalog = CatalogServicer(self._workflows, authenticator)
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(catalog, server)

    async def prepare(self) -> None:
        await migrations.check(self._settings.database_url, SERVICE, MIGRATIONS)

    def loops(self) -> Loops:
        changes = Changes(self._authenticator, self._startables, self._limits_changed, self._jobs_changed)
        listener = Notifications(self._settings.database_url, [audit.CHANNEL], changes.heard, name="api-listen")
        limits = LimitsConfigurer(self._workspaces, self._dispatchers, self._limits_changed)
        return (
            ("dispatchers", self._dispatchers.run),
            ("coordinators", self._coordinators.run),
            ("late starts", self._enqueuer.sweep),
            ("long waits", self._watches.sweep),
            ("admissions", self._watcher.run),
            ("changes", listener.run),
            ("limits", limits.run),
            ("bulk jobs", self._bulk_worker.run),
            ("retention", Retention(self._forget_audit, self._forget_jobs, clock=self._clock).run),
            ("keys of open calls", self.server.check_keys),
            ("health", lambda: self.server.health.follow(self._database.probe)),
        )

    def drain_steps(self) -> Steps:
        return (
            ("bulk jobs", lambda: self._bulk_worker.drain(self._settings.drain_seconds * HANDING_ON_SHARE)),
            # Waiting callers are told to ask another api, or the server would wait for them.
            ("waiting callers", self._watches.drain),
            ("server", lambda: self.server.stop(self._settings.drain_seconds * FINISHING_SHARE)),
        )

    def close_steps(self) -> Steps:
        return (
            ("checkers", self._checkers.close),
            ("coordinators", self._coordinators.close),
            ("dispatchers", self._dispatchers.close),
            ("database", self._database.close),
        )

    async def _forget_audit(self) -> int:
        return await audit.forget(self._database, self._settings.audit_seconds)

    async def _forget_jobs(self) -> int:
        return await bulk_jobs.forget(self._database, self._settings.bulk_job_seconds)


def _key_mint(settings: ApiSettings) -> KeyMint:
    file = settings.key_secret_file or settings.service_secret_file
    # Without either file only clients call api, and only this process can answer a repeat.
    return KeyMint(secrets.token_bytes(32)) if file is None else KeyMint.from_file(file)
