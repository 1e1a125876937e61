"""A paused execution begins nothing. What runs may finish, and what follows from it is kept."""

import pytest

from services.coordinator.core.commands import Assign, AssignedRun, Pause, Resume
from services.coordinator.core.decision import RefusalReason
from services.coordinator.core.effects import parking
from services.coordinator.core.fold.answers import ANSWERS_MAX, TOOK_EFFECT, answer_to, remember
from services.coordinator.core.summary import summary
from services.coordinator.core.values import ErrorClass
from tests.support.story import SECOND, Story, begun, chain, edge, fields, names, node, started, the_event

SLEEP = node("s", "sleep@1", config={"duration": "5s"})


def test_a_pause_says_who_and_why_and_since_when():
    story = started()
    story.later(3)
    paused = the_event("ExecutionPaused", story.pause())
    assert fields(paused, "time", "message_id", "caller", "reason") == (story.now, "pause1", "ann", "look first")
    assert (story.state, story.execution.paused_by) == ("PAUSED", ("ann", "look first", story.now))


def test_a_paused_execution_is_granted_nothing():
    story = started()
    story.pause()
    decision = story.assign()
    assert (decision.events, decision.refusal.reason) == ([], RefusalReason.EXECUTION_PAUSED)
    assert names(story.resume()) == ["ExecutionResumed"]
    assert (names(story.assign()), story.state) == (["RunLeased"], "RUNNING")


def test_what_runs_may_finish_and_what_follows_waits_for_the_resume():
    story = begun(
        node("a"), SLEEP, node("b"), node("c"), edges=[*chain("a", "s"), *chain("a", "b"), edge("a", "c", "x")]
    )
    story.pause()
    assert story.state == "PAUSED", "also while a run is under way"
    assert names(story.succeed("a")) == ["RunSucceeded", "WorkSkipped"], "the sleep does not begin"
    assert (story.state, story.ready, story.states["s"]) == ("PAUSED", ["b"], "BEGUN")
    assert names(story.resume()) == ["ExecutionResumed", "WaitStarted"]
    assert story.execution.next_wake() == story.now + 5 * SECOND


def test_timers_that_come_due_wait_and_fire_after_the_resume():
    story = started(SLEEP, node("a", retry={"attempts": 2}))
    story.assign("a")
    story.fail("a", ErrorClass.TRANSIENT)
    story.pause()
    assert story.execution.next_wake() == 0
    story.later(60)
    assert story.tick().events == []
    story.resume()
    assert story.execution.next_wake() <= story.now, "they are due at once"
    assert names(story.tick()) == ["BackoffEnded", "WaitEnded", "RunSucceeded"]


def test_a_backoff_that_begins_while_it_is_paused_waits_too():
    story = begun(node("a", retry={"attempts": 2}))
    story.pause()
    story.fail("a", ErrorClass.TRANSIENT)
    assert story.execution.next_wake() == 0
    story.resume()
    assert names(story.wake()) == ["BackoffEnded"]


def test_the_deadline_and_the_backstop_of_a_run_go_on():
    story = begun(node("a", timeout="10s"), node("b"), timeout="60s")
    story.pause()
    assert names(story.wake()) == ["RunFailed"], "its runner says nothing"
    story.succeed("b")
    assert names(story.wake()) == ["StopOrdered", "ExecutionFinished"]
    assert (story.state, story.execution.paused_by) == ("TIMEOUT", None)


def test_a_cancel_ends_a_paused_execution():
    story = begun(node("a"), SLEEP, edges=chain("a", "s"))
    story.pause()
    story.succeed("a")
    assert names(story.cancel()) == ["StopOrdered", "ExecutionFinished"]
    assert (story.state, summary(story.execution).cancelled) == ("CANCELLED", ("s",))


def test_an_execution_whose_last_run_ends_is_final_although_it_is_paused():
    story = begun()
    story.pause()
    assert names(story.succeed("a")) == ["RunSucceeded", "ExecutionFinished"]
    assert (story.state, story.execution.paused_by) == ("SUCCESS", None)


def test_a_paused_execution_without_live_runs_parks():
    story = begun(timeout="60s")
    story.pause()
    assert parking(story.execution, story.now) is None, "a is running"
    story.fail("a", ErrorClass.TRANSIENT)
    assert parking(story.execution, story.now) == story.execution.deadline, "it is woken by a message or its deadline"
    story.resume()
    assert parking(story.execution, story.now) is None


def test_a_successor_finds_it_paused():
    story = begun(node("a"), SLEEP, edges=chain("a", "s"))
    story.pause()
    story.succeed("a")
    after = story.again()
    after.adopt()
    assert (after.state, after.states["s"], after.execution.next_wake()) == ("PAUSED", "BEGUN", 0)
    assert names(after.resume()) == ["ExecutionResumed", "WaitStarted"]


