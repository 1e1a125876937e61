"""The composition root of the coordinator: the only file that names concrete classes. Read it from the top down.

The other services may start before it or after it. Without a dispatcher there is nothing to do; while the database or
api is away, granted executions wait; while no runner is attached, ready work waits.
"""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import Final

import uvloop

from services.chassis.blobs import DirectoryBlobs
from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import ChannelPool
from services.chassis.grpc.guard import Guard
from services.chassis.grpc.server import GrpcServer
from services.chassis.identity.system_key import SystemKey
from services.chassis.lease.frames import Attach
from services.chassis.lease.timing import EXECUTION, RUN
from services.chassis.postgres import migrations
from services.chassis.postgres.connection import BY_INDEX, PgConnection
from services.chassis.postgres.database import Database
from services.chassis.process.clock import Clock, SystemClock
from services.chassis.process.fresh_ids import fresh_uuid
from services.chassis.process.lifecycle import Loops, Steps
from services.chassis.process.retention import Retention
from services.chassis.process.service import VERSION, run_service
from services.chassis.session.holder import SessionHolder
from services.chassis.session.postgres import PostgresSessionStore
from services.chassis.session.registry import SessionRegistry
from services.coordinator.app.after_commit import AfterCommit
from services.coordinator.app.assigning import Assigner
from services.coordinator.app.begun_reports import report_begun
from services.coordinator.app.circuits import Circuits
from services.coordinator.app.commit_loop import CommitLoop
from services.coordinator.app.dead_runners import DeadRunners
from services.coordinator.app.explainer import Explainer
from services.coordinator.app.fork_origins import ForkOrigins
from services.coordinator.app.importing import ImportedDefinitions
from services.coordinator.app.journal_loader import JournalLoader
from services.coordinator.app.journal_walks import JournalWalks
from services.coordinator.app.key_checks import check_keys
from services.coordinator.app.loop_store import LoopStore
from services.coordinator.app.misrouted_reports import ReportForwarder
from services.coordinator.app.obligations import REST_SECONDS, ObligationKeeper
from services.coordinator.app.output_checker import OutputChecker
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.app.parked_waits import ParkedWaits, ParkedWaking
from services.coordinator.app.partitions import keep_partitions
from services.coordinator.app.replays import Replays
from services.coordinator.app.run_inputs import RunInputs
from services.coordinator.config import CoordinatorSettings
from services.coordinator.core.circuits import CircuitPolicy
from services.coordinator.core.values import SECOND
from services.coordinator.peers import dispatch as dispatch_hop
from services.coordinator.peers.any_dispatcher import AnyDispatcher
from services.coordinator.peers.catalog import KEY_SECONDS, ApiReplicas, CatalogDefinitions, CatalogKeys
from services.coordinator.peers.children import ApiChildren
from services.coordinator.peers.dispatch import SessionDispatch
from services.coordinator.rpc import runners as runner_hop
from services.coordinator.rpc.allowed_callers import RULES
from services.coordinator.rpc.circuits import CircuitStateServicer
from services.coordinator.rpc.dead_letters import DeadLetterReadServicer
from services.coordinator.rpc.import_parts import ImportDesk
from services.coordinator.rpc.reads import ReadServicer
from services.coordinator.rpc.replays import ReplayServicer
from services.coordinator.rpc.run_messages import forwarded_command, run_grant
from services.coordinator.rpc.run_outputs import RunOutputsServicer
from services.coordinator.rpc.runners import RunnerSessionsService, SessionRunners
from services.coordinator.rpc.watch import WatchHub
from services.coordinator.rpc.watch_streams import WatchServicer
from services.coordinator.store import codec
from services.coordinator.store.circuits import PostgresCircuits
from services.coordinator.store.imports import PostgresImports
from services.coordinator.store.journal import LOADING, PostgresJournal, take_up
from services.coordinator.store.partitions import drop_old, forget_dead_letters, kept_since, make_ahead
from services.coordinator.store.reads import PostgresReads
from services.coordinator.store.snapshots import JournalSnapshotLog, restored
from services.rendering.children import RenderingChildren
from windlass.coordinator.v1 import (
    circuits_pb2_grpc,
    dead_letters_pb2_grpc,
    reads_pb2_grpc,
    replays_pb2_grpc,
    sessions_pb2_grpc,
)
from windlass.dispatcher.v1.sessions_pb2_grpc import CoordinatorSessionsStub

