"""Work that somebody else finishes."""

import pytest

from services.coordinator.core.commands import (
    CompleteRun,
    FailRun,
    HeartbeatRun,
    ReportDeferred,
    ReportFailure,
    ReportProgress,
    ReportSuccess,
)
from services.coordinator.core.decision import RefusalReason
from services.coordinator.core.effects import parking, resume_effects
from services.coordinator.core.events import WaitKind
from services.coordinator.core.values import Error, ErrorClass, RunState
from tests.support.story import SECOND, begun, chain, names, node, the_event


def defer(story, id="a"):
    run = story.run(id)
    return story.when(
        ReportDeferred(
            run.number, run.epoch, start_time=story.now, end_time=story.now, inputs_hash=b"i" * 32, cost_tokens=5
        )
    )


def complete(story, run=1, output=b'{"paid":true}', branch=""):
    return story.when(CompleteRun(f"m{len(story.journal)}", "", run, output, branch))


def fail(story, run=1, error_class=ErrorClass.TRANSIENT):
    return story.when(FailRun(f"m{len(story.journal)}", "", run, Error(error_class, "BOOM", "it went wrong"), 1.0))


def deferred(**more):
    """Node `a` is deferred, node `b` comes after it."""
    story = begun(node("a", "billing.charge@1", **more), node("b"), edges=chain("a", "b"))
    assert names(defer(story)) == ["RunDeferred"]
    return story


def test_deferred_work_waits_without_a_runner():
    story = deferred()
    assert (story.state, list(story.execution.live)) == ("WAITING", [])
    assert parking(story.execution, story.now) == 0, "no time ends it"
    run = story.run("a")
    assert (run.state, run.cost_tokens, run.inputs_hash) == (RunState.RUNNING, 5, b"i" * 32)
    again = defer(story)
    assert (again.events, again.refusal) == ([], None), "a repeated report"


def test_deferred_work_ends_as_its_completion_says():
    story = deferred()
    story.later(100)
    decision = complete(story.again(), branch="left")
    assert names(decision) == ["OutsideAnswered", "RunSucceeded"]
    complete(story)
    run = story.run("a")
    assert (story.ready, run.output, run.state) == (["b"], b'{"paid":true}', RunState.SUCCESS)
    assert (run.end_time, run.start_time) == (story.now, story.now - 100 * SECOND)
    assert story.execution.cost_tokens == 5


def test_a_completion_may_be_faster_than_the_report_of_the_runner():
    story = begun(node("a"), node("b"), edges=chain("a", "b"))
    assert names(complete(story)) == ["OutsideAnswered", "RunSucceeded"]
    late = defer(story)
    assert (late.events, late.refusal, story.ready) == ([], None, ["b"])
    assert resume_effects(story.execution) == [], "its runner has nothing to stop"


def test_a_failure_is_tried_again_under_a_new_run_and_the_old_token_is_void():
    story = deferred(retry={"attempts": 2})
    failed = the_event("RunFailed", fail(story))
    assert (failed.error.type, failed.reason) == ("BOOM", None)
    story.wake()
    story.assign("a")
    assert (story.run("a").number, story.run("a").attempt) == (2, 2)
    for command in (complete, fail):
        assert command(story).refusal.reason is RefusalReason.RUN_ENDED
    assert story.when(HeartbeatRun("m2", "", 1)).refusal.reason is RefusalReason.RUN_ENDED
    defer(story)
    assert complete(story, run=2).refusal is None


def test_a_failure_that_is_not_to_be_retried_fails_the_node():
    story = deferred()
    fail(story, error_class=ErrorClass.PERMANENT)
    assert (story.states["a"], story.state) == ("FAILED", "FAILED")
    assert story.execution.cost_tokens == 5


def test_the_timeout_of_the_node_still_ends_deferred_work():
    story = deferred(timeout="60s", retry={"attempts": 2})
    story.later(59)
    assert story.tick().events == []
    story.later(1)
    decision = story.tick()
    assert names(decision) == ["WaitEnded", "RunFailed"]
    error = the_event("RunFailed", decision).error
    assert (error.error_class, error.type) == (ErrorClass.TIMEOUT, "NODE_TIMEOUT")
    assert story.effects == [], "no runner has it"
    story.wake()
    assert story.ready == ["a"]
    assert complete(story).refusal.reason is RefusalReason.RUN_ENDED


