"""The kit's coordinator. It answers a runner as a coordinator does, except where a story tells it otherwise.

A stream notes all that the runner sends on it. `Policy` says what the coordinator answers by itself; a story changes it
for a while, and sends everything else with `KitStream.send`.

Hazard: call everything from one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration

from windlass.conformance.outputs import KitOutputs
from windlass.conformance.rules import Judge
from windlass.conformance.watching import watch
from windlass.coordinator.v1 import sessions_pb2 as pb
from windlass.coordinator.v1.sessions_pb2_grpc import (
    RunnerSessionsServicer,
    add_RunnerOutputsServicer_to_server,
    add_RunnerSessionsServicer_to_server,
)
from windlass.types.v1 import session_pb2 as types

# A fifth of the times of real runs, so that the kit is done within minutes.
TERM, BEAT, SELF_FENCE, GRANTED_AGAIN = 3.0, 0.6, 1.6, 3.2
CLOSED_GRACE, IDEMPOTENT_GRACE = 2.0, 0.6
# A lowering credit is confirmed this much later, so that a runner that does not wait for the confirmation is seen.
CONFIRMS_AFTER = 0.3
TIMES = {
    "term": TERM,
    "beat": BEAT,
    "self_fence": SELF_FENCE,
    "granted_again": GRANTED_AGAIN,
    "closed_grace": CLOSED_GRACE,
    "idempotent_grace": IDEMPOTENT_GRACE,
}

AWAY = (grpc.StatusCode.UNAVAILABLE, "cut by the conformance kit")


def seconds_message(seconds: float) -> Duration:
    made = Duration()
    made.FromNanoseconds(round(seconds * 1e9))
    return made


@dataclass
class Policy:
    """What a coordinator does by itself."""

    # Ends every new stream as UNAVAILABLE.
    is_away: bool = False
    answers_attach: bool = True
    answers_beats: bool = True
    # Says at every half beat that it has heard the beats that it does not answer.
    says_heard: bool = False
    answers_reports: bool = True
    # The reason for refusing reports. "": it takes them.
    refuses_reports: str = ""
    # The fault with which every attach is answered. "": none.
    attach_fault: str = ""
    # The times in the answer to an attach. None: it has no times.
    times: Mapping[str, float] | None = field(default_factory=TIMES.copy)
    # The leases that the answer to an attach refuses, with the reasons.
    refused_leases: dict[str, str] = field(default_factory=dict)
    # The revocations that go with the answer to an attach.
    repeated_revocations: tuple[types.Revoke, ...] = ()


@dataclass
class KitStream:
    """One stream of the runner, and everything that it has sent there."""

    coordinator: KitCoordinator
    has_key: bool
    policy: Policy
    opened_at: float
    attach: types.Attach | None = None
    is_answered: bool = False
    answered_at: float = 0.0
    # Both are set when the stream is over, whoever ended it.
    is_over: bool = False
    over_at: float = 0.0
    beat_times: list[float] = field(default_factory=list)
    # The leases that the beats have named, with their epochs.
    named: dict[str, int] = field(default_factory=dict)
    is_beat_pending: bool = False
    wants_full: bool = False
    reports: list[pb.RunReport] = field(default_factory=list)
    refusals: list[types.GrantRefusal] = field(default_factory=list)
    grants_sent: int = 0
    grants_seen: int = 0
    credit_number: int = 0
    # What may still be granted, and what the runner must still expect under credits that are not confirmed as lowered.
    credit: int = 0
    credit_promised: int = 0
    owes_confirmation: bool = False
    is_draining: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    status: tuple[grpc.StatusCode, str] | None = None
    _outgoing: asyncio.Queue[pb.SessionResponse | None] = field(default_factory=asyncio.Queue)

    @property
    def beats(self) -> int:
        return len(self.beat_times)

    @property
    def instance_id(self) -> str:
        assert self.attach is not None
        return self.attach.instance_id

    @property
    def is_live(self) -> bool:
        return self.is_answered and not self.is_over

    def named_after(self, beat: types.Beat) -> dict[str, int]:
        """The leases that the runner names, once this beat is heard."""
        named = {} if beat.full else dict(self.named)
        named.update((lease.lease_id, lease.epoch) for lease in beat.held)
        for lease_id in beat.gone:
            named.pop(lease_id, None)
        return named

    # ── what a story does ─────────────────────────────────────────────────────────────────────────────────

    def send(self, *, grants: tuple[pb.RunGrant, ...] = (), **control: Any) -> None:
        """Send a frame with these parts of the control message, and these grants."""
        self.grants_sent += len(grants)
        self.credit -= len(grants)
        self.credit_promised -= len(grants)
        self.send_message(pb.SessionResponse(control=types.ServerControl(**control), grants=grants))

    def send_message(self, message: pb.SessionResponse) -> None:
        """Send a message as it is."""
        self._outgoing.put_nowait(message)

    def send_fault(self, reason: str) -> None:
        """Send the last frame, and end the stream."""
        self.send(fault=types.Fault(reason=reason, message="the conformance kit says so"))
        self._outgoing.put_nowait(None)

    def cut(self, code: grpc.StatusCode = AWAY[0]) -> None:
        """End the stream as when a coordinator dies: with a status, and without a last frame."""
        self.status = None if code is grpc.StatusCode.OK else (code, AWAY[1])
        self.end()

    def answer_attach(self) -> None:
        assert self.attach is not None
        refused = [
            types.Refused(lease_id=lease.lease_id, epoch=lease.epoch, reason=reason)
            for lease in self.attach.held
            if (reason := self.policy.refused_leases.get(lease.lease_id))
        ]
        attached = types.Attached(session_id="kit", server=self.coordinator.name, refused=refused)
        if self.policy.times is not None:
            times = {name: seconds_message(seconds) for name, seconds in self.policy.times.items()}
            attached.timing.CopyFrom(types.Timing(**times))
        self.is_answered, self.answered_at = True, time.monotonic()
        self.send(attached=attached, revoked=self.policy.repeated_revocations)

    def answer_beat(self, *, is_renewed: bool = True, wants_full: bool = False) -> None:
        self.is_beat_pending, self.wants_full = False, wants_full
        self.send(beat=types.BeatAnswer(number=self.beats, renewed=is_renewed, want_full=wants_full))

    # ── what the runner does ──────────────────────────────────────────────────────────────────────────────

    def hear(self, frame: pb.SessionRequest, judge: Judge) -> None:
        """Judge and note a frame, and answer it by the policy."""
        watch(self, frame, judge)
        control = frame.control
        if control.HasField("attach") and self.attach is None:
            self._hear_attach(control.attach)
        self.grants_seen = max(self.grants_seen, control.grants_seen)
        self.refusals += control.refusals
        for report in frame.reports:
            self._hear_report(report)
        if control.HasField("credit"):
            self._hear_credit(control.credit)
        if control.HasField("beat"):
            self._hear_beat(control.beat)
        self.is_draining = self.is_draining or control.drain

    def _hear_attach(self, attach: types.Attach) -> None:
        self.attach = attach
        self.named = {lease.lease_id: lease.epoch for lease in attach.held}
        if self.policy.attach_fault:
            self.send_fault(self.policy.attach_fault)
        elif self.policy.answers_attach:
            self.answer_attach()

    def _hear_report(self, report: pb.RunReport) -> None:
        self.reports.append(report)
        report_id, reason = report.head.report_id, self.policy.refuses_reports
        if reason:
            self.send(refused_reports=[types.ReportRefusal(report_id=report_id, reason=reason)])
        elif self.policy.answers_reports:
            self.send(taken_reports=[report_id])

    def _hear_credit(self, credit: types.Credit) -> None:
        """Grants on the way, which the runner had not seen, are taken off the credit."""
        left = credit.amount - (self.grants_sent - self.grants_seen)
        self.owes_confirmation = self.owes_confirmation or left < self.credit
        self.credit_number, self.credit = credit.number, left
        self.credit_promised = max(self.credit_promised, left)
        if self.owes_confirmation:
            asyncio.get_running_loop().call_later(CONFIRMS_AFTER, self._confirm, credit.number)

    def _confirm(self, number: int) -> None:
        if number == self.credit_number and not self.is_over:
            self.owes_confirmation, self.credit_promised = False, self.credit
            self.send(credit_seen=number)

    def _hear_beat(self, beat: types.Beat) -> None:
        self.named = self.named_after(beat)
        self.beat_times.append(time.monotonic())
        self.is_beat_pending, self.wants_full = True, False
        if self.policy.answers_beats:
            self.answer_beat()

    # ── the stream itself ─────────────────────────────────────────────────────────────────────────────────

    def end(self) -> None:
        if not self.is_over:
            self.is_over, self.over_at = True, time.monotonic()
            self.over.set()

    async def read(self, context: Any, judge: Judge) -> None:
        while not self.is_over:
            try:
                frame = await context.read()
            except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
                return
            if frame is grpc.aio.EOF:
                return
            self.hear(frame, judge)

    async def write(self, context: Any) -> None:
        while (frame := await self._outgoing.get()) is not None:
            try:
                await context.write(frame)
            except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
                return

    async def say_heard(self) -> None:
        while True:
            await asyncio.sleep(BEAT / 2)
            if self.policy.says_heard and self.is_beat_pending:
                self.send(beat_heard=self.beats)


class KitCoordinator(RunnerSessionsServicer):
    """Stands for one coordinator. `streams` has those of the runner, oldest first."""

    def __init__(self, name: str, key: Callable[[], str], judge: Judge) -> None:
        self.name = name
        self.policy = Policy()
        self.streams: list[KitStream] = []
        self.address = ""
        self._key = key
        self._judge = judge
        self._server: grpc.aio.Server | None = None

    async def start(self, listen: str, outputs: KitOutputs) -> None:
        """Serve at HOST:PORT; port 0 is any free one."""
        self._server = grpc.aio.server()
        add_RunnerSessionsServicer_to_server(self, self._server)
        add_RunnerOutputsServicer_to_server(outputs, self._server)
        port = self._server.add_insecure_port(listen)
        self.address = f"{listen.rpartition(':')[0]}:{port}"
        await self._server.start()

    async def stop(self) -> None:
        for stream in self.streams:
            stream.end()
        if self._server is not None:
            await self._server.stop(None)

    async def Session(  # type: ignore[override] # reads and writes by the context
        self, request_iterator: Any, context: Any
    ) -> None:
        if self.policy.is_away:
            await context.abort(*AWAY)
        said = dict(context.invocation_metadata())
        has_key = said.get("authorization") == f"Bearer {self._key()}"
        stream = KitStream(self, has_key, self.policy, time.monotonic())
        self.streams.append(stream)
        work = (stream.read(context, self._judge), stream.write(context), stream.say_heard())
        tasks = [asyncio.create_task(each) for each in work]
        for task in tasks[:2]:
            # The stream is over when the runner has ended it, or when our last frame is written.
            task.add_done_callback(lambda _: stream.end())
        try:
            await stream.over.wait()
        finally:
            stream.end()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and (failure := task.exception()) is not None:
                raise failure
        if stream.status is not None:
            await context.abort(*stream.status)
