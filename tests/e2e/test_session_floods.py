"""Holders break the protocol of the session, or never stop sending, on the wire of a running stack.

A hand-made client with a rightful key stands beside the stack's own runner and coordinator, at both hops. It is told
its fault in the words of the protocol. Nobody else is harmed: the services go on, runs keep their leases, started
executions end, the memory of the flooded process is bounded, and no row changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import psutil
import psycopg
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.chassis.grpc.errors import remote_error
from services.chassis.identity.callers import ServiceCredential
from services.chassis.lease.frames import HEARD_ITEMS_MAX, HELD_MAX, NAME_MAX, REPORTS_FLOOD
from tests.support.api import Client
from tests.support.nested import with_tag
from tests.support.probe import eventually, some
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import executions_pb2, resources_pb2
from windlass.coordinator.v1 import sessions_pb2 as runs
from windlass.dispatcher.v1 import sessions_pb2 as executions
from windlass.types.v1 import session_pb2

# The promised time for the answer to a wrong frame.
ANSWER_SECONDS = 1.0
# The longest time for a flood. It is not promised, and only makes the test end.
FLOOD_SECONDS = 60.0
GROWTH_BYTES_MAX = 100 * 1024 * 1024
UNKNOWN_ID = "01a1ef02-cd5c-7fc1-ac68-79b46e7a0574"
FRAMES = 20_000
ROOT = Path(__file__).resolve().parents[2]
FULL_FRAMES = 50
SESSIONS = 300


class Target(NamedTuple):
    """A hop of a running stack, in either of the two services."""

    service: str
    address: str
    metadata: list[tuple[str, str]]
    database_url: str

    @property
    def hop(self) -> Hop:
        return HOPS[self.service]


class Hop(NamedTuple):
    service: str
    method: str
    table: str
    frame: Any
    answer: Any
    report: Any

    def metadata(self, stack: Stack) -> list[tuple[str, str]]:
        if self.service == "coordinator":
            return stack.metadata("runner")
        return list(ServiceCredential.from_file(stack.service_secret_file(), "coordinator").metadata)

    def on(self, stack: Stack) -> Target:
        address = stack.member(self.service).grpc
        return Target(self.service, address, self.metadata(stack), stack.superuser_url())


HOPS = {
    "coordinator": Hop(
        "coordinator",
        "/windlass.coordinator.v1.RunnerSessions/Session",
        "coordinator.runner_sessions",
        runs.SessionRequest,
        runs.SessionResponse,
        runs.RunReport,
    ),
    "dispatcher": Hop(
        "dispatcher",
        "/windlass.dispatcher.v1.CoordinatorSessions/Session",
        "dispatcher.coordinator_sessions",
        executions.SessionRequest,
        executions.SessionResponse,
        executions.ExecutionReport,
    ),
}


class Session:
    """One stream on which a test sends any frames."""

    def __init__(self, target: Target, seconds: float) -> None:
        self.hop = hop = target.hop
        self.instance_id = str(uuid.uuid4())
        self._channel = grpc.aio.insecure_channel(target.address)
        call: Any = self._channel.stream_stream(
            hop.method,
            request_serializer=lambda frame: frame if isinstance(frame, bytes) else frame.SerializeToString(),
            response_deserializer=hop.answer.FromString,
        )
        self.call = call(metadata=target.metadata, timeout=seconds)

    async def say(self, *frames: Any) -> None:
        """Write the frames until the server ends the stream."""
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            for frame in frames:
                await self.call.write(frame)

    async def attach(self) -> None:
        await self.say(attach_of(self.hop, self.instance_id))
        while not (await self.heard()).control.HasField("attached"):
            pass

    async def heard(self) -> Any:
        answer = await self.call.read()
        assert answer is not grpc.aio.EOF, await self.call.code()
        return answer

    async def fault(self) -> str:
        """The reason that the last frame gives."""
        reason = ""
        while (answer := await self.call.read()) is not grpc.aio.EOF:
            reason = answer.control.fault.reason
        assert await self.call.code() is grpc.StatusCode.OK
        return reason

    async def close(self) -> None:
        self.call.cancel()
        await self._channel.close()


@contextlib.asynccontextmanager
async def session(target: Target, seconds: float = ANSWER_SECONDS) -> AsyncIterator[Session]:
    made = Session(target, seconds)
    try:
        yield made
    finally:
        await made.close()


def attach_of(hop: Hop, instance_id: str) -> Any:
    return control_of(hop, attach={"holder": "stranger", "instance_id": instance_id})


def control_of(hop: Hop, **fields: Any) -> Any:
    return hop.frame(control=fields)


def report_of(hop: Hop, number: int, lease_id: str, epoch: int) -> Any:
    report = hop.report()
    report.head.report_id, report.head.lease_id, report.head.epoch = str(number), lease_id, epoch
    report.released.reason = "DRAINING"
    return report


def stranger_of(hop: Hop) -> str:
    """A lease that was never granted."""
    return f"{UNKNOWN_ID}.1" if hop.service == "coordinator" else UNKNOWN_ID


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack() as stack:
        client = Client(stack)
        await client.apply("short", [{"id": "a", "module": "noop@1"}])
        await client.apply("long", [{"id": "a", "module": "delay@1", "config": {"duration": "60s"}}])
        await client.run("short")
        yield stack


@pytest.fixture(params=sorted(HOPS))
def hop(request: pytest.FixtureRequest) -> Hop:
    return HOPS[request.param]


# ── one wrong frame ──────────────────────────────────────────────────────────────────────────────────────────────────


def held_of(hop: Hop, count: int) -> Any:
    frame = control_of(hop, beat={"number": 1, "full": True})
    frame.control.beat.held.extend([session_pb2.Lease(epoch=1)] * count)
    return frame


# Some frames, sent before or after an attach. The tests of the rules have the answer to each frame in each state.
WRONG: dict[str, tuple[bool, Callable[[Hop], Any], str]] = {
    "nothing": (False, lambda hop: hop.frame(), "ATTACH_EXPECTED"),
    "a second attach": (True, lambda hop: attach_of(hop, "second"), "ATTACHED_ALREADY"),
    "too many reports": (
        True,
        lambda hop: hop.frame(reports=[report_of(hop, 1, stranger_of(hop), 1)] * (REPORTS_FLOOD + 1)),
        "FLOOD",
    ),
    "too many leases": (True, lambda hop: held_of(hop, HELD_MAX + 1), "HELD_EXCEEDED"),
}


@pytest.mark.parametrize("case", sorted(WRONG))
async def test_wrong_frame_is_told_and_ends_the_stream(stack: Stack, hop: Hop, case: str) -> None:
    is_attached, make, reason = WRONG[case]
    frame = make(hop)
    before = await rows(stack)
    async with session(hop.on(stack)) as holder:
        if is_attached:
            await holder.attach()
        await holder.say(frame)
        assert await holder.fault() == reason
    assert await rows(stack) == before


# No item has fewer than two bytes. A list in any other place of a frame is counted in the same way.
REFUSED = {
    "no frame": (b"\xff\xff\xff\xff", "INVALID_ARGUMENT", "INVALID_REQUEST"),
    "a million reports": (b"\x12\x00" * 1_000_000, "RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE"),
    "a million leases": (with_tag(1, with_tag(2, b"\x1a\x00" * 1_000_000)), "RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE"),
}


@pytest.mark.parametrize("what", sorted(REFUSED))
async def test_bytes_that_break_the_protocol_end_the_stream_alone(stack: Stack, hop: Hop, what: str) -> None:
    """They are refused with a status before they are read. Other callers are served meanwhile."""
    frame, code, reason = REFUSED[what]
    async with session(hop.on(stack)) as holder:
        await holder.attach()
        saying = asyncio.create_task(holder.say(frame))
        await assert_serving(stack)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await holder.fault()
        await saying
        found = remote_error(refused.value)
        assert (found.code.name, found.reason) == (code, reason), found
    await assert_serving(stack)


# ── reports of what it does not have ─────────────────────────────────────────────────────────────────────────────────


async def test_reports_of_what_is_not_its_own_are_refused(stack: Stack, hop: Hop) -> None:
    client = Client(stack)
    async with under_way(stack) as run:
        lease_id = run.id if hop.service == "coordinator" else run.execution_id
        told = [
            report_of(hop, 1, stranger_of(hop), 1),
            report_of(hop, 2, "' OR 1=1", 1),
            report_of(hop, 3, lease_id, 0),
            report_of(hop, 4, lease_id, -1),
            report_of(hop, 5, lease_id, 2**62),
        ]
        if hop.service == "coordinator":
            # The epoch is right, the instance is not.
            told.append(report_of(hop, 6, lease_id, run.holder_epoch))
            told.append(report_of(hop, 7, lease_id, run.holder_epoch))
            told[-1].failed.SetInParent()
            setattr(told[-1].failed, "class", 99)
        async with session(hop.on(stack)) as holder:
            await holder.attach()
            await holder.say(hop.frame(), hop.frame(reports=told), hop.frame())
            refused: dict[str, str] = {}
            while len(refused) < len(told):
                answer = (await holder.heard()).control
                assert not answer.taken_reports
                refused |= {each.report_id: each.reason for each in answer.refused_reports}
            assert set(refused.values()) <= {"LEASE_UNKNOWN", "EPOCH_STALE", "REPORT_UNKNOWN"}
        (again,) = await client.runs_of(run.execution_id)
        assert (again.state, again.attempt) == (resources_pb2.Run.RUNNING, 1)


# ── floods ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def bad_reports(target: Target) -> None:
    """Answered one by one."""
    frames = [
        target.hop.frame(reports=[report_of(target.hop, number, stranger_of(target.hop), 1)]).SerializeToString()
        for number in range(FRAMES)
    ]
    async with session(target, FLOOD_SECONDS) as holder:
        await holder.attach()
        saying = asyncio.create_task(holder.say(*frames))
        refused = 0
        while refused < FRAMES:
            answer = await holder.call.read()
            if answer is grpc.aio.EOF or answer.control.HasField("fault"):
                break
            refused += len(answer.control.refused_reports)
        await saying


async def reports_unread(target: Target) -> None:
    """The names are large, so that the answers fill the buffers. The holder is given up as if it had gone."""
    reports = [report_of(target.hop, number, stranger_of(target.hop), 1) for number in range(100)]
    for report in reports:
        report.head.report_id = report.head.report_id.rjust(NAME_MAX, "0")
    frame = target.hop.frame(reports=reports).SerializeToString()
    async with session(target, FLOOD_SECONDS) as holder:
        await holder.attach()
        saying = asyncio.create_task(holder.say(*[frame] * 1_000))
        await eventually(lambda: has_ended(target, holder.instance_id), FLOOD_SECONDS, "its end")
        saying.cancel()
        await asyncio.wait([saying])


async def empty_frames(target: Target) -> None:
    async with session(target, FLOOD_SECONDS) as holder:
        await holder.attach()
        await holder.say(*[b""] * FRAMES)


async def notes_and_refusals(target: Target) -> None:
    """Notes and refusals about leases that the holder never had; the server answers none of them."""
    frame = control_of(target.hop)
    for _ in range(100):
        frame.control.refusals.add(lease_id=stranger_of(target.hop), epoch=1, reason="NOT_HELD")
    if target.hop.service == "coordinator":
        frame.progress.extend([runs.RunProgress(run_id=stranger_of(target.hop), epoch=1, cursor=b"1")] * 100)
    else:
        frame.message_acks.extend([f"none{number}" for number in range(100)])
    async with session(target, FLOOD_SECONDS) as holder:
        await holder.attach()
        # It also beats: a holder without beats is ended as silent, however much else it sends.
        for number in range(1, 101):
            await holder.say(*[frame.SerializeToString()] * 10)
            await holder.say(control_of(target.hop, beat={"number": number, "full": True}))
            while (await holder.heard()).control.beat.number != number:
                pass


async def full_frames(target: Target) -> None:
    """Beats with as many items as a frame may have."""
    note: Any = "none" if target.hop.service == "dispatcher" else runs.RunProgress(run_id="none", fraction=1.0)
    frame = control_of(target.hop, beat={"full": True})
    frame.control.beat.held.extend([session_pb2.Lease(lease_id=stranger_of(target.hop), epoch=1)] * HELD_MAX)
    notes = frame.message_acks if target.hop.service == "dispatcher" else frame.progress
    notes.extend([note] * (HEARD_ITEMS_MAX - HELD_MAX))
    async with session(target, FLOOD_SECONDS) as holder:
        await holder.attach()
        for number in range(1, FULL_FRAMES + 1):
            frame.control.beat.number = number
            await holder.say(frame)
            while (await holder.heard()).control.beat.number != number:
                pass


async def credit(target: Target) -> None:
    """Credit is raised and lowered, and never used."""
    async with session(target, FLOOD_SECONDS) as holder:
        await holder.attach()
        for number in range(1, FRAMES + 1):
            await holder.say(control_of(target.hop, credit={"number": number, "amount": 0}))


async def many_sessions(target: Target) -> None:
    """Half of them are dropped without a frame, the others as soon as they are attached."""
    for number in range(SESSIONS):
        async with session(target, FLOOD_SECONDS) as holder:
            if number % 2:
                await holder.attach()
            else:
                await holder.say(target.hop.frame())


FLOODS = {
    flood.__name__: flood
    for flood in (bad_reports, reports_unread, empty_frames, full_frames, notes_and_refusals, credit, many_sessions)
}


@contextlib.contextmanager
def flooding(flood: str, target: Target) -> Iterator[Any]:
    """Flood from a process of its own, so that only the server can be slow."""
    command = [sys.executable, "-m", "tests.e2e.test_session_floods", flood]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(target).encode())
        process.stdin.close()
        try:
            yield process
            assert process.wait() == 0
        finally:
            process.kill()


@pytest.mark.parametrize("flood", sorted(FLOODS))
async def test_flood_costs_nobody_else_anything(stack: Stack, hop: Hop, flood: str) -> None:
    client = Client(stack)
    pid, own = stack.pid(hop.service), await live_instances(stack)
    process = psutil.Process(pid)
    async with under_way(stack) as run:
        before, memory = await rows(stack), process.memory_info().rss
        started = 0
        with flooding(flood, hop.on(stack)) as stranger:
            while stranger.poll() is None:
                await assert_refusing(client)
                execution = await client.run("short")
                assert execution.state == resources_pb2.Execution.SUCCESS
                await assert_serving(stack)
                started += 1
        grown = process.memory_info().rss - memory
        assert grown < GROWTH_BYTES_MAX
        assert stack.pid(hop.service) == pid
        # Each has the events of one start, one run and one end.
        after = await rows(stack)
        assert after["coordinator.executions"] == before["coordinator.executions"] + started
        assert after["coordinator.runs"] == before["coordinator.runs"] + started
        assert after["dispatcher.mailbox"] == before["dispatcher.mailbox"] == 0
        assert own <= await live_instances(stack)
        (again,) = await client.runs_of(run.execution_id)
        assert (again.state, again.attempt, again.holder_epoch) == (resources_pb2.Run.RUNNING, 1, run.holder_epoch)


# ── what is looked at ────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def under_way(stack: Stack) -> AsyncIterator[resources_pb2.Run]:
    """A run at the stack's own runner, until it is cancelled."""
    client = Client(stack)
    execution = await client.start("long")

    async def running() -> resources_pb2.Run | None:
        found = await client.runs_of(execution.id)
        return found[0] if found and found[0].state == resources_pb2.Run.RUNNING else None

    try:
        yield await eventually(running, FLOOD_SECONDS, "the run to be at its runner")
    finally:
        await client.cancel(execution.id)
        assert (await client.end_of(execution.id)).state == resources_pb2.Execution.CANCELLED


