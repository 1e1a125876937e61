"""What one item costs a lease session: grants down and reports up one real loopback stream, in one process.

    python benchmarks/micro_session.py [items]

Both ends share one event loop and one core, so the figure is the sum of both sides: codec, rules, gRPC and
the kernel. Prints one JSON line: µs and items a second for a whole lease (grant, take, report,
acknowledgement), and the cost of each pure part by itself."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import grpc

from services.chassis.lease.frames import Attach, Grant, Refused, Report, ServerFrame
from services.chassis.lease.profile import HolderProfile
from services.chassis.lease.timing import RUN
from services.chassis.process.clock import SystemClock
from services.chassis.session.codec import HopCodec
from services.chassis.session.holder import SessionHolder
from services.chassis.session.memory import MemorySessionStore
from services.chassis.session.registry import SessionRegistry
from services.chassis.session.server import ServerSession
from services.chassis.session.store import EndedInstance
from windlass.coordinator.v1 import sessions_pb2, sessions_pb2_grpc
from windlass.types.v1 import session_pb2

CODEC = HopCodec(sessions_pb2.SessionRequest, sessions_pb2.SessionResponse, holder_notes="progress")


def grant(number: int) -> Grant:
    lease_id = f"01999999-9999-7999-8999-{number:012d}.1"
    work = sessions_pb2.RunGrant(
        lease=session_pb2.Lease(lease_id=lease_id, epoch=number),
        execution_id=lease_id[:-2],
        workspace="default",
        workflow="bench",
        node="step",
        module="noop@1",
        attempt=1,
        config=b"{}",
        inputs=b"{}",
        effect_key="0" * 64,
    )
    return Grant(lease_id, number, work)


class Granting:
    """A server that grants as long as there is credit, and acknowledges at once."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.granted = 0
        self.reported = 0
        self.frames = 0
        self.done = asyncio.Event()

    async def admit(self, attach: Attach) -> Sequence[Refused]:
        return ()

    def on_attached(self, session: ServerSession) -> None: ...

    def on_credit(self, session: ServerSession) -> None:
        count = session.take_credit(self.items - self.granted)
        session.grant([grant(self.granted + n) for n in range(count)])
        self.granted += count

    def on_taken(self, session: ServerSession, grants: list[Grant]) -> None: ...

    def on_refused(self, session: ServerSession, refused: list[Refused]) -> None:
        raise AssertionError(refused)

    def on_withdrawn(self, session: ServerSession, grants: list[Grant]) -> None: ...
    def on_in_doubt(self, session: ServerSession, grants: list[Grant]) -> None: ...

    def on_reports(self, session: ServerSession, reports: list[Report]) -> None:
        self.frames += 1
        session.acknowledge([report.report_id for report in reports])
        self.reported += len(reports)
        if self.reported >= self.items:
            self.done.set()

    def on_notes(self, session: ServerSession, notes: list[object]) -> None: ...

    def on_drain(self, session: ServerSession) -> None: ...

    def on_closed(self, session: ServerSession) -> None: ...

    def on_ended(self, ended: list[EndedInstance]) -> None: ...

    def watched(self) -> Iterable[str]:
        return ()


class Reporting:
    """A holder that has done everything the moment it is granted."""

    def __init__(self) -> None:
        self.holder: SessionHolder

    def on_grants(self, grants: list[Grant]) -> None:
        holder = self.holder
        for each in grants:
            report_id = holder.new_report_id()
            head = session_pb2.ReportHead(report_id=report_id, lease_id=each.lease_id, epoch=each.epoch)
            body = sessions_pb2.RunReport(head=head)
            body.succeeded.output.json = b"{}"
            holder.report(report_id, each.lease_id, each.epoch, body, ends_lease=True)

    def on_revoked(self, revoked: list[Refused]) -> None: ...

    def on_reports_taken(self, reports: list[Report]) -> None: ...

    def on_reports_refused(self, refused: list[tuple[Report, str]]) -> None: ...

    def on_notes(self, address: str, notes: list[object]) -> None: ...

    def beat_notes(self, address: str, *, is_full: bool) -> Sequence[object]:
        return ()

    def on_fenced(self) -> None: ...

    def on_resumed(self) -> None: ...

    def on_ended(self, reason: str) -> None: ...


class _Servicer(sessions_pb2_grpc.RunnerSessionsServicer):
    def __init__(self, registry: SessionRegistry) -> None:
        self._registry = registry

    async def Session(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        await self._registry.serve(context)


async def _fixed(address: str) -> AsyncIterator[frozenset[str]]:
    yield frozenset({address})
    await asyncio.Event().wait()


async def whole(items: int, capacity: int) -> dict[str, float]:
    """All items through one real stream."""
    granting, reporting = Granting(items), Reporting()
    registry = SessionRegistry(
        store=MemorySessionStore(SystemClock(), RUN), timing=RUN, server="bench", codec=CODEC, owner=granting
    )
    server = grpc.aio.server()
    sessions_pb2_grpc.add_RunnerSessionsServicer_to_server(_Servicer(registry), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    channel = grpc.aio.insecure_channel(address)
    stub = sessions_pb2_grpc.RunnerSessionsStub(channel)
    reporting.holder = SessionHolder(
        profile=HolderProfile("bench"),
        capacity=capacity,
        timing=RUN,
        codec=CODEC,
        open_stream=lambda _: stub.Session(),
        owner=reporting,
    )
    beats = asyncio.create_task(registry.run_beats())
    began, began_cpu = time.perf_counter(), time.process_time()
    running = asyncio.create_task(reporting.holder.run(_fixed(address)))
    await granting.done.wait()
    took, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    await reporting.holder.stop()
    await running
    beats.cancel()
    await registry.stop()
    await channel.close()
    await server.stop(0)
    return {
        "items_per_s": round(items / took),
        "cpu_us_per_item": round(cpu / items * 1e6, 2),
        "items_per_frame": round(items / granting.frames, 1),
    }


def codec(items: int) -> dict[str, float]:
    """A full frame of grants there and back, without gRPC."""
    frame = ServerFrame(grants=[grant(n) for n in range(500)])
    raw = CODEC.encode_server_frame(frame)[0].SerializeToString()
    rounds = max(1, items // 500)
    began = time.perf_counter()
    for _ in range(rounds):
        CODEC.encode_server_frame(frame)
    encoded = time.perf_counter()
    for _ in range(rounds):
        CODEC.decode_server_frame(sessions_pb2.SessionResponse.FromString(raw))
    decoded = time.perf_counter()
    return {
        "encode_us_per_grant": round((encoded - began) / (rounds * 500) * 1e6, 2),
        "parse_and_decode_us_per_grant": round((decoded - encoded) / (rounds * 500) * 1e6, 2),
    }


async def main() -> None:
    items = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    figures: dict[str, Any] = {"items": items, **codec(items)}
    for capacity in (1, 10, 100, 1_000):
        # With one place each item is two frames: that is what a frame costs.
        figures[f"capacity_{capacity}"] = await whole(items // 20 if capacity == 1 else items, capacity)
    print(json.dumps(figures))


if __name__ == "__main__":
    asyncio.run(main())
