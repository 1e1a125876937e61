"""A story is judged by the clock only while the machine lets the kit itself run in time."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.pace import stall
from windlass.conformance.kit import TRIES, KitPlan, account, tell_in_time
from windlass.conformance.outputs import KitOutputs
from windlass.conformance.rules import Duty, Judge
from windlass.conformance.scene import KitWork, Scene, told
from windlass.coordinator.v1 import sessions_pb2 as pb

# Longer than any pause that a machine makes by itself, and than the kit puts up with.
STALL_SECONDS = 0.5


async def told_by(stalls: Sequence[float], *, breaks: Sequence[bool]) -> tuple[Judge, int]:
    """The judge after a story, and how often it was told. Each time stalls the kit, and breaks a rule or not."""
    judge, times = Judge(), 0
    work = KitWork("noop@1")
    outputs = KitOutputs(lambda: "key", judge)
    scene = Scene([], outputs, judge, work, work, None, None, process=None, drain_seconds=1.0)

    async def story(scene: Scene) -> None:
        nonlocal times
        stall(stalls[times])
        times += 1
        scene.judge.check(Duty.SILENCE, not breaks[times - 1], "the silent stream is still open")

    assert await tell_in_time(story, scene, lambda line: None)
    return judge, times


def lines_of(judge: Judge) -> str:
    """The account of a kit that has told only some stories."""
    work = KitWork("noop@1")
    lines: list[str] = []
    plan = KitPlan("", [], work, work, 1.0, Path("log"), stories=["coordinator_is_silent"])
    assert account(plan, judge, lines.append) is not bool(judge.breaches or judge.undecided)
    return "\n".join(lines)


async def test_breach_on_a_machine_that_is_fast_enough_is_one() -> None:
    judge, times = await told_by([0.0], breaks=[True])
    assert (times, judge.is_kept(Duty.SILENCE)) == (1, False)
    assert "BROKEN   SILENCE" in lines_of(judge)


async def test_breach_while_the_kit_itself_was_late_is_looked_at_again() -> None:
    judge, times = await told_by([STALL_SECONDS, 0.0], breaks=[True, False])
    assert (times, judge.is_kept(Duty.SILENCE), judge.cases[Duty.SILENCE]) == (2, True, 1)
    assert "kept     SILENCE" in lines_of(judge)


async def test_breach_that_comes_again_in_time_is_one() -> None:
    judge, times = await told_by([STALL_SECONDS, 0.0], breaks=[True, True])
    assert (times, judge.breaches) == (2, {Duty.SILENCE: ["the silent stream is still open"]})


async def test_machine_that_is_always_too_busy_breaks_no_rule_and_shows_none() -> None:
    judge, times = await told_by([STALL_SECONDS] * TRIES, breaks=[True] * TRIES)
    assert (times, judge.is_kept(Duty.SILENCE), judge.breaches) == (TRIES, False, {})
    said = lines_of(judge)
    assert "NOT SEEN SILENCE" in said
    assert "too busy to tell; seen: the silent stream is still open" in said


async def test_runner_that_ended_is_never_put_down_to_a_busy_machine() -> None:
    judge = Judge()
    noted = judge.noted()
    judge.check(Duty.RUNNER_LIVES, False, "it ended during: a story")
    judge.check(Duty.SILENCE, False, "the silent stream is still open")
    assert judge.withdraw(noted) == {Duty.SILENCE: ["the silent stream is still open"]}
    assert judge.breaches == {Duty.RUNNER_LIVES: ["it ended during: a story"]}
    judge.check(Duty.RUNNER_LIVES, True, "")
    assert not judge.is_kept(Duty.RUNNER_LIVES)


async def test_story_that_went_well_is_not_told_again_however_late_the_kit_was() -> None:
    judge, times = await told_by([STALL_SECONDS], breaks=[False])
    assert (times, judge.is_kept(Duty.SILENCE)) == (1, True)


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (pb.RunReport(), "nothing"),
        (
            pb.RunReport(target="h:1", failed=pb.RunReport.Failed(type="OUTPUT_STORE", message="no\nplace")),
            "failed type=OUTPUT_STORE message=no place target=h:1",
        ),
        (
            pb.RunReport(succeeded=pb.RunReport.Succeeded(branch="b", output=pb.Output(ref=pb.OutputRef(key="k")))),
            'succeeded output=ref {   key: "k" } branch=b',
        ),
    ],
)
def test_account_says_what_a_report_says_of_its_work(report: pb.RunReport, said: str) -> None:
    report.head.lease_id = "a name that says nothing of the work"
    assert " ".join(told(report).split()) == " ".join(said.split())
