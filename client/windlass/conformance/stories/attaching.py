"""Stories of streams that begin, break, and begin again."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from statistics import median

from windlass.conformance.coordinator import (
    BEAT,
    CLOSED_GRACE,
    GRANTED_AGAIN,
    IDEMPOTENT_GRACE,
    SELF_FENCE,
    TERM,
    TIMES,
    Policy,
)
from windlass.conformance.rules import Duty
from windlass.conformance.scene import PATIENCE, SLACK, Scene

# A coordinator that refuses is watched for this time.
REFUSING_SECONDS = 3.0
DIALS_PER_SECOND_MAX = 20
# The reasons for which the answer to an Attach refuses a lease.
REFUSALS = ("LEASE_UNKNOWN", "EPOCH_STALE", "LEASE_ENDED")
IMPOSSIBLE = {
    "no times": None,
    "no time between two beats": {**TIMES, "beat": 0.0},
    "a negative time between two beats": {**TIMES, "beat": -BEAT},
    "beats that are too rare for the self-fence": {**TIMES, "beat": 0.6 * SELF_FENCE},
    "a self-fence after the term": {**TIMES, "self_fence": TERM},
    "a term that ends when the work is granted again": {**TIMES, "term": GRANTED_AGAIN},
    "a negative grace": {**TIMES, "idempotent_grace": -IDEMPOTENT_GRACE},
    "idempotent work that is granted again last": {**TIMES, "idempotent_grace": 2 * CLOSED_GRACE},
}


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


async def attach_is_not_answered(scene: Scene) -> None:
    """The runner waits for the self-fence of the coordinator that it knows, and tries again."""
    stream, rule = await scene.stream(0), Duty.ATTACHED_MISSING
    scene.coordinators[0].policy = Policy(answers_attach=False)
    stream.cut()
    silent = await scene.next_stream(stream)
    since = time.monotonic()
    await scene.until(rule, lambda: silent.is_over, "the stream is still open", SELF_FENCE + BEAT + SLACK)
    after = time.monotonic() - since
    scene.judge.check(rule, after >= SELF_FENCE / 2, f"the stream was given up after {after:.2f} s already")
    await scene.next_stream(silent, rule)
    scene.coordinators[0].policy = Policy()


async def times_are_impossible(scene: Scene) -> None:
    """Such a coordinator is not used. It costs the runner nothing that it has of another one."""
    second, rule = await scene.stream(1), Duty.TIMING_INVALID
    lease = await scene.grant_held(second)
    for name, times in IMPOSSIBLE.items():
        first = await scene.stream(0)
        scene.coordinators[0].policy = Policy(times=times)
        first.cut()
        wrong = await scene.next_stream(first)
        await scene.until(rule, lambda wrong=wrong: wrong.is_over, f"the stream with {name} is still used", 2 * BEAT)  # type: ignore[misc]
        scene.coordinators[0].policy = Policy()
    await scene.beats_after(second, 2)
    is_kept = lease.is_named_by(second) and not scene.reports(lease)
    scene.judge.check(rule, is_kept, "work of the other coordinator was given up")
    await scene.revoke(second, lease)


async def times_change(scene: Scene) -> None:
    """Coordinators have new settings. The runner beats half as often from the next answers on."""
    scene.answer_by(Policy(times={name: 2 * seconds for name, seconds in TIMES.items()}))
    for index in (0, 1):
        (await scene.stream(index)).cut()
    stream, rule = await scene.stream(0), Duty.TIMING_NEWEST
    await scene.stream(1)
    first = stream.beats
    await scene.until(rule, lambda: stream.beats >= first + 4, "beats are missing", 4 * 4 * BEAT)
    between = median(later - earlier for earlier, later in pairwise(stream.beat_times[first:]))
    scene.judge.check(rule, between > 1.5 * BEAT, f"{between:.2f} s between two beats, not {2 * BEAT:g}")
    scene.answer_by(Policy())


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
    """The work of refused leases is given up, whatever the reason."""
    stream = await scene.stream(0)
    leases = [await scene.grant_held(stream) for _ in REFUSALS]
    reasons = {lease.lease_id: reason for lease, reason in zip(leases, REFUSALS, strict=True)}
    scene.coordinators[0].policy = Policy(refused_leases=reasons)
    stream.cut()
    again = await scene.next_stream(stream)
    rule = Duty.ATTACH_REFUSAL

    def named() -> bool:
        return any(lease.is_named_by(again) for lease in leases)

    await scene.until(rule, lambda: again.beats >= 2 and not named(), "beats still name a refused lease")
    are_reported = lambda: any(map(scene.reports, leases))  # noqa: E731
    await scene.never(rule, are_reported, "a refused lease was reported", 2 * BEAT)
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
    attach_is_not_answered,
    times_are_impossible,
    times_change,
    stream_breaks,
    coordinators_are_away,
    attach_is_partly_refused,
    coordinator_refuses_sessions,
)
