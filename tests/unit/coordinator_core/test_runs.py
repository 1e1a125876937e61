"""Runs end in many ways: retries, deaths, hand-backs, late reports, timeouts, take-overs."""

from typing import Any

import pytest

from services.coordinator.core.commands import (
    Assign,
    AssignedRun,
    Release,
    ReportFailure,
    ReportProgress,
    ReportStarted,
    ReportStopped,
    ReportSuccess,
)
from services.coordinator.core.decision import RefusalReason
from services.coordinator.core.effects import StopRun, effects
from services.coordinator.core.handlers import handle
from services.coordinator.core.retry import DEATHS_MAX, HAND_BACKS_MAX, RetryPolicy
from services.coordinator.core.summary import summary
from services.coordinator.core.values import Error, ErrorClass, FailureReason, ReleaseReason
from tests.support.story import SECOND, Story, begun, edge, events, fields, names, node, started, the_event


def test_a_lease_says_whose_attempt_it_is():
    story = started(node("a"), node("b"))
    decision = story.when(
        Assign([AssignedRun(story.work("b"), "i7", "r7", "00-t-s-01"), AssignedRun(story.work("a"), "i8", "r8")])
    )
    assert events(decision, "node", "run", "attempt", "instance_id", "runner", "traceparent") == [
        ("RunLeased", "b", 1, 1, "i7", "r7", "00-t-s-01"),
        ("RunLeased", "a", 2, 1, "i8", "r8", ""),
    ]
    # The epoch of a run is the sequence number of its lease.
    assert [run.epoch for run in story.execution.runs] == [2, 3]
    assert story.ready == []


def test_a_work_is_not_leased_twice():
    story = started(node("a"), node("b"), edges=[edge("a", "b")])
    twice = story.when(Assign([AssignedRun(story.work("a"), "i", "r"), AssignedRun(story.work("a"), "i", "r")]))
    assert twice.refusal.reason is RefusalReason.NOT_READY
    assert story.when(Assign([AssignedRun(story.work("b"), "i", "r")])).refusal.reason is RefusalReason.NOT_READY
    story.assign("a")
    assert story.assign("a").refusal.reason is RefusalReason.NOT_READY
    assert story.when(Assign([])).events == []


