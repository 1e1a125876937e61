"""Stories of streams that begin, break, and begin again."""

from __future__ import annotations

import asyncio
import time

from windlass.conformance.coordinator import BEAT, IDEMPOTENT_GRACE, Policy
from windlass.conformance.rules import Duty
from windlass.conformance.scene import PATIENCE, SLACK, Scene

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


async def coordinators_are_away(scene: Scene) -> None:
    """A network or all coordinators are away for a moment. It costs the runner nothing."""
    first, second = await scene.stream(0), await scene.stream(1)
    lease, before = await scene.grant_held(first), len(scene.streams())
    for coordinator in scene.coordinators:
        coordinator.policy = Policy(is_away=True)
    first.cut()
    second.cut()
    away_seconds = IDEMPOTENT_GRACE * 2 / 3
    await asyncio.sleep(away_seconds)
    scene.answer_by(Policy())
    seen, seconds = "the runner did not attach to any coordinator", IDEMPOTENT_GRACE - away_seconds + SLACK
    await scene.until(Duty.GRACE, lambda: len(scene.streams()) > before, seen, seconds)
    again = await scene.next_stream(first)
    assert again.attach is not None
    is_kept = again.instance_id == first.instance_id and lease.message() in again.attach.held
    scene.judge.check(Duty.GRACE, is_kept, "it came as another instance, or without its lease")
    await scene.beats_after(await scene.stream(0), 2)
    is_kept = lease.is_named_by(again) and not scene.reports(lease)
    scene.judge.check(Duty.GRACE_SPARES_RUNNING, is_kept, "work that ran was given up")
    await scene.revoke(await scene.stream(0), lease)


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
    coordinators_are_away,
    attach_is_partly_refused,
    coordinator_refuses_sessions,
)
