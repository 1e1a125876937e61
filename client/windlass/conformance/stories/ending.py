"""Stories of faults, of coordinators that leave, and of the runner's own end."""

from __future__ import annotations

import grpc

from windlass.conformance.rules import Duty
from windlass.conformance.scene import PATIENCE, Scene, grant_of
from windlass.coordinator.v1 import sessions_pb2 as pb

# Every fault of the contract for which the runner keeps its instance, and one that it cannot know.
FAULTS = (
    "ATTACHED_ALREADY",
    "ATTACH_EXPECTED",
    "ATTACH_INVALID",
    "ATTACH_PENDING",
    "BEAT_OUT_OF_ORDER",
    "CREDIT_INVALID",
    "DATABASE_AWAY",
    "FLOOD",
    "GRANTS_SEEN_INVALID",
    "HELD_EXCEEDED",
    "INTERNAL",
    "KEY_INVALID",
    "KEY_SESSIONS_EXCEEDED",
    "MODULE_INVALID",
    "NAME_TOO_LONG",
    "NOT_READING",
    "SERVER_STOPPING",
    "SUPERSEDED",
    "TOO_MANY_SESSIONS",
    "A_FAULT_OF_A_LATER_VERSION",
)
STATUSES = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.INTERNAL,
    # The coordinator has ended the stream, and gives no reason.
    grpc.StatusCode.OK,
)
# A field of a later version: number 1000, text.
LATER_FIELD = b"\xc2\x3e\x05later"


async def faults(scene: Scene) -> None:
    """A fault ends the stream and nothing else."""
    first = await scene.stream(0)
    lease, instance_id = await scene.grant_held(first), first.instance_id
    for reason in FAULTS:
        stream = await scene.stream(0)
        stream.send_fault(reason)
        again = await scene.next_stream(stream, Duty.FAULT_REATTACHES)
        assert again.attach is not None
        is_kept = again.instance_id == instance_id and lease.message() in again.attach.held
        scene.judge.check(
            Duty.FAULT_REATTACHES, is_kept, f"after {reason} it came as another instance or without its lease"
        )
    await scene.revoke(await scene.stream(0), lease)


async def streams_end_with_a_status(scene: Scene) -> None:
    """The runner treats each like a lost connection, also one that a person has to mend."""
    first, rule = await scene.stream(0), Duty.STATUS_REATTACHES
    lease, instance_id = await scene.grant_held(first), first.instance_id
    for code in STATUSES:
        stream = await scene.stream(0, rule)
        stream.cut(code)
        again = await scene.next_stream(stream, rule)
        assert again.attach is not None
        is_kept = again.instance_id == instance_id and lease.message() in again.attach.held
        scene.judge.check(rule, is_kept, f"after {code.name} it came as another instance or without its lease")
    await scene.revoke(await scene.stream(0), lease)


async def coordinator_drains(scene: Scene) -> None:
    """The leases stay, and so does the stream until the coordinator ends it."""
    stream = await scene.stream(0)
    lease = await scene.grant_held(stream)
    stream.send(drain=True)
    await scene.beats_after(stream, 2, Duty.SERVER_DRAIN)
    scene.judge.check(Duty.SERVER_DRAIN, lease.is_named_by(stream) and not stream.is_over, "the lease was given up")
    await scene.revoke(stream, lease)
    stream.cut()
    await scene.stream(0)


async def frames_of_a_later_version(scene: Scene) -> None:
    stream = await scene.stream(0)
    later = pb.SessionResponse.FromString(LATER_FIELD)
    later.control.MergeFromString(LATER_FIELD)
    stream.send_message(later)
    stream.send_message(pb.SessionResponse())
    await scene.beats_after(stream, 2, Duty.UNKNOWN_FIELDS)
    scene.judge.check(Duty.UNKNOWN_FIELDS, not stream.is_over, "the stream was given up")


async def runner_drains(scene: Scene) -> None:
    """SIGTERM: nothing new begins, what runs is finished or released, and the process ends."""
    assert scene.process is not None
    first, second = await scene.stream(0), await scene.stream(1)
    lease = await scene.grant_held(first)
    scene.process.terminate()
    for stream in (first, second):
        await scene.until(Duty.DRAIN_SAID, lambda stream=stream: stream.is_draining, "no frame says drain")  # type: ignore[misc]
    # Such a grant may have been on its way when the runner said that it drains.
    late = scene.lease()
    second.send(grants=(grant_of(late, scene.quick),))
    code = await scene.process.wait(scene.drain_seconds)
    scene.judge.check(Duty.DRAIN_ENDS, code == 0, f"the exit code is {code}, after {scene.drain_seconds:g} s at most")
    outcomes = {report.WhichOneof("outcome") for report in scene.reports(lease)}
    scene.judge.check(Duty.DRAIN_ENDS, outcomes in ({"released"}, {"succeeded"}), f"work was reported as {outcomes}")
    await scene.until(Duty.DRAIN_ENDS, lambda: first.is_over and second.is_over, "a stream is still open", PATIENCE)
    outcomes = {report.WhichOneof("outcome") for report in scene.reports(late)}
    is_kept = outcomes == {"released"} or (not outcomes and scene.refusal(late) is not None)
    seen = f"a grant was not refused, and reported as {outcomes}"
    scene.judge.check(Duty.DRAIN_REFUSES, is_kept, seen)


STORIES = (faults, streams_end_with_a_status, coordinator_drains, frames_of_a_later_version)
