"""What a story works with: two coordinators, the runner that is attached to them, and ways to wait for what it does.

Hazard: the kit looks at what was noted every 10 ms. A limit of time has a slack, because the machine may be busy.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

from windlass.conformance.coordinator import BEAT, KitCoordinator, KitStream, Policy, seconds_message
from windlass.conformance.outputs import KitOutputs
from windlass.conformance.rules import Duty, Judge, StoryEnds
from windlass.conformance.runner_process import RunnerProcess
from windlass.coordinator.v1 import sessions_pb2 as pb
from windlass.types.v1 import session_pb2 as types

LOOK_SECONDS: Final = 0.01
# How long the kit waits for what has no time of its own in the contract.
PATIENCE: Final = 5.0
# What is added to a time of the contract.
SLACK: Final = 0.5
# Of one field of a report, in the account.
TOLD_CHARACTERS: Final = 300
T = TypeVar("T")


class KitWork(NamedTuple):
    """A module of the runner, and the JSON of its config."""

    module: str
    config: bytes = b"{}"


@dataclass(frozen=True)
class KitLease:
    """A lease that the kit has granted, or speaks of."""

    lease_id: str
    epoch: int = 1

    def message(self) -> types.Lease:
        return types.Lease(lease_id=self.lease_id, epoch=self.epoch)

    def is_named_by(self, stream: KitStream) -> bool:
        return stream.named.get(self.lease_id) == self.epoch

    def is_of(self, report: pb.RunReport) -> bool:
        return (report.head.lease_id, report.head.epoch) == (self.lease_id, self.epoch)


class Scene:
    def __init__(
        self,
        coordinators: Sequence[KitCoordinator],
        outputs: KitOutputs,
        judge: Judge,
        quick: KitWork,
        slow: KitWork,
        deferring: KitWork | None,
        calling: KitWork | None,
        *,
        process: RunnerProcess | None,
        drain_seconds: float,
    ) -> None:
        """`quick` ends at once, and its output is its inputs. `slow` takes at least a minute, and ends soon when it is
        told to. After SIGTERM the process may take `drain_seconds` to end. `deferring` leaves its work to somebody
        else, and `calling` names what it calls, if the runner has such modules."""
        self.coordinators = coordinators
        self.outputs = outputs
        self.judge = judge
        self.quick, self.slow = quick, slow
        self.process = process
        self.drain_seconds = drain_seconds
        self.deferring, self.calling = deferring, calling
        self._numbers = itertools.count(1)

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────────────

    async def until(self, rule: Duty, probe: Callable[[], T | None], seen: str, seconds: float = PATIENCE) -> T:
        """The first true value of the probe. The rule is broken, and the story ends, when none comes in time."""
        deadline = time.monotonic() + seconds
        while not (value := probe()):
            if time.monotonic() > deadline:
                self.judge.check(rule, False, f"{seen}; waited {seconds:g} s")
                raise StoryEnds
            await asyncio.sleep(LOOK_SECONDS)
        self.judge.check(rule, True, "")
        return value

    async def never(self, rule: Duty, probe: Callable[[], object], seen: str, seconds: float) -> None:
        """The rule is broken when the probe becomes true in this time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if probe():
                self.judge.check(rule, False, seen)
                return
            await asyncio.sleep(LOOK_SECONDS)
        self.judge.check(rule, True, "")

    # ── streams ───────────────────────────────────────────────────────────────────────────────────────────

    def streams(self) -> list[KitStream]:
        return [stream for coordinator in self.coordinators for stream in coordinator.streams]

    def answer_by(self, policy: Policy) -> None:
        """All coordinators answer by this policy from now on, also on their present streams."""
        for coordinator in self.coordinators:
            coordinator.policy = policy
            for stream in coordinator.streams:
                stream.policy = policy

    def live(self, index: int) -> KitStream | None:
        """The newest stream to this coordinator, if it is in use."""
        streams = self.coordinators[index].streams
        return streams[-1] if streams and streams[-1].is_live else None

    async def stream(self, index: int, rule: Duty = Duty.ATTACH_AGAIN) -> KitStream:
        """The stream to this coordinator, once it is in use and the runner has sent a beat on it."""
        return await self.until(
            rule,
            lambda: stream if (stream := self.live(index)) is not None and stream.beats else None,
            f"there is no live session with {self.coordinators[index].name}",
        )

    async def next_stream(self, lost: KitStream, rule: Duty = Duty.ATTACH_AGAIN) -> KitStream:
        """The stream that follows a lost one."""
        streams = lost.coordinator.streams
        place = streams.index(lost)
        return await self.until(
            rule,
            lambda: next((each for each in streams[place + 1 :] if each.attach is not None), None),
            f"no new Attach came to {lost.coordinator.name}",
        )

    async def beats_after(self, stream: KitStream, count: int, rule: Duty = Duty.BEAT_TIMELY) -> None:
        """Wait for some more beats."""
        wanted = stream.beats + count
        await self.until(rule, lambda: stream.beats >= wanted, "beats are missing", count * 2 * BEAT + SLACK)

    # ── leases ────────────────────────────────────────────────────────────────────────────────────────────

    def lease(self, epoch: int = 1) -> KitLease:
        return KitLease(f"{uuid4()}.{next(self._numbers)}", epoch)

    async def grant(
        self,
        stream: KitStream,
        work: KitWork,
        lease: KitLease | None = None,
        timeout: float | None = None,
        **fields: Any,
    ) -> KitLease:
        """Grant the work as soon as there is credit. `fields` are set in the grant."""
        lease = lease or self.lease()
        await self.until(Duty.CREDIT_AGAIN, lambda: stream.credit > 0, "there is no credit")
        stream.send(grants=(grant_of(lease, work, timeout, **fields),))
        return lease

    async def grant_held(self, stream: KitStream, work: KitWork | None = None) -> KitLease:
        """Grant slow work, and wait until a beat names its lease."""
        lease = await self.grant(stream, work or self.slow)
        await self.until(Duty.BEAT_HELD, lambda: lease.is_named_by(stream), "no beat names the granted lease")
        return lease

    async def revoke(self, stream: KitStream, lease: KitLease, reason: str = "NODE_TIMEOUT") -> None:
        """Revoke a lease that the runner holds, and wait until it is dropped."""
        revoked = types.Revoke(lease_id=lease.lease_id, epoch=lease.epoch, reason=reason)
        stream.send(revoked=[revoked])
        await self.until(
            Duty.REVOKE_UNREPORTED, lambda: not lease.is_named_by(stream), "beats still name the revoked lease"
        )

    def reports(self, lease: KitLease) -> list[pb.RunReport]:
        """All reports on this lease, on all streams, with their repeats."""
        return [each for stream in self.streams() for each in stream.reports if lease.is_of(each)]

    def refusal(self, lease: KitLease) -> types.GrantRefusal | None:
        for stream in self.streams():
            for each in stream.refusals:
                if (each.lease_id, each.epoch) == (lease.lease_id, lease.epoch):
                    return each
        return None

    async def is_not_begun(self, rule: Duty, lease: KitLease, seen: str) -> None:
        """The lease was just granted. It may be refused or released, but not done."""

        def done() -> bool:
            return any(report.WhichOneof("outcome") in ("succeeded", "failed") for report in self.reports(lease))

        await self.never(rule, done, seen, 2 * BEAT)


def told(report: pb.RunReport) -> str:
    """The outcome of a report with its fields, for the account: they say more than the ids and times before them."""
    outcome = report.WhichOneof("outcome")
    if outcome is None:
        return "nothing"
    said = [f"{field.name}={value!s:.{TOLD_CHARACTERS}}" for field, value in getattr(report, outcome).ListFields()]
    return " ".join([outcome, *said, f"target={report.target}" if report.target else ""]).replace("\n", " ").rstrip()


def grant_of(lease: KitLease, work: KitWork, timeout: float | None = None, **fields: Any) -> pb.RunGrant:
    usual = {
        "lease": lease.message(),
        "execution_id": lease.lease_id.rpartition(".")[0],
        "workspace": "conformance",
        "workflow": "conformance",
        "node": "node",
        "module": work.module,
        "attempt": 1,
        "config": work.config,
        "inputs": b"{}",
        "timeout": None if timeout is None else seconds_message(timeout),
        "effect_key": lease.lease_id,
    }
    return pb.RunGrant(**{**usual, **fields})
