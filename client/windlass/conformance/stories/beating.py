"""Stories of beats, silence and the self-fence."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

from windlass.conformance.coordinator import BEAT, SELF_FENCE, Policy
from windlass.conformance.rules import Duty
from windlass.conformance.scene import SLACK, Scene


async def beats_are_timely(scene: Scene) -> None:
    """The runner keeps to the times of the answer, and sends a full beat when it is asked to."""
    stream = await scene.stream(0)
    stream.policy = Policy(answers_beats=False)
    await scene.until(Duty.BEAT_TIMELY, lambda: stream.is_beat_pending, "no beat came", 3 * BEAT)
    stream.answer_beat(wants_full=True)
    stream.policy = Policy()
    first = stream.beats
    await scene.beats_after(stream, 4, Duty.BEAT_FULL_WANTED)
    longest = max(later - earlier for earlier, later in pairwise(stream.beat_times[first - 1 :]))
    scene.judge.check(Duty.BEAT_TIMELY, longest <= 2 * BEAT, f"{longest:.2f} s between two beats, not {BEAT:g}")


async def lease_is_named_until_its_end(scene: Scene) -> None:
    stream = await scene.stream(0)
    lease = await scene.grant_held(stream)
    await scene.beats_after(stream, 2)
    scene.judge.check(Duty.BEAT_HELD, lease.is_named_by(stream), "a lease that is held is not named any more")
    await scene.revoke(stream, lease)


async def coordinator_is_silent(scene: Scene) -> None:
    """A stream on which nothing comes is replaced."""
    stream = await scene.stream(0)
    stream.policy = Policy(answers_beats=False)
    await scene.until(Duty.SILENCE, lambda: stream.is_beat_pending, "no beat came", 3 * BEAT)
    silent_from = time.monotonic()
    await scene.until(Duty.SILENCE, lambda: stream.is_over, "the silent stream is still open", 3 * BEAT + SLACK)
    after = time.monotonic() - silent_from
    scene.judge.check(Duty.SILENCE, after >= 1.5 * BEAT, f"the stream was given up after {after:.2f} s already")
    await scene.next_stream(stream)
    await scene.stream(0)


async def beats_are_heard_but_not_answered(scene: Scene) -> None:
    """Nothing new begins past the self-fence; what runs goes on, and no stream is given up."""
    first, second = await scene.stream(0), await scene.stream(1)
    running = await scene.grant_held(first)
    for stream in (first, second):
        stream.policy = Policy(answers_beats=False, says_heard=True)
    await asyncio.sleep(SELF_FENCE + 2 * BEAT)
    for stream in (first, second):
        scene.judge.check(Duty.BEAT_HEARD, not stream.is_over, "the stream was given up")
    late = await scene.grant(first, scene.quick)
    await scene.is_not_begun(Duty.SELF_FENCE, late, "work that was granted past the self-fence was done")
    for stream in (first, second):
        stream.policy = Policy()
        if stream.is_beat_pending and not stream.is_over:
            stream.answer_beat()
    await scene.beats_after(first, 2)
    is_kept = running.is_named_by(first) and not scene.reports(running)
    scene.judge.check(Duty.FENCE_SPARES_RUNNING, is_kept, "work that ran was given up")
    await scene.revoke(first, running)


STORIES = (beats_are_timely, lease_is_named_until_its_end, coordinator_is_silent, beats_are_heard_but_not_answered)
