"""The coordinator as the server of runners: which runner may attach, which runner is gone.

A runner's key is checked when it attaches; `app/runner_scope.py` says what it may be granted.

A runner instance that has ended loses its runs: idempotent runs at once, the others after the time in which even a
runner that was only cut off has stopped (`DeadRunners`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from services.chassis.identity.callers import caller
from services.chassis.lease.frames import Attach, Grant, Lease, Refused, Report
from services.chassis.session.codec import HopCodec
from services.chassis.session.owners import AttachRefused
from services.chassis.session.registry import SessionRegistry
from services.chassis.session.server import ServerSession
from services.chassis.session.store import EndedInstance
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter, gauge
from services.coordinator.app.dead_runners import DeadRunners
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.app.ports import RunStanding, RunStandings
from services.coordinator.app.runner_scope import RunnerScope
from services.coordinator.core.run_ids import split_run_id
from services.coordinator.core.state import Work
from services.coordinator.rpc.run_messages import received_progress, received_report
from windlass.coordinator.v1 import sessions_pb2 as pb
from windlass.coordinator.v1.sessions_pb2_grpc import RunnerSessionsServicer
from windlass.definition.modules import RENDERER

log = logger(__name__)

CODEC: Final = HopCodec(holder_frame=pb.SessionRequest, server_frame=pb.SessionResponse, holder_notes="progress")
_runners = gauge("coordinator_runner_sessions", "Runners attached here.")
_ended = counter("coordinator_runners_ended_total", "Runner instances found dead.")


class SessionRunners:
    """Implements `SessionOwner` for the registry, which is set after construction, because it needs this object."""

    registry: SessionRegistry

    def __init__(
        self, executions: OwnedExecutions, dead_runners: DeadRunners, standings: RunStandings, reserve: float = 0.0
    ) -> None:
        """`reserve` is the share of a runner's places that goes only to workspaces that hold none there."""
        self._executions = executions
        self._dead_runners = dead_runners
        self._standings = standings
        self._reserve = reserve

    def modules_for(self, workspace: str) -> tuple[set[str], set[str]]:
        """The modules of all runners that are attached here and serve this workspace, then of those that render."""
        scopes = [session.data for session in self.registry.sessions if session.data.serves(workspace)]
        rendering = {module for scope in scopes if not scope.wants_rendered for module in scope.modules}
        return rendering.union(*(scope.modules for scope in scopes)), rendering

    def why_none_takes(self, workspace: str, work: Work) -> str:
        """Why no runner has been given this ready work."""
        node = work.node
        module, labels = node.runner_module, dict(node.runner_labels)
        serving = [session.data for session in self.registry.sessions if session.data.serves(workspace)]
        if not serving:
            return "no runner that serves the workspace is connected"
        scopes = [scope for scope in serving if module in scope.modules]
        if not scopes:
            return f"no runner that is connected does {module}"
        scopes = [scope for scope in scopes if scope.labels.issuperset(labels.items())]
        if not scopes:
            return f"no runner that does {module} has the labels {', '.join(map('='.join, labels.items()))}"
        if work.is_templated and all(scope.wants_rendered for scope in scopes):
            if node.until:
                return f"no runner that does {module} can evaluate its `until`"
            # Another runner has to render it first.
            scopes = [scope for scope in serving if RENDERER in scope.modules and not scope.wants_rendered]
            if not scopes:
                return "no runner that is connected can render its templates"
        return f"all places of the {len(scopes)} runners that can do it are taken"

    # ── SessionOwner ─────────────────────────────────────────────────────────────────────────────────────────────

    async def admit(self, attach: Attach) -> Sequence[Refused]:
        if any(not _is_module(name) for name in (*attach.modules, *attach.idempotent_modules)):
            raise AttachRefused("MODULE_INVALID", "modules are named like http.request@1")
        # The rows know every run, whichever coordinator holds its execution, and also when none does any more.
        named = {lease: split_run_id(lease.lease_id) for lease in attach.held}
        found = await self._standings({name for name in named.values() if name[1]})
        reasons = {lease: _why_not(lease, found.get(name), attach.instance_id) for lease, name in named.items()}
        return [Refused(*lease, reason) for lease, reason in reasons.items() if reason]

    def on_attached(self, session: ServerSession) -> None:
        # This runs in the context of the call, as `admit` does, so the caller is known.
        session.data = RunnerScope(session.attach, caller(), self._reserve)
        _runners.set(len(self.registry.sessions))
        attach = session.attach
        log.info("runner attached", runner=attach.holder, instance_id=attach.instance_id, held=session.held_count)
        # A revocation may have been lost with an earlier stream, or have been due since the rows were read.
        if revoked := self._executions.ended_of(session.instance_id, session.held):
            session.revoke(revoked)
        # The runner reports the runs that it has to us. It refuses those that never reached it; they are leased again.
        if leases := self._executions.leases_of(session.instance_id):
            session.claim(leases)
        self._executions.level.set()

    def on_credit(self, session: ServerSession) -> None:
        self._executions.level.set()

    def on_taken(self, session: ServerSession, grants: list[Grant]) -> None:
        """The lease is in the journal already. Only a lease that was in doubt needs something done."""
        self._executions.taken(grants)

    def on_refused(self, session: ServerSession, refused: list[Refused]) -> None:
        self._executions.handed_back(session.instance_id, refused)

    def on_withdrawn(self, session: ServerSession, grants: list[Grant]) -> None:
        self._executions.unsent(grants)

    def on_in_doubt(self, session: ServerSession, grants: list[Grant]) -> None:
        log.warning("a runner that lives does not come back", runner=session.attach.holder, grants=len(grants))
        self._executions.in_doubt(grants)

    def on_reports(self, session: ServerSession, reports: list[Report]) -> None:
        instance_id = session.instance_id
        self._executions.reported(session, [received_report(each, instance_id) for each in reports])

    def on_notes(self, session: ServerSession, notes: list[Any]) -> None:
        self._executions.progressed(received_progress(each, session.instance_id) for each in notes)

    def on_drain(self, session: ServerSession) -> None:
        log.info("runner drains", runner=session.attach.holder, instance_id=session.instance_id)

    def on_closed(self, session: ServerSession) -> None:
        _runners.set(len(self.registry.sessions))

    def on_unheard(self, instance_id: str) -> None:
        log.warning("a runner is out of reach: its idempotent work goes elsewhere", instance_id=instance_id)
        self._executions.runner_lost(instance_id, is_idempotent_only=True)

    def on_ended(self, ended: list[EndedInstance]) -> None:
        for each in ended:
            if self._dead_runners.add(each.instance_id, each.unheard_seconds):
                _ended.inc()
                log.warning("runner is gone", runner=each.holder, instance_id=each.instance_id)

    def watched(self) -> Iterable[str]:
        return self._executions.instances()


class RunnerSessionsService(RunnerSessionsServicer):
    def __init__(self, registry: SessionRegistry) -> None:
        self._registry = registry

    async def Session(  # type: ignore[override] # reads and writes by the context
        self, request_iterator: Any, context: Any
    ) -> None:
        await self._registry.serve(context)


def _why_not(lease: Lease, run: RunStanding | None, instance_id: str) -> str:
    """Why the lease is not the instance's; "" if it is. A run that is reported stays the runner's, because the
    acknowledgement is on the way. Nobody learns whether a lease of another exists."""
    if run is None or run.instance_id != instance_id:
        return "LEASE_UNKNOWN"
    if run.epoch != lease.epoch:
        return "EPOCH_STALE"
    return "LEASE_ENDED" if run.is_taken_back else ""


def _is_module(name: str) -> bool:
    base, at, version = name.rpartition("@")
    return bool(base and at and version.isdecimal())