def test_heartbeats_show_progress_and_do_not_move_the_timeout():
    story = deferred(timeout="60s")
    story.later(30)
    assert names(story.when(HeartbeatRun("m1", "", 1, 0.5, "half"))) == ["RunProgressed"]
    story.when(HeartbeatRun("m2", "", 1))
    run = story.run("a")
    assert (run.progress, run.progress_message, run.heartbeat_time) == (0.5, "half", story.now)
    assert story.execution.next_wake() == story.now + 30 * SECOND


def test_reports_of_the_runner_that_deferred_the_work_change_nothing():
    story = deferred()
    run = story.run("a")
    for report in (
        ReportSuccess(1, run.epoch, b"{}"),
        ReportFailure(1, run.epoch, Error(ErrorClass.PERMANENT, "X", ""), 0.5),
        ReportProgress(1, run.epoch, 0.7),
    ):
        decision = story.when(report)
        assert (decision.events, decision.refusal) == ([], None)


def test_the_death_of_the_runner_does_not_touch_deferred_work():
    story = deferred()
    assert story.lose().events == []
    assert names(story.adopt()) == ["ExecutionAdopted"]
    complete(story)
    assert story.ready == ["b"]


def test_a_cancel_ends_deferred_work():
    story = deferred()
    assert names(story.cancel()) == ["StopOrdered", "RunCancelled", "ExecutionFinished"]
    assert complete(story).refusal.reason is RefusalReason.RUN_ENDED


def test_a_run_that_is_deferred_while_the_execution_ends_is_cancelled():
    story = begun(node("a"))
    story.cancel()
    assert names(defer(story)) == ["RunCancelled", "ExecutionFinished"]


@pytest.mark.parametrize("is_rendering", [True, False])
def test_a_run_that_only_renders_cannot_be_deferred_or_completed(is_rendering):
    sleeping = node("a", "sleep@1", config={"duration": "{{ input.n }}"})
    story = begun(sleeping) if not is_rendering else begun(node("b"), node("a", inputs={"n": "{{ input.n }}"}))
    if is_rendering:
        story.release("a")
        story.assign("a", instance="i9", is_rendering=True)
    number = story.run("a").number
    assert complete(story, number).refusal.reason is RefusalReason.RUN_ENDED
    assert the_event("RunFailed", defer(story)).error.type == "INVALID_CONFIG"


def test_other_waits_are_not_ended_by_a_completion():
    story = begun(node("s", "sleep@1", config={"duration": "60s"}), node("a"), node("c"))
    defer(story, "a")
    defer(story, "c")
    assert complete(story, story.run("s").number).refusal.reason is RefusalReason.RUN_ENDED
    assert complete(story, story.run("c").number).refusal is None


def test_a_completion_that_is_sent_again_gets_the_first_answer():
    story = deferred()
    for _ in range(2):
        assert story.when(CompleteRun("m1", "", 1, b"{}")).refusal is None
    assert story.ready == ["b"]


def test_the_items_of_a_loop_may_be_deferred_each_with_its_own_run():
    body = {"module": "billing.charge@1"}
    loop = node("each", "for_each@1", config={"items": [1, 2, 3], "maxParallel": 2, "body": body})
    story = begun(loop, node("after"), edges=chain("each", "after"))
    runs = list(story.execution.live)
    assert len(runs) == 2
    for number in runs:
        run = story.execution.live[number]
        story.when(ReportDeferred(run.number, run.epoch, start_time=story.now, end_time=story.now))
    assert story.state == "WAITING", "the third waits for its turn"
    complete(story, runs[0], b'"one"')
    story.assign()
    complete(story, next(iter(story.execution.live)), b'"three"')
    complete(story.again(), runs[1], b'"two"')
    complete(story, runs[1], b'"two"')
    assert story.ready == ["after"]


def test_deferred_work_that_fails_waits_for_a_person_where_the_workflow_says_so():
    story = begun(node("a", "billing.charge@1"), onFailure="HOLD")
    defer(story)
    fail(story, error_class=ErrorClass.PERMANENT)
    (wait,) = story.execution.waits.values()
    assert wait.kind is WaitKind.PERSON
    assert complete(story).refusal.reason is RefusalReason.RUN_ENDED
