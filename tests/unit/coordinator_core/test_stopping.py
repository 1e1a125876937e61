"""An execution may end before its graph does: cancelled, out of time, or failed fast."""

import pytest

from services.coordinator.core.commands import Cancel, ReportStopped
from services.coordinator.core.decision import RefusalReason
from services.coordinator.core.effects import StopRun, parking, resume_effects
from services.coordinator.core.state import ReportFinished
from services.coordinator.core.summary import summary
from services.coordinator.core.values import ErrorClass, FailureReason
from tests.support.story import BEGIN, SECOND, Story, begun, chain, edge, names, node, started, the_event

SLEEP = node("s", "sleep@1", config={"duration": "60s"})


def running(*more, **document):
    story = started(node("a"), node("b"), *more, **document)
    story.assign("a", "b")
    return story


def stopped_by(decision):
    """The nodes whose work the order cancelled, and those that were skipped or blocked and go no further."""
    order = the_event("StopOrdered", decision)
    return [key.node for key in order.cancelled], [key.node for key in order.passed_over]


def test_cancel_with_nothing_running_is_final_at_once():
    story = started(node("a"), SLEEP, node("z"), edges=chain("a", "z"))
    decision = story.cancel()
    assert names(decision) == ["StopOrdered", "RunCancelled", "ExecutionFinished"]
    assert stopped_by(decision) == (["a"], [])
    assert (story.state, story.execution.error.message) == ("CANCELLED", "enough")
    assert story.run("s").state.value == "CANCELLED"
    assert summary(story.execution)[:5] == ((), (), (), (), ("a", "s", "z"))
    assert isinstance(story.effects[-1], ReportFinished)


def test_cancel_tells_what_runs_and_waits_for_its_answers():
    story = running(node("c"), SLEEP)
    assert names(story.cancel()) == ["StopOrdered", "RunCancelled"]
    assert story.effects == [StopRun(2, 3, "i1", "CANCELLED"), StopRun(3, 4, "i1", "CANCELLED")]
    assert (story.state, story.ready, parking(story.execution, story.now)) == ("RUNNING", [], None)
    assert names(story.when(ReportStopped(2, 3, start_time=5, end_time=6))) == ["RunCancelled"]
    assert names(story.succeed("b")) == ["RunSucceeded", "ExecutionFinished"]
    assert (story.state, story.run("a").start_time) == ("CANCELLED", 5)
    assert summary(story.execution).succeeded == ("b",)


def test_cancel_is_final_without_the_runners_after_its_term():
    story = running()
    story.cancel()
    assert story.execution.next_wake() == story.now + 1_500_000
    assert names(story.wake()) == ["RunCancelled", "RunCancelled", "ExecutionFinished"]
    assert story.state == "CANCELLED"
    assert story.when(ReportStopped(1, 2)).refusal.reason is RefusalReason.EXECUTION_FINAL


def test_nothing_follows_from_what_is_reported_while_it_ends():
    story = running(node("next"), edges=[*chain("a", "next")])
    story.cancel()
    assert names(story.release("b")) == ["RunReleased"]
    assert story.ready == []
    assert the_event("RunFailed", story.fail("a", ErrorClass.TRANSIENT)).reason is FailureReason.STOPPED
    assert story.state == "CANCELLED"


def test_a_rendered_config_comes_too_late():
    story = begun(node("s", "sleep@1", config={"duration": "{{ input }}"}))
    story.cancel()
    assert names(story.succeed("s", b'{"duration":"1s"}')) == ["RunCancelled", "ExecutionFinished"]


def test_cancel_in_backoff_is_final_at_once():
    story = running()
    story.fail("a", ErrorClass.TRANSIENT)
    story.succeed("b")
    decision = story.cancel()
    assert names(decision) == ["StopOrdered", "ExecutionFinished"]
    assert stopped_by(decision) == (["a"], [])


def test_execution_that_was_cancelled_in_the_queue_does_no_work():
    story = Story([node("a"), SLEEP])
    decision = story.start(cancel=Cancel("m", "changed my mind", "ann"))
    assert names(decision) == ["ExecutionStarted", "StopOrdered", "ExecutionFinished"]
    assert (story.state, len(story.execution.runs)) == ("CANCELLED", 0)


