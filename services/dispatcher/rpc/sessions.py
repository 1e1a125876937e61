"""CoordinatorSessions: passes callbacks of the session library to the admission loop, the returns and the mailbox."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from services.chassis.lease.frames import Attach, Grant, Lease, Refused, RefusedReport, Report
from services.chassis.process.clock import Clock
from services.chassis.session.codec import HopCodec
from services.chassis.session.owners import AttachRefused
from services.chassis.session.registry import SessionRegistry
from services.chassis.session.server import ServerSession
from services.chassis.session.store import EndedInstance
from services.chassis.telemetry.logs import logger
from services.dispatcher.app.admission_inbox import AdmissionInbox
from services.dispatcher.app.admission_metrics import AdmissionMetrics
from services.dispatcher.app.deliveries import Deliveries
from services.dispatcher.app.dispatched_marks import DispatchedMarks
from services.dispatcher.app.ports import BatchReport, Leases, PendingReport
from services.dispatcher.app.returns import Returns
from services.dispatcher.core.items import LeaseBegun, LeaseReleased
from services.dispatcher.core.late_reasons import lease_refusal
from services.dispatcher.rpc.translate import is_execution_id, report_of
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage, SessionRequest, SessionResponse
from windlass.dispatcher.v1.sessions_pb2_grpc import CoordinatorSessionsServicer

log = logger(__name__)

CODEC: Final = HopCodec(
    holder_frame=SessionRequest, server_frame=SessionResponse, holder_notes="message_acks", server_notes="messages"
)


class CoordinatorSessionsService(CoordinatorSessionsServicer):
    def __init__(self, registry: SessionRegistry) -> None:
        self._registry = registry

    async def Session(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        await self._registry.serve(context)


class CoordinatorSessionOwner:
    """The owner of all coordinator sessions at this replica (chassis/session/owners.py). Its attributes are set
    after construction, because each of them needs this object."""

    deliveries: Deliveries
    registry: SessionRegistry

    def __init__(
        self,
        *,
        inbox: AdmissionInbox,
        returns: Returns,
        marks: DispatchedMarks,
        leases: Leases,
        metrics: AdmissionMetrics,
        clock: Clock,
    ) -> None:
        self._inbox = inbox
        self._returns = returns
        self._marks = marks
        self._leases = leases
        self._metrics = metrics
        self._clock = clock
        # Instances that have attached here and are not known to have ended.
        self._watched: set[str] = set()

    def post(self, instance_id: str, bodies: Sequence[bytes]) -> None:
        """Send messages to a holder that has a session here. Each coordinator has one with each replica."""
        session = self.registry.of_instance(instance_id)
        if session is not None:
            session.post([ExecutionMessage.FromString(body) for body in bodies])

    def ask(self, instance_id: str, leases: Sequence[tuple[str, int]]) -> None:
        """Ask a holder whether it has these leases. Those that it denies return through `on_refused`."""
        session = self.registry.of_instance(instance_id)
        if session is None:
            return
        held = [lease for lease in leases if session.holds(*lease)]
        self._marks.taken(held)
        unknown = [Lease(*lease) for lease in leases if not session.holds(*lease)]
        if unknown:
            session.claim(unknown)

    # ── callbacks of the session library ─────────────────────────────────────────────────────────────────────────

    async def admit(self, attach: Attach) -> Sequence[Refused]:
        if "\x00" in attach.instance_id + attach.holder + attach.version:
            raise AttachRefused("ATTACH_INVALID", "an attach cannot contain NUL")
        named = [lease for lease in attach.held if is_execution_id(lease.lease_id)]
        rows = await self._leases.find([lease.lease_id for lease in named]) if named else {}
        refused: list[Refused] = []
        for lease_id, epoch in attach.held:
            reason = lease_refusal(epoch, attach.instance_id, rows.get(lease_id))
            if reason is not None:
                refused.append(Refused(lease_id, epoch, reason.value))
        return refused

    def on_attached(self, session: ServerSession) -> None:
        self._watched.add(session.instance_id)

    def on_credit(self, session: ServerSession) -> None:
        self._inbox.credit_came()

    def on_taken(self, session: ServerSession, grants: list[Grant]) -> None:
        leases = [(grant.lease_id, grant.epoch) for grant in grants]
        self._marks.taken(leases)
        self._metrics.dispatched(leases, session.attach.holder)

    def on_refused(self, session: ServerSession, refused: list[Refused]) -> None:
        log.info(
            "a coordinator handed grants back",
            holder=session.attach.holder,
            grants=len(refused),
            reason=refused[0].reason,
        )
        self._returns.hand_back([(each.lease_id, each.epoch) for each in refused if is_execution_id(each.lease_id)])

    def on_withdrawn(self, session: ServerSession, grants: list[Grant]) -> None:
        self._returns.hand_back([(grant.lease_id, grant.epoch) for grant in grants])

    def on_in_doubt(self, session: ServerSession, grants: list[Grant]) -> None:
        """Each replica that has a session with this holder asks about them (app/poll_loop.py)."""

    def on_reports(self, session: ServerSession, reports: list[Report]) -> None:
        pending: list[BatchReport] = []
        ended: list[str] = []
        now = self._clock.now()
        for each in reports:
            body: Any = each.body
            report = report_of(body, now)
            if report is None:
                log.error("a report of an unknown kind", execution_id=each.lease_id, holder=session.attach.holder)
                session.refuse_reports([RefusedReport(each.report_id, "REPORT_UNKNOWN")])
            elif isinstance(report, LeaseBegun):
                self._returns.begun([PendingReport(each.report_id, report, session)])
                continue
            elif isinstance(report, LeaseReleased):
                self._returns.released([PendingReport(each.report_id, report, session)])
            else:
                pending.append(PendingReport(each.report_id, report, session))
            ended.append(each.lease_id)
        self._marks.over(ended)
        if pending:
            self._inbox.report(pending)

    def on_notes(self, session: ServerSession, notes: list[object]) -> None:
        self.deliveries.journalled([note for note in notes if isinstance(note, str) and "\x00" not in note])

    def on_drain(self, session: ServerSession) -> None:
        """Nothing to do: the session's credit is 0 from now on."""

    def on_closed(self, session: ServerSession) -> None:
        """Nothing to do: the leases live as long as the instance."""

    def on_unheard(self, instance_id: str) -> None:
        """Nothing to do: executions are only granted again when the instance has ended, which is as soon."""

    def on_ended(self, ended: list[EndedInstance]) -> None:
        instances = [each.instance_id for each in ended]
        self._watched.difference_update(instances)
        self._returns.ended(instances)

    def watched(self) -> Iterable[str]:
        return list(self._watched)
