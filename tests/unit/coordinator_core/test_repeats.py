"""repeat@1: turns, one after the other, until an expression is true."""

import pytest

from services.coordinator.core.commands import CompleteRun
from services.coordinator.core.effects import parking
from services.coordinator.core.loop_outputs import output_parts
from tests.support.loops import LARGE, left_to_somebody_else, repeat, turns
from tests.support.story import SECOND, begun, names, started


def test_a_repeat_takes_turns_until_its_expression_is_true():
    story = started(repeat())
    decision = turns(story, "false", "false", "true")
    assert names(decision) == ["RunSucceeded", "LoopClosed", "RunSucceeded", "ExecutionFinished"]
    assert story.run("r").output == b'{"output":{"turn":3},"iterations":3}'


def test_the_runner_of_a_turn_is_given_the_expression():
    story = started(repeat("output.n > 5"))
    (work,) = story.execution.ready
    assert (work.node.until, work.is_templated) == ("output.n > 5", True)
    story.assign()
    assert [effect.item for effect in story.effects] == [None]


def test_too_many_turns_fail_a_repeat():
    story = started(repeat(maxIterations=2))
    turns(story, "false", "false")
    error = story.execution.error
    assert (story.state, error.node, error.type) == ("FAILED", "r", "MAX_ITERATIONS")


def test_a_delay_between_turns_is_a_wait():
    story = started(repeat(delay="60s"))
    assert names(turns(story, "false")) == ["RunSucceeded", "WaitStarted"]
    assert (story.state, parking(story.execution, story.now)) == ("WAITING", story.now + 60 * SECOND)
    assert names(story.wake()) == ["WaitEnded", "LoopContinued"]
    assert story.ready_items == [2]
    turns(story, "true")
    assert story.state == "SUCCESS"


def test_no_delay_follows_the_last_turn():
    story = started(repeat(delay="60s", maxIterations=1))
    turns(story, "false")
    assert story.state == "FAILED"


def test_a_cancel_ends_a_repeat_that_waits():
    story = started(repeat(delay="60s"))
    turns(story, "false")
    assert names(story.cancel()) == ["StopOrdered", "RunCancelled", "ExecutionFinished"]
    assert (story.state, story.execution.loops) == ("CANCELLED", {})


def test_a_turn_that_fails_ends_the_repeat():
    story = started(repeat())
    turns(story, "false")
    story.assign()
    story.fail("r", item=2)
    assert (story.state, story.execution.error.message) == ("FAILED", "iteration 2: r went wrong 42 times")


def test_whoever_completes_a_turn_says_whether_the_loop_goes_on():
    story = started(repeat())
    for item, branch in ((1, ""), (2, "true")):
        story.assign()
        left_to_somebody_else(story, "r", item)
        story.when(CompleteRun(f"m{item}", "", story.run("r", item).number, b"%d" % item, branch))
    assert (story.state, story.run("r").output) == ("SUCCESS", b'{"output":2,"iterations":2}')


def test_a_large_last_turn_is_stored():
    story = started(repeat())
    story.assign()
    story.succeed("r", LARGE, "true", item=1)
    (loop,) = story.execution.unstored.values()
    assert list(output_parts(story.execution, loop)) == [b'{"output":', LARGE, b',"iterations":1}']


@pytest.mark.parametrize(
    "config", [b'{"maxIterations":0}', b'{"maxIterations":10001}', b'{"delay":"soon"}', b'{"maxIterations":true}']
)
def test_a_rendered_config_that_makes_no_sense_fails_the_repeat(config):
    story = begun(repeat(delay="{{ input.wait }}"))
    story.succeed("r", config)
    assert (story.state, story.execution.error.type) == ("FAILED", "INVALID_CONFIG")