def test_execution_whose_time_is_over_before_it_starts_does_no_work():
    story = Story([node("a")])
    assert names(story.start(deadline=story.now)) == ["ExecutionStarted", "StopOrdered", "ExecutionFinished"]
    assert story.state == "TIMEOUT"


def test_execution_whose_time_is_over_ends_when_its_runners_have_answered():
    story = running(SLEEP, timeout="10s")
    assert story.execution.next_wake() == BEGIN + 10 * SECOND
    decision = story.wake()
    assert names(decision) == ["StopOrdered", "RunCancelled"]
    assert story.execution.stop.error.message == "not done 10 s after it was created"
    story.succeed("a")
    assert names(story.succeed("b")) == ["RunSucceeded", "ExecutionFinished"]
    assert (story.state, story.execution.error.type) == ("TIMEOUT", "TIMEOUT")


def test_the_asked_for_deadline_wins_over_the_workflows():
    story = Story([node("a")], timeout="10s")
    story.start(deadline=BEGIN + 5 * SECOND)
    assert story.execution.next_wake() == BEGIN + 5 * SECOND


def test_a_deadline_that_passes_with_other_timers_is_all_that_counts():
    story = started(node("s", "sleep@1", config={"duration": "10s"}), node("t"), edges=chain("s", "t"), timeout="9s")
    story.later(20)
    assert names(story.tick()) == ["StopOrdered", "RunCancelled", "ExecutionFinished"]


def test_a_sleep_that_ended_in_the_same_tick_is_not_cancelled():
    story = started(node("s", "sleep@1", config={"duration": "1s"}), node("t"), edges=chain("s", "t"), timeout="9s")
    story.later(20)
    assert names(story.tick()) == ["WaitEnded", "RunSucceeded", "StopOrdered", "ExecutionFinished"]
    assert summary(story.execution).succeeded == ("s",)


def test_what_was_skipped_in_the_tick_that_ends_it_has_no_run():
    story = started(SLEEP, node("t"), node("u"), edges=[edge("s", "t", "failure"), edge("t", "u")], timeout="61s")
    story.later(70)
    decision = story.tick()
    assert names(decision) == ["WaitEnded", "RunSucceeded", "StopOrdered", "ExecutionFinished"]
    assert stopped_by(decision) == ([], ["t"])
    assert story.states == {"s": "SUCCEEDED", "t": "SKIPPED", "u": "IDLE"}


def test_a_deadline_passes_unnoticed_once_it_ends():
    story = running(timeout="1s")
    story.cancel()
    story.later(1.2)
    assert story.tick().events == []
    assert story.state == "RUNNING"


def test_what_would_begin_in_the_decision_that_fails_fast_never_begins():
    story = started(node("h"), SLEEP, node("bad"), edges=[edge("h", "s", "failure")], onFailure="FAIL_FAST")
    for instance in ("i1", "i2"):
        story.assign("h", "bad", instance=instance)
        story.lose(instance)
    story.assign("h", "bad", instance="i3")
    # One runner dies with both. The failure of h lets the sleep begin, and the failure of bad ends the execution.
    decision = story.lose("i3")
    assert names(decision) == ["RunLost", "RunLost", "StopOrdered", "ExecutionFinished"]
    assert [key.node for key in the_event("RunLost", decision, "h").then.begun] == ["s"]
    assert stopped_by(decision) == (["s"], [])
    assert story.states == {"h": "FAILED", "s": "CANCELLED", "bad": "FAILED"}


def test_a_successor_finds_in_the_journal_what_is_owed():
    story = running()
    assert resume_effects(story.again().execution) == []
    story.cancel()
    orders = story.effects
    assert [type(effect) for effect in orders] == [StopRun, StopRun]
    assert resume_effects(story.again().execution) == orders
    story.adopt("i1")
    assert resume_effects(story.again().execution) == orders
    story.wake()
    assert [type(effect) for effect in story.effects] == [ReportFinished]
    stops = [StopRun(each.number, each.epoch, each.instance_id, "LEASE_ENDED") for each in orders]
    assert resume_effects(story.again().execution) == [*stops, *story.effects], "no runner has said that it stopped"
    assert (story.state, story.execution.error.type) == ("CANCELLED", "CANCELLED")


