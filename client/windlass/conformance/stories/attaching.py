"""Stories of streams that begin, break, and begin again."""

from __future__ import annotations

import asyncio
import time

from windlass.conformance.coordinator import BEAT, Policy
from windlass.conformance.rules import Duty
from windlass.conformance.scene import PATIENCE, Scene

# A coordinator that refuses is watched for this time.
REFUSING_SECONDS = 3.0
DIALS_PER_SECOND_MAX = 20


async def runner_attaches_to_all(scene: Scene) -> None:
    """One instance has a session with each coordinator, and states credit there."""
    first, second = await scene.stream(0), await scene.stream(1)
    scene.judge.check(
        Duty.ATTACH_EVERYWHERE,
        first.instance_id == second.instance_id,
        f"the instances are {first.instance_id} and {second.instance_id}",
    )
    for stream in (first, second):
        await scene.until(Duty.CREDIT_STATED, lambda stream=stream: stream.credit > 0, "no credit is stated")  # type: ignore[misc]


async def answer_comes_late(scene: Scene) -> None:
    """Nothing is sent between the Attach and its answer."""
    stream = await scene.stream(0)
    scene.coordinators[0].policy = Policy(answers_attach=False)
    stream.cut()
    late = await scene.next_stream(stream)
    await asyncio.sleep(BEAT)
    scene.judge.check(Duty.ATTACH_WAITS, True, "")  # every frame before the answer is judged when it comes
    scene.coordinators[0].policy = Policy()
    if not late.is_over:
        late.policy = Policy()
        late.answer_attach()
    await scene.stream(0)


async def stream_breaks(scene: Scene) -> None:
    """The next Attach names the lease, and the other coordinator hears of the runner at once."""
    for _ in range(3):
        first, second = await scene.stream(0), await scene.stream(1)
        lease = await scene.grant_held(first)
        await scene.until(Duty.BEAT_TIMELY, lambda second=second: not second.is_beat_pending, "")  # type: ignore[misc]
        await scene.beats_after(second, 1)
        cut_at = time.monotonic()
        first.cut()
        again = await scene.next_stream(first)
        scene.judge.check(
            Duty.ATTACH_AGAIN, again.instance_id == first.instance_id, f"it came as instance {again.instance_id}"
        )
        assert again.attach is not None
        is_named = lease.message() in again.attach.held
        scene.judge.check(Duty.ATTACH_NAMES_LEASES, is_named, "the Attach does not name the lease that is held")
        await scene.beats_after(second, 1)
        await scene.revoke(await scene.stream(0), lease)
        # A beat may be in flight at the loss, and its successor would come soon in any case. One clear case is enough.
        if any(cut_at <= at <= cut_at + BEAT / 2 for at in second.beat_times):
            scene.judge.check(Duty.BEAT_ON_LOSS, True, "")
            return
    scene.judge.check(Duty.BEAT_ON_LOSS, False, f"no beat came within {BEAT / 2:g} s on the other stream, three times")


async def attach_is_partly_refused(scene: Scene) -> None:
    """The work of a refused lease is given up."""
    stream = await scene.stream(0)
    lease = await scene.grant_held(stream)
    scene.coordinators[0].policy = Policy(refused_leases={lease.lease_id})
    stream.cut()
    again = await scene.next_stream(stream)
    rule = Duty.ATTACH_REFUSAL
    await scene.until(
        rule, lambda: again.beats >= 2 and not lease.is_named_by(again), "beats still name the refused lease"
    )
    await scene.never(rule, lambda: scene.reports(lease), "the refused lease was reported", 2 * BEAT)
    scene.coordinators[0].policy = Policy()


async def coordinator_refuses_sessions(scene: Scene) -> None:
    """A runner that is refused pauses between its tries, and comes back later."""
    coordinator = scene.coordinators[1]
    stream = await scene.stream(1)
    coordinator.policy = Policy(attach_fault="TOO_MANY_SESSIONS")
    before = len(coordinator.streams)
    stream.cut()
    await asyncio.sleep(REFUSING_SECONDS)
    tries = len(coordinator.streams) - before
    is_kept = 0 < tries <= DIALS_PER_SECOND_MAX * REFUSING_SECONDS
    scene.judge.check(Duty.BACKOFF, is_kept, f"it was dialled {tries} times in {REFUSING_SECONDS:g} s")
    coordinator.policy = Policy()
    await scene.until(Duty.BACKOFF, lambda: scene.live(1), "the coordinator was not tried again", 2 * PATIENCE)


STORIES = (
    runner_attaches_to_all,
    answer_comes_late,
    stream_breaks,
    attach_is_partly_refused,
    coordinator_refuses_sessions,
)