SERVICE: Final = "coordinator"
MIGRATIONS: Final = Path(__file__).parent / "migrations"
# Longer than a dispatcher needs to bring a message to its holder: it repeats what is unread for a second within half.
MAILBOX_SECONDS: Final = 2.0
# Longer than calls last, except starts of children. One that is under way then fails, and is tried again.
FORGET_SECONDS: Final = 6.0
# One load reads many journals, and others wait for it. At most three loads of this length find the journal that is too
# large for it, so everything else goes on well within 15 s. The large one is then read alone, with more time.
LOAD_SECONDS: Final = 2.0
HARD_LOAD_SECONDS: Final = 30.0
# A target that has not failed for so long counts as any other that answers, and costs no statement any more.
CIRCUIT_IDLE_SECONDS: Final = 600.0


def main(settings: CoordinatorSettings) -> int:
    # uvloop takes a third less time per awaited socket, and every batch awaits several. Thousands of executions live
    # for seconds and hold no cycles: a collection at every 700th object costs a tenth.
    return run_service(SERVICE, settings, CoordinatorService, new_loop=uvloop.new_event_loop, collects_rarely=True)


class CoordinatorService:
    """The parts of one coordinator, joined. Nothing runs yet."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self.name = f"{SERVICE}-{settings.replica}"
        self._run_timing = RUN.scaled(settings.lease_scale)
        self._circuit_policy = _circuit_policy(settings)
        self._connect()
        self._join_apis()
        self._join_dispatchers()
        self._join_executions()
        self._join_runners()
        self._join_commits()
        self._serve()

    def _connect(self) -> None:
        """Time, the database, the disk and other processes. A simulation has its own, here and in `_new_server`."""
        settings, name = self._settings, self.name
        self._clock: Clock = SystemClock()
        self._fresh_id = fresh_uuid
        # One connection for appends, two for loads, one for beats, one for imports, and a few for everything that is
        # read.
        self._writer = PgConnection(settings.database_url, name=f"{name}-journal", settings=BY_INDEX)
        self._loader, self._patient_loader = (
            PgConnection(settings.database_url, name=f"{name}-{role}", statement_seconds=seconds, settings=LOADING)
            for role, seconds in (("loader", LOAD_SECONDS), ("patient-loader", HARD_LOAD_SECONDS))
        )
        self._beats = PgConnection(settings.database_url, name=f"{name}-sessions")
        self._runner_sessions = PostgresSessionStore(self._beats, "coordinator.runner_sessions", self._run_timing)
        self._database = Database(settings.database_url, name=name)
        self._journal = PostgresJournal(self._writer, self._loader, self._patient_loader)
        self._reads = PostgresReads(self._database)
        self._importer = PgConnection(settings.database_url, name=f"{name}-imports")
        self._imports = PostgresImports(self._database, self._importer)
        self._circuit_rows = PostgresCircuits(self._database, self._circuit_policy)
        self._blobs = DirectoryBlobs(settings.output_store)
        self._channels = ChannelPool(credential=settings.credential(SERVICE), tls=settings.tls)

    def _join_apis(self) -> None:
        self._replicas = ApiReplicas(AddressBook(self._settings.apis), self._channels, self._forget)
        self._keys = CatalogKeys(self._replicas, self._clock)

    async def _forget(self, address: str) -> None:
        """Close the channel to a process that is gone, once a call that has just begun has ended."""
        await self._channels.forget(address, FORGET_SECONDS)

    def _join_dispatchers(self) -> None:
        self._dispatch = SessionDispatch(self.name, forwarded_command)
        self._holder = self._dispatch.holder = SessionHolder(
            attach=Attach(self.name, capacity=self._settings.executions_max, version=VERSION),
            timing=EXECUTION.scaled(self._settings.lease_scale),
            codec=dispatch_hop.codec(self._clock),
            open_stream=lambda address: CoordinatorSessionsStub(self._channels.get(address)).Session(),
            owner=self._dispatch,
            forget=self._forget,
            clock=self._clock,
            fresh_id=self._fresh_id,
        )

    def _join_executions(self) -> None:
        """The executions that are owned here, and the parts that bring them what they need."""
        definitions = self._definitions = CatalogDefinitions(self._replicas)
        any_dispatcher = AnyDispatcher(AddressBook(self._settings.dispatchers), self._channels, self._clock)
        self._any_dispatcher = any_dispatcher
        self._misrouted_reports = ReportForwarder(
            self._reads.standings, self._reads.run_standings, any_dispatcher.deliver
        )
        self._executions = self._dispatch.executions = OwnedExecutions(
            clock=self._clock,
            definitions=definitions,
            dispatch=self._dispatch,
            forward=self._misrouted_reports.add,
            mailbox_seconds=MAILBOX_SECONDS * self._settings.lease_scale,
        )
        self._output_checker = OutputChecker(self._executions, self._blobs.sizes)
        self._loop_store = LoopStore(self._executions, self._blobs)
        self._journal_loader = JournalLoader(
            executions=self._executions,
            journal=self._journal,
            definitions=definitions,
            fold=functools.partial(take_up, events_each=self._settings.snapshot_events),
            read_lists=self._loop_store.read_lists,
            # People who look back do not wait for forks.
            fork_origins=ForkOrigins(self._reads, JournalWalks(self._reads, definitions, restored), self._blobs),
            granted_again=self._run_timing.granted_again,
            holder=self.name,
        )

    def _join_runners(self) -> None:
        dead_runners = DeadRunners(self._executions, self._run_timing.granted_again)
        self._runners = SessionRunners(
            self._executions, dead_runners, self._reads.run_standings, self._settings.runner_reserve
        )
        self._registry = self._runners.registry = SessionRegistry(
            store=self._runner_sessions,
            timing=self._run_timing,
            server=self.name,
            codec=runner_hop.CODEC,
            owner=self._runners,
            clock=self._clock,
            fresh_id=self._fresh_id,
        )

    def _join_commits(self) -> None:
        parked_waits = ParkedWaits()
        self._circuits = Circuits(
            store=self._circuit_rows,
            executions=self._executions,
            may_start=self._dispatch.may_start,
            clock=self._clock,
            policy=self._circuit_policy,
            name=self.name,
            parked=parked_waits,
        )
        self._run_outputs = RunOutputsServicer(self._reads, self._blobs)
        # People who look back also look at executions that were imported, which are never owned.
        self._all_definitions = ImportedDefinitions(self._imports, self._definitions)
        walks = JournalWalks(self._reads, self._all_definitions, restored)
        explainer = Explainer(
            walks,
            self._journal,
            self._runners.why_none_takes,
            self._circuits.probe_time,
            self._run_timing.granted_again,
            self._clock,
        )
        self._rendering = RenderingChildren()
        self._reader = ReadServicer(
            self._reads,
            self._runners.modules_for,
            self._run_outputs.read,
            walks=walks,
            explainer=explainer,
            run_inputs=RunInputs(walks, self._loop_store.read_lists, self._blobs, self._rendering),
        )
        self._hub = self._dispatch.watchers = WatchHub(self._reads, self._reader, owned=self._executions.by_id.keys)
        self._obligations = ObligationKeeper(
            executions=self._executions,
            children=ApiChildren(self._replicas),
            relatives=self._any_dispatcher,
            dispatch=self._dispatch,
            clock=self._clock,
            rest_seconds=REST_SECONDS * self._settings.lease_scale,
        )
        self._parked_waking = ParkedWaking(
            waits=parked_waits, is_open=self._circuits.is_open, queue=self._any_dispatcher, clock=self._clock
        )
        after_commit = AfterCommit(
            executions=self._executions,
            runners=self._registry,
            run_grant=run_grant,
            dispatch=self._dispatch,
            watchers=self._hub,
            obligations=self._obligations,
            ask_store=self._loop_store.ask,
            circuits=self._circuits,
            clock=self._clock,
        )
        self._commit_loop = CommitLoop(
            executions=self._executions,
            assigner=Assigner(self._registry, self._executions.places),
            circuits=self._circuits,
            after_commit=after_commit,
            journal=self._journal,
            dispatch=self._dispatch,
            codec=codec,
            clock=self._clock,
            begin_snapshots=functools.partial(JournalSnapshotLog, events_each=self._settings.snapshot_events),
            snapshot_events=self._settings.snapshot_events,
        )

    def _new_server(self) -> GrpcServer:
        settings = self._settings
        return GrpcServer(
            settings.grpc_address,
            guard=Guard(
                RULES,
                keys=SystemKey(settings.system_key_hash_file, others=self._keys),
                credential=settings.credential(SERVICE),
            ),
            tls=settings.tls,
            public=settings.public,
        )

    def _serve(self) -> None:
        self.server = self._new_server()
        sessions_pb2_grpc.add_RunnerSessionsServicer_to_server(RunnerSessionsService(self._registry), self.server)
        sessions_pb2_grpc.add_RunnerOutputsServicer_to_server(self._run_outputs, self.server)
        circuits = CircuitStateServicer(self._circuit_rows, self._circuit_policy, self._clock)
        circuits_pb2_grpc.add_CircuitServiceServicer_to_server(circuits, self.server)
        reads_pb2_grpc.add_ReadServiceServicer_to_server(self._reader, self.server)
        letters = DeadLetterReadServicer(self._reads)
        dead_letters_pb2_grpc.add_DeadLetterReadServiceServicer_to_server(letters, self.server)
        folding = Replays(self._reads, self._all_definitions, self._clock)
        kept_max = self._settings.imported_bytes_max
        imports = ImportDesk(folding, self._imports, codec, self._blobs, self._clock, kept_bytes_max=kept_max)
        replays = ReplayServicer(self._reads, folding, codec, self._blobs, self._clock, imports, self._all_definitions)
        replays_pb2_grpc.add_ReplayServiceServicer_to_server(replays, self.server)
        reads_pb2_grpc.add_WatchServiceServicer_to_server(WatchServicer(self._hub), self.server)

    async def prepare(self) -> None:
        await migrations.check(self._settings.database_url, SERVICE, MIGRATIONS)
        await self._blobs.make()
        await self._blobs.sweep()
        # Otherwise the first runs that are granted here could call a target whose circuit is open.
        await self._circuits.tick()

    def loops(self) -> Loops:
        settings, scale = self._settings, self._settings.lease_scale
        return (
            ("commits", self._commit_loop.run),
            ("journal loader", self._journal_loader.run),
            ("stored outputs", self._output_checker.run),
            ("values of loops", self._loop_store.run),
            ("timers", self._executions.timers.run),
            ("circuits", self._circuits.run),
            ("parked waits", self._parked_waking.run),
            ("idle circuits", Retention(self._forget_circuits, clock=self._clock).run),
            ("misrouted reports", self._misrouted_reports.run),
            ("obligations", self._obligations.run),
            ("begun reports", lambda: report_begun(self._executions, self._dispatch, self._clock, scale)),
            ("watch catch-up", self._hub.run_catching_up),
            ("watch poll", lambda: self._hub.run_polling(scale)),
            ("beats", self._registry.run_beats),
            ("ticks", self._registry.run_ticks),
            ("sweeps", self._registry.run_sweeps),
            ("keys", lambda: check_keys(self._keys.confirm, self._registry, KEY_SECONDS * scale)),
            ("sessions", lambda: self._holder.run(AddressBook(settings.dispatchers).changes())),
            ("api addresses", self._replicas.run),
            ("partitions", self._keep_partitions),
            ("retention", Retention(self._forget_dead_letters, clock=self._clock).run),
            ("health", lambda: self.server.health.follow(self._database.probe)),
        )

    def drain_steps(self) -> Steps:
        return (
            ("hand back all executions", self._hand_back),
            ("sessions with dispatchers", self._holder.stop),
            ("sessions with runners", self._registry.stop),
        )

    async def _keep_partitions(self) -> None:
        database, history_seconds = self._database, self._settings.history_seconds
        await keep_partitions(
            make_ahead=functools.partial(make_ahead, database),
            drop_old=lambda: drop_old(database, history_seconds),
            kept_since=functools.partial(kept_since, database),
            delete_outputs=self._blobs.delete_before,
        )

    async def _forget_circuits(self) -> int:
        return await self._circuit_rows.forget_idle(CIRCUIT_IDLE_SECONDS)

    async def _forget_dead_letters(self) -> int:
        return await forget_dead_letters(self._database, self._settings.dead_letter_seconds)

    async def _hand_back(self) -> None:
        """Returns when the dispatchers know. The sessions drain first, or what goes back would come again at once."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._holder.drain())
            group.create_task(self._commit_loop.hand_back_all())

    async def _end_rendering(self) -> None:
        await asyncio.to_thread(self._rendering.close)

    def close_steps(self) -> Steps:
        return (
            ("channels", self._channels.close),
            ("rendering", self._end_rendering),
            ("beats", self._beats.close),
            ("loader", self._loader.close),
            ("patient loader", self._patient_loader.close),
            ("journal", self._writer.close),
            ("imports", self._importer.close),
            ("database", self._database.close),
        )


def _circuit_policy(settings: CoordinatorSettings) -> CircuitPolicy:
    """The times are scaled as those of leases are."""

    def span(seconds: float) -> int:
        return max(1, round(seconds * settings.lease_scale * SECOND))

    return CircuitPolicy(
        window=span(settings.circuit_window_seconds),
        outcomes_min=settings.circuit_outcomes_min,
        failure_share=settings.circuit_failure_share,
        cool_down=span(settings.circuit_cool_down_seconds),
        cool_down_max=span(settings.circuit_cool_down_seconds_max),
        permits_max=settings.circuit_permits,
        permit_term=span(settings.circuit_permit_seconds),
    )