@pytest.mark.parametrize("id", ["a", "b"])
def test_a_failure_during_the_end_does_not_change_what_it_ends_as(id):
    story = running(onFailure="FAIL_FAST")
    story.cancel()
    story.fail(id)
    story.wake()
    assert story.state == "CANCELLED"


ONE, OTHER = (f"cancel:an-id:{name}#{'0' * 32}" for name in ("one", "other"))


@pytest.mark.parametrize("is_successor", [False, True], ids=["the same holder", "a successor"])
def test_a_late_copy_of_a_cancel_does_not_end_the_execution_again_after_it_was_reopened(is_successor):
    story = started(SLEEP)
    assert names(story.cancel(ONE)) == ["StopOrdered", "RunCancelled", "ExecutionFinished"]
    story.retry()
    if is_successor:
        story = story.again()
    copy = story.cancel(ONE)
    assert (copy.events, copy.refusal, story.state) == ([], None, "WAITING")
    assert names(story.cancel(OTHER)) == ["StopOrdered", "RunCancelled", "ExecutionFinished"]


def test_a_late_copy_of_a_cancel_that_came_while_it_was_ending_changes_nothing_either():
    story = running()
    story.cancel(ONE)
    second = story.cancel(OTHER)
    assert (names(second), second.refusal) == (["CommandChangedNothing"], None)
    story.wake()
    assert story.state == "CANCELLED"
    story.retry()
    assert (story.cancel(OTHER).events, story.state) == ([], "RUNNING")


def test_a_late_copy_of_a_cancel_that_came_after_the_end_changes_nothing_once_the_execution_was_reopened():
    story = begun(node("a"))
    late = Cancel("cancel:an-id:late", "enough", "ann", seen_seq=story.execution.seq)
    story.fail("a")
    assert (story.when(late).events, story.state) == ([], "FAILED"), "a journal ends with its end"
    story.retry()
    copy = story.again().when(late)
    assert (copy.events, copy.refusal.reason) == ([], RefusalReason.EXECUTION_FINAL)
    seen = Cancel("cancel:an-id:new", "enough", "ann", seen_seq=story.execution.seq)
    assert names(story.when(seen)) == ["StopOrdered", "ExecutionFinished"]


def test_a_cancel_is_carried_out_that_was_given_between_the_end_and_a_reopening_that_was_asked_for():
    story = begun(node("a"))
    story.fail("a")
    cancel = Cancel("cancel:an-id:one", "enough", "ann", seen_seq=story.execution.seq)
    story.retry()
    assert names(story.when(cancel)) == ["StopOrdered", "ExecutionFinished"]


def test_the_cancel_of_a_parent_takes_effect_once_also_in_a_child_that_was_reopened_before_it_came():
    """A parent does not know what its child has done, so its cancel names no event of the child."""
    story = begun(node("a"))
    cancel = Cancel(f"cancel:the-child:the-parent#{'0' * 32}", "its parent ended before it", "ann")
    story.fail("a")
    assert (story.when(cancel).events, story.state) == ([], "FAILED"), "a journal ends with its end"
    story.retry()
    assert names(story.when(cancel)) == ["StopOrdered", "ExecutionFinished"]
    assert story.state == "CANCELLED"
    story.retry(message_id="retry2")
    copy = story.again().when(cancel)
    assert (copy.events, copy.refusal, story.state) == ([], None, "RUNNING"), "a person has decided after it"


def test_many_cancels_of_an_execution_that_is_ending_write_nothing():
    story = running()
    story.cancel("cancel:an-id:1")
    for number in range(2, 10):
        again = story.cancel(f"cancel:an-id:{number}")
        assert (again.events, again.refusal) == ([], None), "they are repetitions of the first"


def test_a_late_copy_of_the_cancel_that_ended_it_in_the_queue_changes_nothing():
    story = Story([node("a")])
    story.start(cancel=Cancel(ONE, "changed my mind", "ann"))
    story.retry()
    assert (story.cancel(ONE).events, story.ready) == ([], ["a"])