async def assert_refusing(client: Client) -> None:
    """Check that a caller with a wrong request is told so in time."""
    request = executions_pb2.StartExecutionRequest(workflow="ghost")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.executions.StartExecution(request, metadata=client.metadata, timeout=ANSWER_SECONDS)
    assert remote_error(refused.value).reason == "WORKFLOW_NOT_FOUND", refused.value


async def assert_serving(stack: Stack) -> None:
    for service in ("api", *HOPS):
        channel = stack.channel(service)
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        await channel.close()


async def rows(stack: Stack) -> dict[str, int]:
    return await stack.counts(
        "dispatcher.mailbox", *(f"coordinator.{name}" for name in ("executions", "runs", "journal"))
    )


async def live_instances(stack: Stack) -> set[str]:
    """The live instances of the stack's own coordinator and runner."""
    own = " UNION ALL ".join(f"SELECT * FROM {hop.table} WHERE holder <> 'stranger'" for hop in HOPS.values())
    found = await stack.rows(f"SELECT instance_id FROM ({own}) s WHERE state = 'LIVE'")
    assert len(found) == 2
    return {row[0] for row in found}


async def has_ended(target: Target, instance_id: str) -> bool:
    sql = f"SELECT state FROM {target.hop.table} WHERE instance_id = %s"
    async with await psycopg.AsyncConnection.connect(target.database_url) as connection:
        row = some(await (await connection.execute(sql.encode(), [instance_id])).fetchone())
    return bool(row[0] == "ENDED")


if __name__ == "__main__":
    service, address, metadata, database_url = json.load(sys.stdin)
    known = Target(service, address, [(name, value) for name, value in metadata], database_url)
    asyncio.run(FLOODS[sys.argv[1]](known))
