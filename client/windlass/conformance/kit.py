"""Tells the stories to one runner, and says which rules it keeps."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from windlass.conformance.coordinator import KitCoordinator, Policy
from windlass.conformance.outputs import KitOutputs
from windlass.conformance.pace import Pace
from windlass.conformance.rules import OF_CALLING, OF_DEFERRING, OF_THE_PROCESS, Duty, Judge, StoryEnds
from windlass.conformance.runner_process import RunnerProcess
from windlass.conformance.scene import KitWork, Scene
from windlass.conformance.stories import LAST_STORY, STORIES, KitStory

# A runner needs this long to start, whatever it is written in.
START_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.05
# How often a story is told before the kit gives up on a machine that is too slow for it.
TRIES: Final = 3


@dataclass(frozen=True)
class KitPlan:
    """What is examined, and how."""

    # The command that starts the runner. "": somebody starts it by hand.
    command: str
    # HOST:PORT of each coordinator that the kit plays.
    listen: Sequence[str]
    quick: KitWork
    slow: KitWork
    drain_seconds: float
    # Where the runner's own output goes.
    log: Path
    # The names of the stories to tell. Empty: all.
    stories: Sequence[str] = ()
    # None: the runner has no module that defers its work.
    deferring: KitWork | None = None
    # None: the runner has no module that names what it calls.
    calling: KitWork | None = None

    def chosen(self) -> list[KitStory]:
        told = (*STORIES, LAST_STORY) if self.command else STORIES
        return [story for story in told if not self.stories or story.__name__ in self.stories]


async def examine(plan: KitPlan, say: Callable[[str], None]) -> bool:
    """True when every rule is kept. `say` is called with each line of the account."""
    judge = Judge()
    with tempfile.TemporaryDirectory(prefix="windlass-conformance-") as place:
        key_file = Path(place) / "runner.key"
        key_file.touch(mode=0o600)
        key_file.write_text(f"wl_runner_{secrets.token_hex(16)}")
        names = [f"coordinator-{index}" for index in range(len(plan.listen))]
        coordinators = [KitCoordinator(name, key_file.read_text, judge) for name in names]
        outputs = KitOutputs(key_file.read_text, judge)
        try:
            for coordinator, address in zip(coordinators, plan.listen, strict=True):
                await coordinator.start(address, outputs)
            addresses = [coordinator.address for coordinator in coordinators]
            process = RunnerProcess(plan.command, addresses, key_file, plan.log) if plan.command else None
            if process is None:
                say(f"start the runner with WINDLASS_COORDINATORS={','.join(addresses)}")
                say(f"and WINDLASS_RUNNER_KEY_FILE={key_file}")
            works = plan.quick, plan.slow, plan.deferring, plan.calling
            scene = Scene(coordinators, outputs, judge, *works, process=process, drain_seconds=plan.drain_seconds)
            await _tell(plan, scene, say)
        finally:
            for coordinator in coordinators:
                await coordinator.stop()
    return account(plan, judge, say)


async def _tell(plan: KitPlan, scene: Scene, say: Callable[[str], None]) -> None:
    try:
        for story in plan.chosen():
            say(story.__name__.replace("_", " "))
            if not await tell_in_time(story, scene, say):
                say("the runner does not attach to every coordinator, so the kit cannot go on")
                return
    finally:
        if scene.process is not None:
            await scene.process.kill()


async def tell_in_time(story: KitStory, scene: Scene, say: Callable[[str], None]) -> bool:
    """Tell it, and once more when a rule seems broken and the machine was too slow for the kit itself. False: the
    runner does not attach."""
    judge, breaches = scene.judge, {}
    for _ in range(TRIES):
        noted, pace = judge.noted(), Pace()
        watching = asyncio.create_task(pace.watch())
        try:
            if not await _begin(scene):
                return False
            await _tell_one(story, scene)
        finally:
            watching.cancel()
        if not pace.is_too_slow or judge.breaches == noted.breaches:
            return True
        breaches = judge.withdraw(noted)
        say(f"{'':8} the machine is too busy: the kit itself ran {pace.late_seconds:.1f} s late")
    for rule, seen in breaches.items():
        judge.undecided.setdefault(rule, []).extend(seen)
    return True


async def _tell_one(story: KitStory, scene: Scene) -> None:
    try:
        await story(scene)
    except StoryEnds:
        pass  # the judge has noted why
    if story is not LAST_STORY and scene.process is not None:
        scene.judge.check(Duty.RUNNER_LIVES, scene.process.is_running, f"it ended during: {story.__name__}")


async def _begin(scene: Scene) -> bool:
    """Bring the runner to an instance that holds nothing; start it (again) if need be."""
    scene.answer_by(Policy())
    old = {stream.instance_id for stream in scene.streams() if stream.attach is not None}
    if scene.process is not None and not scene.process.is_running:
        await scene.process.start()
    if await _has_fresh_sessions(scene, old):
        return True
    if scene.process is None or not old:
        return False
    # It was told that its instance has ended, and did not come back as another one.
    scene.judge.check(Duty.INSTANCE_FRESH, False, "no fresh instance attached to every coordinator")
    await scene.process.kill()
    await scene.process.start()
    return await _has_fresh_sessions(scene, old)


async def _has_fresh_sessions(scene: Scene, old: set[str]) -> bool:
    def are_fresh() -> bool:
        live = [scene.live(index) for index in range(len(scene.coordinators))]
        return all(each is not None and each.beats and each.instance_id not in old for each in live)

    for _ in range(int(START_SECONDS / LOOK_SECONDS)):
        if are_fresh():
            return True
        if scene.process is not None and not scene.process.is_running:
            return False
        for stream in scene.streams():
            if stream.is_live and stream.instance_id in old:
                stream.send_fault("INSTANCE_ENDED")
        await asyncio.sleep(LOOK_SECONDS)
    return False


def account(plan: KitPlan, judge: Judge, say: Callable[[str], None]) -> bool:
    """One line for each rule, and below a broken one what was seen. True when all are kept."""
    rules = [rule for rule in Duty if plan.command or rule not in OF_THE_PROCESS]
    rules = [rule for rule in rules if plan.deferring or rule not in OF_DEFERRING]
    rules = [rule for rule in rules if plan.calling or rule not in OF_CALLING]
    rules = [rule for rule in rules if rule not in judge.spared]
    if plan.stories:
        # Other stories would show the other rules.
        rules = [rule for rule in rules if judge.cases[rule] or rule in judge.undecided]
    say("")
    for rule in rules:
        breaches = judge.breaches.get(rule, [])
        verdict = "kept" if judge.is_kept(rule) else "BROKEN" if breaches else "NOT SEEN"
        say(f"{verdict:8} {rule.name:24} {rule.value}")
        for seen in breaches[:3]:
            say(f"{'':8} {'':24} but: {seen}")
        if not breaches and (undecided := judge.undecided.get(rule)):
            say(f"{'':8} {'':24} the machine was too busy to tell; seen: {undecided[0]}")
    kept = sum(map(judge.is_kept, rules))
    say(f"\n{kept} of {len(rules)} rules are kept")
    return kept == len(rules) > 0