def test_retries_with_backoff_until_the_attempts_are_used_up():
    story = begun()
    failed = the_event("RunFailed", story.fail("a", ErrorClass.TRANSIENT, random=0.5))
    assert (failed.retry_time, failed.reason) == (story.now + SECOND // 2, None)
    assert (story.state, story.ready) == ("WAITING", [])
    assert story.execution.next_wake() == failed.retry_time
    assert story.tick().events == [], "never early"
    assert names(story.wake()) == ["BackoffEnded"]
    assert story.tick().events == [], "never twice"
    story.assign("a")
    assert story.run("a").attempt == 2
    failed = the_event("RunFailed", story.fail("a", ErrorClass.TIMEOUT, retry_after=9 * SECOND))
    assert failed.retry_time == story.now + 9 * SECOND
    story.wake()
    story.assign("a")
    last = story.fail("a", ErrorClass.TRANSIENT)
    assert names(last) == ["RunFailed", "ExecutionFinished"]
    assert the_event("RunFailed", last).reason is FailureReason.MAX_RETRIES
    assert [run.state.value for run in story.execution.runs] == ["FAILED"] * 3
    assert (story.execution.retries, story.state) == (2, "FAILED")


def test_a_retry_without_delay_is_due_at_once_and_once():
    story = begun(node("a", retry={"initialDelay": "0s", "attempts": 4}))
    for _ in range(3):
        story.fail("a", ErrorClass.TRANSIENT)
        assert story.execution.next_wake() == story.now
        assert names(story.tick()) == ["BackoffEnded"]
        story.assign("a")
    assert the_event("RunFailed", story.fail("a", ErrorClass.TRANSIENT)).reason is FailureReason.MAX_RETRIES


def test_the_budget_counts_from_the_first_grant():
    story = begun(node("a", retry={"attempts": 50, "budget": "10s"}))
    story.later(9.5)
    assert the_event("RunFailed", story.fail("a", ErrorClass.TRANSIENT)).reason is FailureReason.MAX_RETRIES


def test_the_policy_is_that_of_the_start():
    story = Story([node("a")])
    story.start(retry=RetryPolicy(attempts=1))
    story.assign("a")
    assert the_event("RunFailed", story.fail("a", ErrorClass.TRANSIENT)).reason is FailureReason.MAX_RETRIES


def test_an_open_circuit_costs_no_attempt():
    story = begun(node("a", retry={"attempts": 1}))
    for _ in range(5):
        assert the_event("RunFailed", story.fail("a", ErrorClass.CIRCUIT_OPEN)).reason is None
        story.wake()
        story.assign("a")
    assert story.work("a").failures == 0
    assert the_event("RunFailed", story.fail("a", ErrorClass.TRANSIENT)).reason is FailureReason.MAX_RETRIES


def test_a_dead_runners_work_is_ready_again_at_once():
    story = begun(node("a", idempotent=True), node("b"))
    assert names(story.lose(is_idempotent_only=True)) == ["RunLost"]
    assert story.ready == ["a"]
    assert story.lose("somebody else").events == []
    assert names(story.lose()) == ["RunLost"]
    assert story.ready == ["a", "b"]
    assert story.run("b").error.type == "RUNNER_LOST"
    story.assign("b")
    assert (story.run("b").attempt, story.effects[0].run.work.may_have_run_before) == (2, True)
    assert (story.work("b").failures, story.work("b").dead_instances) == (0, ("i1",))


def test_work_may_be_done_twice_when_its_node_says_so_or_its_runner_of_its_module():
    story = started(node("a", idempotent=True), node("b"), node("c"))
    leased = story.assign("a"), story.assign("b", is_idempotent=True), story.assign("c")
    assert [the_event("RunLeased", decision).is_idempotent for decision in leased] == [True, True, False]
    assert names(story.lose(is_idempotent_only=True)) == ["RunLost", "RunLost"]
    assert story.ready == ["a", "b"]
    # Another runner may have the module otherwise.
    story.assign("b", instance="i2")
    assert story.lose("i2", is_idempotent_only=True).events == []


def test_who_takes_an_execution_over_knows_what_may_be_done_twice():
    story = started(node("a"), node("b"))
    story.assign("a")
    story.assign("b", is_idempotent=True)
    successor = story.again()
    successor.adopt("i1")
    assert names(successor.lose(is_idempotent_only=True)) == ["RunLost"]
    assert successor.ready == ["b"]


def test_three_deaths_set_the_work_apart():
    story = begun(node("a", retry={"attempts": 100}), node("b"), edges=[edge("a", "b")])
    for number in (1, 2):
        story.lose(f"i{number}")
        story.assign("a", instance=f"i{number + 1}")
    decision = story.lose("i3")
    assert names(decision) == ["RunLost", "WorkBlocked", "ExecutionFinished"]
    assert the_event("RunLost", decision).reason is FailureReason.POISON
    assert story.run("a").state.value == "DLQ"
    assert story.execution.error.type == "POISON"
    assert summary(story.execution).failed == ("a",)


def test_an_instance_that_is_lost_with_the_same_work_again_counts_once():
    story = begun(node("a"))
    for _ in range(DEATHS_MAX):
        assert the_event("RunLost", story.lose("i1")).reason is None
        story.assign("a", instance="i1")
    assert story.work("a").dead_instances == ("i1",)


def test_a_run_that_had_not_begun_is_spared_the_death_that_another_may_have_caused():
    story = begun(node("busy"), node("fresh"))
    story.when(ReportStarted(1, story.run("busy").epoch, story.now))
    assert events(story.lose(has_begun_runs=True), "node", "is_spared") == [
        ("RunLost", "busy", False),
        ("RunLost", "fresh", True),
    ]
    assert story.ready == ["busy", "fresh"]
    assert (story.work("busy").dead_instances, story.work("fresh").dead_instances) == (("i1",), ())


def test_without_any_run_that_had_begun_a_death_is_charged_to_all():
    story = begun(node("a"), node("b"))
    assert events(story.lose(), "node", "is_spared") == [("RunLost", "a", False), ("RunLost", "b", False)]


def test_work_that_ends_its_runners_before_it_is_known_to_have_begun_is_spared_once():
    story = begun(node("a"))
    for number in range(1, DEATHS_MAX + 1):
        event = the_event("RunLost", story.lose(f"i{number}", has_begun_runs=True))
        assert fields(event, "is_spared", "reason") == (number == 1, None)
        story.assign("a", instance=f"i{number + 1}")
    last = the_event("RunLost", story.lose(f"i{DEATHS_MAX + 1}", has_begun_runs=True))
    assert fields(last, "is_spared", "reason") == (False, FailureReason.POISON)


def test_a_run_that_had_not_begun_is_spared_also_when_a_successor_finds_its_runner_dead():
    story = begun(node("busy"), node("fresh"))
    story.when(ReportStarted(1, story.run("busy").epoch, story.now))
    story.adopt()
    assert (story.work("busy").dead_instances, story.work("fresh").dead_instances) == (("i1",), ())


def test_failures_and_deaths_are_counted_apart():
    story = begun(node("a", retry={"attempts": 5}))
    for number in (1, 2):
        story.lose(f"i{number}")
        story.assign("a", instance=f"i{number + 1}")
        story.fail("a", ErrorClass.TRANSIENT)
        story.wake()
        story.assign("a", instance=f"i{number + 1}")
    assert (story.work("a").failures, story.work("a").dead_instances) == (2, ("i1", "i2"))
    assert the_event("RunFailed", story.fail("a", ErrorClass.TRANSIENT)).reason is None
    story.wake()
    story.assign("a", instance="i3")
    assert the_event("RunLost", story.lose("i3")).reason is FailureReason.POISON


def test_a_poisoned_work_with_a_failure_edge_is_handled():
    story = begun(node("a"), node("h"), edges=[edge("a", "h", "failure")])
    for number in (1, 2):
        story.lose(f"i{number}")
        story.assign("a", instance=f"i{number + 1}")
    story.lose("i3")
    assert story.ready == ["h"]


@pytest.mark.parametrize("reason", ReleaseReason)
def test_a_run_handed_back_costs_nothing(reason):
    story = begun(node("a", retry={"attempts": 1}))
    for attempt in range(1, 6):
        assert story.run("a").attempt == attempt
        assert names(story.release("a", reason)) == ["RunReleased"]
        assert story.run("a").state.value == "CANCELLED"
        story.assign("a")
        assert not story.effects[0].run.work.may_have_run_before
    assert (story.work("a").failures, story.work("a").dead_instances) == (0, ())


def test_the_runner_that_hands_work_back_is_kept_from_it_for_longer_each_time():
    story = begun()
    waits = []
    for _ in range(13):
        again_time = story.release("a").events[0].again_time
        assert story.work("a").barred == (("i1", again_time),)
        assert story.again().work("a").barred == (("i1", again_time),), "a successor does not know it"
        waits.append((again_time - story.now) / SECOND)
        assert story.work("a").is_barred("i1", again_time - 1)
        assert not story.work("a").is_barred("i2", again_time - 1)
        story.later(waits[-1])
        assert not story.work("a").is_barred("i1", story.now)
        story.assign("a")
    assert waits == [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_each_runner_is_kept_from_the_work_that_it_handed_back():
    story = begun()
    first = story.release("a").events[0].again_time
    story.assign("a", instance="i2")
    second = story.release("a").events[0].again_time
    assert story.work("a").barred == (("i1", first), ("i2", second))
    story.later(0.5)
    story.assign("a", instance="i3")
    assert story.release("a").events[0].again_time == story.now + SECOND
    assert story.work("a").barred == (("i3", story.now + SECOND),), "the others may have it again"


def test_a_run_handed_back_with_a_cursor_goes_on_from_it():
    story = begun()
    run = story.run("a")
    command = Release(run.number, run.epoch, ReleaseReason.REFUSED, may_have_begun=True, cursor=b'{"row":7}')
    assert names(story.when(command)) == ["RunProgressed", "RunReleased"]
    assert story.again().work("a").cursor == b'{"row":7}'
    story.assign("a")
    assert story.effects[0].run.work.cursor == b'{"row":7}'
    story.release("a")
    assert story.work("a").cursor == b'{"row":7}'


def test_an_attempt_goes_on_from_the_cursor_that_came_with_the_failure():
    story = begun()
    run = story.run("a")
    error = Error(ErrorClass.TRANSIENT, "BOOM", "half way")
    failure = ReportFailure(run.number, run.epoch, error, 0.5, cursor=b'{"row":7}')
    assert names(story.when(failure)) == ["RunProgressed", "RunFailed"]
    story.wake()
    story.assign("a")
    assert story.effects[0].run.work.cursor == b'{"row":7}'
    assert names(story.fail("a", ErrorClass.TRANSIENT)) == ["RunFailed"], "without a cursor the last one stays"
    assert story.again().work("a").cursor == b'{"row":7}'


def test_a_failure_with_the_cursor_that_was_told_before_says_nothing_new():
    story = begun()
    run = story.run("a")
    story.when(ReportProgress(run.number, run.epoch, 0.5, "", b'{"row":7}'))
    failure = ReportFailure(run.number, run.epoch, Error(ErrorClass.TRANSIENT, "BOOM", ""), 0.5, cursor=b'{"row":7}')
    assert names(story.when(failure)) == ["RunFailed"]


def test_what_the_coordinator_takes_back_keeps_nobody_from_the_work():
    story = begun()
    assert story.release("a", ReleaseReason.WITHDRAWN).events[0].again_time == 0
    assert (story.work("a").barred, story.work("a").hand_backs) == ((), 0)


def test_work_that_is_handed_back_without_end_fails():
    story = begun(node("a", retry={"attempts": 2}))
    for _ in range(HAND_BACKS_MAX):
        assert names(story.release("a")) == ["RunReleased"]
        story.assign("a")
    failed = story.release("a").events[0]
    assert (failed.error.type, failed.reason) == ("HANDED_BACK", None)
    story.wake()
    story.assign("a")
    assert names(story.release("a")) == ["RunFailed", "ExecutionFinished"]


def test_a_run_handed_back_after_it_began_may_have_run_before():
    story = begun()
    story.release("a", may_have_begun=True)
    story.assign("a")
    assert story.effects[0].run.work.may_have_run_before


def test_the_same_report_again_has_the_first_answer():
    story = begun(node("a"), node("b"))
    run = story.run("a")
    story.succeed("a")
    for report in (
        ReportSuccess(1, run.epoch, b'{"other":1}'),
        ReportStopped(1, run.epoch),
        ReportStarted(1, run.epoch, 1),
    ):
        decision = story.when(report)
        assert (decision.events, decision.refusal) == ([], None)
    assert run.output == b'{"ok":true}'
    story.release("b")
    again = story.when(Release(2, story.run("b").epoch, ReleaseReason.DRAINED))
    assert (again.events, again.refusal) == ([], None)


def test_a_late_report_is_refused_after_regrant_and_recorded_once():
    story = begun()
    zombie = story.run("a")
    story.lose()
    story.assign("a", instance="i2")
    late = ReportSuccess(zombie.number, zombie.epoch, b'{"zombie":true}')
    decision = story.when(late)
    assert decision.refusal.reason is RefusalReason.LEASE_ENDED
    assert events(decision, "run", "epoch", "report") == [("LateReportRejected", 1, zombie.epoch, "ReportSuccess")]
    again = story.when(late)
    assert (again.events, again.refusal.reason) == ([], RefusalReason.LEASE_ENDED)
    failed = ReportFailure(zombie.number, zombie.epoch, Error(ErrorClass.TRANSIENT, "T", ""), 0.5)
    assert story.when(failed).refusal.reason is RefusalReason.LEASE_ENDED
    story.succeed("a")
    assert (story.state, story.execution.output) == ("SUCCESS", b'{"a":{"ok":true}}')
    final = story.when(late)
    assert (final.events, final.refusal.reason) == ([], RefusalReason.EXECUTION_FINAL)


def test_a_report_under_another_epoch_is_late():
    story = begun()
    assert story.when(ReportSuccess(1, 99, b"{}")).refusal.reason is RefusalReason.EPOCH_STALE
    assert story.run("a").state.value == "LEASED"
    story.succeed("a")
    assert story.when(ReportSuccess(1, 99, b"{}")).refusal.reason is RefusalReason.EPOCH_STALE


@pytest.mark.parametrize("number", [0, -1, 2])
def test_an_unknown_run_is_refused(number):
    story = begun()
    decision = story.when(ReportSuccess(number, 2, b"{}"))
    assert (decision.events, decision.refusal.reason) == ([], RefusalReason.LEASE_UNKNOWN)


def test_started_and_progress_are_recorded_when_they_are_news():
    story = begun()
    run = story.run("a")
    assert events(story.when(ReportStarted(1, run.epoch, 5)), "run", "start_time") == [("RunStarted", 1, 5)]
    assert run.state.value == "RUNNING"
    assert story.when(ReportStarted(1, run.epoch, 5)).events == []
    news = ReportProgress(1, run.epoch, 0.4, "half way", b'{"row":7}')
    told = story.when(news)
    assert events(told, "run", "progress", "message", "cursor") == [("RunProgressed", 1, 0.4, "half way", b'{"row":7}')]
    assert story.when(news).events == []
    story.lose()
    for late in (ReportStarted(1, run.epoch, 5), news):
        assert story.when(late).refusal.reason is RefusalReason.LEASE_ENDED
    story.assign("a")
    assert story.effects[0].run.work.cursor == b'{"row":7}'


def test_progress_without_a_cursor_leaves_the_last_one_to_the_next_attempt():
    story = begun()
    story.when(ReportProgress(1, story.run("a").epoch, 0.4, "", b'{"row":7}'))
    story.lose()
    story.assign("a")
    news = ReportProgress(2, story.run("a").epoch, 0.1, "again", b"")
    told = story.when(news)
    assert events(told, "run", "progress", "message", "cursor") == [("RunProgressed", 2, 0.1, "again", b'{"row":7}')]
    assert story.when(news).events == []
    story.lose()
    story.assign("a")
    assert story.effects[0].run.work.cursor == b'{"row":7}'


def test_what_a_runner_says_is_brought_within_bounds():
    story = begun(node("a"), node("b"))
    epoch = story.run("a").epoch
    news = the_event("RunProgressed", story.when(ReportProgress(1, epoch, float("nan"), "\0!", b"{}")))
    assert (news.progress, news.message) == (0.0, "\ufffd!")
    assert story.when(ReportProgress(1, epoch, float("nan"), "\0!", b"{}")).events == []
    far = 10**18
    measured: dict[str, Any] = {"start_time": -5, "end_time": far, "inputs_hash": b"h" * 99, "config_hash": b"c" * 99}
    report: Any = ReportSuccess(1, epoch, b"{}", "l\0", **measured, cost_tokens=far)
    done = the_event("RunSucceeded", story.when(report))
    assert (done.branch, done.cost_tokens) == ("l\ufffd", 10**12)
    error = Error(ErrorClass.PERMANENT, "A\0", "b\0")
    report = ReportFailure(2, story.run("b").epoch, error, 0.5, **measured, cost_tokens=-1)
    failed = the_event("RunFailed", story.when(report))
    assert (failed.error.type, failed.error.message, failed.cost_tokens) == ("A\ufffd", "b\ufffd", 0)
    for ended in (done, failed):
        assert (ended.start_time, ended.end_time) == (0, story.now + 86_400 * SECOND)
        assert (ended.inputs_hash, ended.config_hash) == (b"h" * 32, b"c" * 32)


def test_a_run_that_stopped_unasked_is_tried_again():
    story = begun()
    run = story.run("a")
    failed = story.when(ReportStopped(1, run.epoch))
    assert events(failed, "reason", "is_reported", "retry_time") == [("RunFailed", None, True, story.now + SECOND)]
    assert story.state == "WAITING"
    assert story.when(ReportStopped(9, 9)).refusal.reason is RefusalReason.LEASE_UNKNOWN


def test_a_run_fails_when_its_runner_is_silent_beyond_the_node_timeout():
    story = begun(node("a", timeout="30s"))
    assert story.execution.next_wake() == story.now + 35 * SECOND
    failed = the_event("RunFailed", story.wake())
    assert (failed.error.error_class, failed.error.type) == (ErrorClass.TIMEOUT, "NODE_TIMEOUT")
    assert not failed.is_reported
    assert story.effects == [StopRun(1, 2, "i1", "NODE_TIMEOUT")]
    late = story.when(ReportSuccess(1, 2, b"{}"))
    assert late.refusal.reason is RefusalReason.LEASE_ENDED
    assert names(story.wake()) == ["BackoffEnded"]


def test_the_backstop_counts_from_the_start_of_the_work():
    story = begun(node("a", timeout="30s"))
    story.later(10)
    story.when(ReportStarted(1, 2, story.now))
    started = story.now
    assert story.execution.next_wake() == started + 35 * SECOND
    story.later(25)
    assert story.tick().events == []
    failed = the_event("RunFailed", story.wake())
    assert (failed.start_time, failed.end_time) == (started, started + 35 * SECOND)


def test_a_run_that_ended_has_no_backstop_any_more():
    story = begun(node("a", timeout="30s"))
    story.when(ReportStarted(1, 2, story.now))
    story.succeed("a")
    assert story.execution.next_wake() == 0


def test_deciding_is_deterministic():
    story = begun()
    report = ReportSuccess(1, 2, b"{}")
    twins = [handle(story.again().execution, report, story.now) for _ in range(2)]
    assert twins[0] == twins[1]
    assert effects(story.execution, story.journal[0]) == ()


def test_a_report_counts_for_the_instance_that_was_granted_the_run():
    story = begun()
    run = story.run("a")
    for untrue in (
        ReportSuccess(run.number, run.epoch, b"{}", instance_id="i2"),
        ReportProgress(run.number, run.epoch, 0.5, instance_id="i2"),
        Release(run.number, run.epoch, ReleaseReason.DRAINED, instance_id="i2"),
    ):
        decision = story.when(untrue)
        assert (decision.events, decision.refusal.reason) == ([], RefusalReason.LEASE_UNKNOWN)
    done = ReportSuccess(run.number, run.epoch, b"{}", instance_id="i1")
    assert names(story.when(done)) == ["RunSucceeded", "ExecutionFinished"]
    assert story.when(done).refusal is None, "the same again is answered as the first time"
    again = ReportSuccess(run.number, run.epoch, b"{}", instance_id="i2")
    assert story.when(again).refusal.reason is RefusalReason.LEASE_UNKNOWN


# Another holder goes on


def two_running():
    story = started(node("a"), node("b"), node("c"))
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
    assert the_event("RunLost", decision, "a").reason is FailureReason.STOPPED


def test_an_older_holder_is_refused():
    story = two_running()
    story.adopt("i1", "i2", epoch=7)
    for epoch in (6, 7):
        assert story.adopt("i1", "i2", epoch=epoch).refusal.reason is RefusalReason.EPOCH_STALE