def test_an_execution_that_was_paused_in_the_queue_begins_nothing():
    story = Story([SLEEP, node("a")])
    pause = Pause("p", "ann", "later")
    assert names(story.start(pause=pause)) == ["ExecutionStarted", "ExecutionPaused"]
    again = story.when(pause)
    assert (again.events, again.refusal) == ([], None), "the message in the mailbox is the same pause"
    assert (story.state, story.ready, story.states["s"]) == ("PAUSED", ["a"], "BEGUN")
    assert names(story.resume()) == ["ExecutionResumed", "WaitStarted"]


def test_a_pause_of_a_paused_execution_changes_nothing():
    story = started()
    story.pause()
    before = story.execution.paused_by
    again = story.pause("another")
    assert (names(again), again.refusal) == (["CommandChangedNothing"], None)
    assert (story.state, story.execution.paused_by) == ("PAUSED", before)


@pytest.mark.parametrize("is_after_takeover", [False, True])
def test_a_pause_that_changed_nothing_does_not_pause_an_execution_that_was_resumed_since(is_after_takeover):
    story = started()
    story.pause()
    story.pause("another")
    story.resume()
    if is_after_takeover:
        story = story.again()
    repeat = story.pause("another")
    assert (repeat.events, repeat.refusal, story.state) == ([], None, "RUNNING")


@pytest.mark.parametrize("is_after_takeover", [False, True])
def test_a_repeated_command_gets_its_first_answer(is_after_takeover):
    story = started()
    first = story.resume()
    assert names(first) == ["CommandRefused"]
    assert first.refusal.reason is RefusalReason.EXECUTION_NOT_PAUSED
    story.pause()
    if is_after_takeover:
        story = story.again()
    for repeat, answer in ((story.resume(), first.refusal), (story.pause(), None)):
        assert (repeat.events, repeat.refusal) == ([], answer)
    assert story.state == "PAUSED", "a repeat of the refused resume does not resume it"


def test_the_newest_answers_of_each_kind_are_remembered():
    story = started()
    remember(story.execution, "signal:e:paid")
    for number in range(ANSWERS_MAX + 1):
        remember(story.execution, f"complete.{number}:e:done")
    assert answer_to(story.execution, "complete.0:e:done") is None
    assert answer_to(story.execution, "complete.1:e:done") == TOOK_EFFECT
    assert answer_to(story.execution, "signal:e:paid") == TOOK_EFFECT


@pytest.mark.parametrize("command", [Pause("p", "ann"), Resume("r", "ann")])
def test_an_execution_that_ends_or_has_ended_takes_no_command(command):
    story = begun()
    story.cancel()
    ending = story.when(command)
    assert (names(ending), ending.refusal.reason) == (["CommandRefused"], RefusalReason.EXECUTION_FINAL)
    story.wake()
    ended = story.when(type(command)("other", "ann"))
    assert (ended.events, ended.refusal.reason) == ([], RefusalReason.EXECUTION_FINAL), "a journal ends with its end"


def test_a_late_copy_of_a_pause_that_came_after_the_end_is_refused_once_the_execution_was_reopened():
    story = begun(node("a"))
    late = Pause("pause:r1", "ann", seen_seq=story.execution.seq)
    story.fail("a")
    assert (story.when(late).events, story.state) == ([], "FAILED")
    story.retry()
    copy = story.when(late)
    assert (names(copy), copy.refusal.reason) == (["CommandRefused"], RefusalReason.EXECUTION_FINAL)
    assert story.execution.paused_by is None
    assert names(story.when(Pause("pause:r2", "ann", seen_seq=story.execution.seq))) == ["ExecutionPaused"]


def test_a_late_copy_of_a_pause_that_comes_after_the_resume_does_not_pause_it_again():
    story = started()
    pause = Pause("pause:r1", "ann")
    assert names(story.when(pause)) == ["ExecutionPaused"]
    story.resume()
    assert (story.when(pause).events, story.execution.paused_by) == ([], None)
    assert names(story.when(Pause("pause:r2", "ann"))) == ["ExecutionPaused"]


def test_a_grant_that_was_prepared_before_the_pause_is_refused():
    story = started()
    prepared = Assign([AssignedRun(story.work("a"), "i1", "r")])
    story.pause()
    assert story.when(prepared).refusal.reason is RefusalReason.EXECUTION_PAUSED


def under(request: str, content: str) -> str:
    """The message id of a command with this request id and content."""
    return f"resume:{request}#{content * 32}"


def test_a_command_with_the_request_id_of_another_one_is_refused_and_the_first_answer_stays():
    story = begun(node("a"))
    story.pause()
    assert names(story.when(Resume(under("r1", "a"), "ann"))) == ["ExecutionResumed"]
    reused = story.when(Resume(under("r1", "b"), "ann"))
    assert (names(reused), reused.refusal.reason) == (["CommandRefused"], RefusalReason.REQUEST_ID_REUSED)
    again = story.when(Resume(under("r1", "a"), "ann"))
    assert (again.events, again.refusal) == ([], None)
    refused = story.when(Resume(under("r2", "a"), "ann"))
    assert refused.refusal.reason is RefusalReason.EXECUTION_NOT_PAUSED
    story.pause()
    assert story.when(Resume(under("r2", "a"), "ann")).refusal == refused.refusal
