"""The fold: what it cannot apply is a bug and crashes; reading the timers changes nothing."""

import pytest

from services.coordinator.core import BrokenInvariant, Execution, evolve
from services.coordinator.core.events import ExecutionFinished, RunLeased, RunSucceeded
from services.coordinator.core.values import ExecutionState
from tests.support.story import EXECUTION_ID, Story, chain, names, node


def running():
    story = Story([node("a"), node("b")], chain("a", "b"))
    story.start()
    return story


@pytest.mark.parametrize(
    "event",
    [
        RunLeased(1, 2, "a", 0, 1, 1, "i", "r", ""),
        RunLeased(1, 1, "a", 1, 1, 1, "i", "r", ""),
        RunLeased(1, 1, "a", 0, 2, 1, "i", "r", ""),
        ExecutionFinished(1, ExecutionState.SUCCESS, b"{}", None, 0),
    ],
)
def test_an_event_that_contradicts_the_state_crashes(event):
    with pytest.raises(BrokenInvariant):
        evolve(running().execution, event)


@pytest.mark.parametrize(
    "event", [RunLeased(1, 1, "b", 0, 1, 1, "i", "r", ""), RunSucceeded(1, 1, b"{}", "", 0, 0, b"", b"", 0)]
)
def test_an_event_about_what_is_not_there_crashes(event):
    with pytest.raises(KeyError):
        evolve(running().execution, event)


def test_a_lease_that_says_nothing_of_it_is_as_idempotent_as_its_node():
    """As all were written before runners said so of their modules."""
    story = Story([node("a"), node("b", idempotent=True)])
    story.start()
    evolve(story.execution, RunLeased(1, 1, "a", 0, 1, 1, "i", "r", ""))
    evolve(story.execution, RunLeased(1, 2, "b", 0, 1, 1, "i", "r", ""))
    assert [run.is_idempotent for run in story.execution.runs] == [False, True]


def test_a_fresh_execution_waits_for_nothing():
    execution = Execution(EXECUTION_ID, running().definition)
    assert (execution.next_wake(), execution.state.value) == (0, "PENDING")


def test_a_timer_that_is_over_is_passed_by_among_those_that_are_due():
    story = Story([node("s", "sleep@1", config={"duration": "10s"}), node("a", timeout="30s"), node("b")])
    story.start()
    story.assign("a")
    story.succeed("a")
    story.later(60)
    assert len(story.execution.timers) == 2
    assert names(story.tick()) == ["SleepEnded"]


def test_the_second_failure_does_not_replace_the_first():
    story = Story([node("a"), node("b")])
    story.start()
    story.assign()
    story.fail("b")
    story.fail("a")
    assert story.execution.error.node == "b"


def test_an_ancestor_on_two_ways_is_seen_once():
    story = Story(
        [node("r"), node("a"), node("b"), node("z", inputs="{{ nodes }}")],
        [*chain("r", "a", "z"), *chain("r", "b", "z")],
    )
    assert story.definition.nodes[3].references == (0, 1, 2)
