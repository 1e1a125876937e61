"""Another holder goes on."""

from services.coordinator.core.decision import RefusalReason
from services.coordinator.core.values import FailureReason
from tests.support.story import Story, names, node


def two_running():
    story = Story([node("a"), node("b"), node("c")])
    story.start()
    story.assign("a", instance="i1")
    story.assign("b", instance="i2")
    return story


def test_live_runs_are_adopted_and_none_is_granted_again():
    story = two_running()
    assert names(story.adopt("i1", "i2", epoch=7)) == ["ExecutionAdopted"]
    assert (story.execution.epoch, story.execution.holder, story.ready) == (7, "c2", ["c"])
    assert names(story.succeed("a")) == ["RunSucceeded"]


def test_runs_of_the_dead_are_lost():
    story = two_running()
    decision = story.adopt("i2")
    assert names(decision) == ["ExecutionAdopted", "RunLost"]
    assert story.ready == ["c", "a"]


def test_an_execution_that_was_ending_ends_if_nobody_is_left():
    story = two_running()
    story.cancel()
    decision = story.adopt()
    assert names(decision) == ["ExecutionAdopted", "RunLost", "RunLost", "ExecutionFinished"]
    assert decision.events[1].reason is FailureReason.STOPPED


def test_an_older_holder_is_refused():
    story = two_running()
    story.adopt("i1", "i2", epoch=7)
    for epoch in (6, 7):
        assert story.adopt("i1", "i2", epoch=epoch).refusal.reason is RefusalReason.STALE_EPOCH


def test_a_finished_one_is_refused():
    story = Story()
    story.start()
    assert story.adopt().refusal.reason is RefusalReason.EXECUTION_FINAL


def test_start_happens_once_and_first():
    story = Story([node("a")])
    assert story.cancel().refusal.reason is RefusalReason.NOT_STARTED
    assert story.state == "PENDING"
    story.start()
    assert story.start().refusal.reason is RefusalReason.ALREADY_STARTED
