"""A person has work done again. What depends on it is done again too, and nothing else."""

import pytest

from services.coordinator.core.commands import ReportSuccess
from services.coordinator.core.decision import RefusalReason
from services.coordinator.core.effects import resume_effects
from services.coordinator.core.summary import summary
from services.coordinator.core.values import ErrorClass, FinalError, WorkKey
from tests.support.story import SECOND, Story, begun, chain, edge, fields, names, node, started, the_event


def reopened(decision):
    """The nodes that are done again, with their generations."""
    return {work.key.node: work.key.generation for work in the_event("ExecutionReopened", decision).work}


def failed(*more, edges=(), **document):
    """`bad` has failed, and `after` is blocked by it."""
    story = begun(node("bad"), node("after"), *more, edges=[*chain("bad", "after"), *edges], **document)
    story.fail("bad")
    return story


def test_a_retry_does_the_failed_node_again_and_what_depends_on_it_and_nothing_else():
    story = begun(node("good"), node("bad"), node("after"), edges=[*chain("good", "after"), *chain("bad", "after")])
    story.succeed("good")
    story.fail("bad")
    assert (story.state, story.execution.end_time) == ("FAILED", story.now)
    story.later(5)
    decision = story.retry()
    assert names(decision) == ["ExecutionReopened", "DeadLetterResolved"]
    assert reopened(decision) == {"bad": 2, "after": 2}
    event = the_event("ExecutionReopened", decision)
    assert fields(event, "message_id", "caller", "epoch", "holder") == ("retry1", "ann", 2, "c3")
    assert (story.state, story.ready, story.execution.error, story.execution.end_time) == ("RUNNING", ["bad"], None, 0)
    assert resume_effects(story.execution) == [], "its end need not be reported any more"
    story.do("bad", "after")
    assert story.state == "SUCCESS"
    assert [(run.work.key.node, run.work.key.generation, run.state.value) for run in story.execution.runs] == [
        ("good", 1, "SUCCESS"), ("bad", 1, "FAILED"), ("bad", 2, "SUCCESS"), ("after", 2, "SUCCESS"),
    ]  # fmt: skip


def test_the_new_work_begins_anew():
    story = failed(node("other"), edges=())
    story.succeed("other")
    assert story.state == "FAILED"
    story.retry()
    story.assign("bad")
    assert (story.run("bad").attempt, story.work("bad").failures) == (1, 0)


def test_a_late_report_on_the_old_work_is_refused():
    story = failed()
    old = story.run("bad")
    story.retry()
    story.assign("bad")
    late = story.when(ReportSuccess(old.number, old.epoch, b'"old"'))
    assert late.refusal is None, "the same report again gets the first answer"
    assert story.states["bad"] == "LIVE"


def test_a_retry_from_a_node_does_it_again_although_it_succeeded():
    story = Story([node("a"), node("b"), node("c")], chain("a", "b", "c"))
    story.start()
    story.do("a", "b", "c")
    decision = story.retry("b")
    assert reopened(decision) == {"b": 2, "c": 2}
    assert story.ready == ["b"]
    story.do("b", "c")
    assert (story.state, len(story.execution.runs)) == ("SUCCESS", 5)


def test_the_output_is_rendered_again():
    story = Story([node("a")], output={"x": "{{ nodes.a.output }}"})
    story.start()
    story.do("a", "$output")
    assert reopened(story.retry("a")) == {"a": 2, "$output": 2}
    story.do("a")
    assert story.ready == ["$output"]
    story.do("$output")
    assert (story.state, story.run("$output").work.key) == ("SUCCESS", WorkKey("$output", 0, 2))


def test_an_output_that_failed_is_rendered_again_alone():
    story = Story([node("a")], output={"x": "{{ input.missing }}"})
    story.start()
    story.do("a")
    story.assign("$output")
    story.fail("$output")
    decision = story.retry()
    assert reopened(decision) == {"$output": 2}
    assert names(decision) == ["ExecutionReopened", "DeadLetterResolved", "OutputRequested"]
    story.do("$output")
    assert story.state == "SUCCESS"


def test_another_failure_remains():
    story = begun(node("bad"), node("worse"))
    story.fail("worse")
    story.fail("bad")
    story.retry("worse")
    assert story.execution.first_failure == FinalError("bad", "BOOM", "bad went wrong 42 times")
    story.do("worse")
    assert (story.state, story.execution.error.node) == ("FAILED", "bad")


def test_a_failure_that_was_handled_is_not_retried():
    edges = [edge("bad", "rescue", "failure")]
    story = begun(node("bad"), node("rescue"), node("worse"), edges=edges)
    story.fail("bad")
    story.do("rescue")
    story.fail("worse")
    assert reopened(story.retry()) == {"worse": 2}
    story.do("worse")
    assert (story.state, summary(story.execution).failed) == ("SUCCESS", ("bad",))


def test_edges_of_work_that_stays_count_as_they_did():
    nodes = [node("choose", "switch@1"), *map(node, ["left", "right", "saved", "rescue", "end"])]
    edges = [
        edge("choose", "left", "left"),
        edge("choose", "right", "right"),
        edge("saved", "rescue", "failure"),
        *(edge(source, "end") for source in ("left", "right", "rescue")),
    ]
    story = begun(*nodes, edges=edges)
    story.succeed("choose", branch="left")
    story.fail("saved")
    story.do("rescue")
    story.assign("left")
    story.fail("left")
    assert story.states["end"] == "BLOCKED"
    (left, end) = the_event("ExecutionReopened", story.retry()).work
    assert (left.unresolved, left.taken, left.blocked) == (0, 1, 0)
    assert (end.unresolved, end.taken, end.blocked) == (1, 1, 0), "left is to come, right was skipped"
    story.do("left", "end")
    assert story.state == "SUCCESS"


def test_a_node_that_another_edge_has_let_in_stays():
    edges = [*chain("a", "any"), *chain("bad", "any"), *chain("any", "last")]
    story = begun(node("a"), node("bad"), node("any", join="ANY"), node("last"), edges=edges)
    story.succeed("a")
    story.do("any", "last")
    story.fail("bad")
    assert reopened(story.retry()) == {"bad": 2}
    story.do("bad")
    assert (story.state, summary(story.execution).succeeded) == ("SUCCESS", ("a", "bad", "any", "last"))


def test_a_node_whose_letting_edge_is_done_again_is_done_again():
    edges = [*chain("a", "any"), *chain("b", "any")]
    story = begun(node("a"), node("b"), node("any", join="ANY"), edges=edges)
    story.succeed("a")
    story.do("any")
    story.fail("b")
    assert reopened(story.retry("a")) == {"a": 2, "any": 2}


def test_what_follows_from_edges_that_stay_is_in_the_event():
    """A node that is skipped or blocked by edges that stay is so again."""
    edges = [edge("a", "x", "label"), *chain("s", "x2"), *chain("worse", "y")]
    story = begun(node("a"), node("s"), node("worse"), node("x"), node("x2"), node("y"), edges=edges, timeout="10s")
    story.succeed("a")
    story.fail("worse")
    story.wake()
    story.wake()
    assert story.state == "TIMEOUT"
    decision = story.retry("s")
    assert reopened(decision) == {"s": 2, "x2": 1}
    story.do("s", "x2")
    assert (story.state, summary(story.execution).blocked) == ("FAILED", ("y",))


def test_a_cancelled_execution_goes_on_with_what_it_had_not_done():
    nap = node("nap", "sleep@1", config={"duration": "5s"})
    story = begun(node("done"), node("busy"), nap, node("z"), edges=chain("busy", "z"))
    story.succeed("done")
    story.cancel()
    story.wake()
    assert story.state == "CANCELLED"
    decision = story.retry()
    assert names(decision) == ["ExecutionReopened", "WaitStarted"]
    assert reopened(decision) == {"busy": 2, "nap": 2, "z": 1}
    assert (story.state, story.execution.stop, story.ready) == ("RUNNING", None, ["busy"])
    story.do("busy", "z")
    story.wake()
    assert story.state == "SUCCESS"
    assert names(story.retry("done", "retry2")) == ["ExecutionReopened"]
    assert names(story.cancel()) == ["StopOrdered", "ExecutionFinished"], "it can be cancelled once more"


def test_a_retry_of_one_node_of_a_cancelled_execution_also_does_what_was_left():
    story = begun(node("done"), node("busy"))
    story.succeed("done")
    story.cancel()
    story.wake()
    assert reopened(story.retry("done")) == {"done": 2, "busy": 2}


def test_a_failed_fast_execution_goes_on():
    story = begun(node("bad"), node("slow"), node("next"), edges=chain("slow", "next"), onFailure="FAIL_FAST")
    story.fail("bad")
    story.wake()
    assert reopened(story.retry()) == {"bad": 2, "slow": 2, "next": 1}
    story.do("bad", "slow", "next")
    assert story.state == "SUCCESS"


def test_it_gets_the_whole_time_again():
    story = failed(timeout="10s")
    story.later(60)
    story.retry()
    assert story.execution.next_wake() == story.now + 10 * SECOND == story.execution.deadline
    assert names(story.wake()) == ["StopOrdered", "ExecutionFinished"]
    assert (story.state, story.execution.error.message) == ("TIMEOUT", "not done 10 s after it was reopened")
    story.later(60)
    story.retry(message_id="retry2")
    assert story.execution.deadline == story.now + 10 * SECOND


def test_an_execution_that_goes_on_retries_its_failed_node_at_once():
    story = failed(node("slow"), timeout="60s")
    deadline = story.execution.deadline
    decision = story.retry()
    assert fields(the_event("ExecutionReopened", decision), "epoch", "holder") == (1, "c1"), "under the lease it has"
    assert (story.ready, story.execution.deadline) == (["bad"], deadline)
    story.do("bad", "after")
    story.succeed("slow")
    assert story.state == "SUCCESS"


def test_overrides_are_part_of_the_new_work():
    story = failed()
    work = the_event("ExecutionReopened", story.retry(bad=b'{"x":1}')).work
    assert [(each.key.node, each.overrides) for each in work] == [("bad", b'{"x":1}'), ("after", b"")]
    assert story.again().work("bad").overrides == b'{"x":1}'


def test_a_successor_finds_it_reopened():
    story = failed(node("good"))
    story.succeed("good")
    story.retry()
    after = story.again()
    after.adopt(epoch=3)
    after.do("bad", "after")
    assert after.state == "SUCCESS"


def test_a_repeated_retry_reopens_once():
    story = failed()
    story.retry()
    story.assign("bad")
    story.fail("bad")
    again = story.again().retry()
    assert (again.events, again.refusal) == ([], None)


def running_failed():
    return failed(node("slow"))


@pytest.mark.parametrize(
    ("story", "command", "reason"),
    [
        (lambda: begun(), {}, RefusalReason.EXECUTION_NOT_FAILED),
        (lambda: _done(begun()), {}, RefusalReason.EXECUTION_NOT_FAILED),
        (failed, {"from_node": "nobody"}, RefusalReason.NODE_NOT_FOUND),
        (failed, {"from_node": "after"}, RefusalReason.NODE_NOT_ENDED),
        (failed, {"nobody": b"{}"}, RefusalReason.NODE_NOT_FOUND),
        (running_failed, {"from_node": "slow"}, RefusalReason.NODE_NOT_ENDED),
        (running_failed, {"slow": b"{}"}, RefusalReason.NODE_NOT_RETRIED),
        (lambda: _stopping(running_failed()), {"from_node": "bad"}, RefusalReason.EXECUTION_FINAL),
        (lambda: _asleep(), {"from_node": "a"}, RefusalReason.NODE_NOT_ENDED),
    ],
)
def test_a_retry_that_does_not_fit_is_refused(story, command, reason):
    made = story()
    decision = made.retry(**command)
    assert decision.refusal.reason is reason
    assert names(decision) == ([] if made.execution.is_final else ["CommandRefused"])


def _done(story):
    story.succeed("a")
    return story


def _stopping(story):
    story.cancel()
    return story


def _asleep():
    story = started(node("a"), node("s", "sleep@1", config={"duration": "5s"}), edges=chain("a", "s"))
    story.do("a")
    return story


def test_a_backoff_is_not_at_rest():
    story = begun(node("a", retry={"attempts": 2}), node("b"))
    story.fail("a", ErrorClass.TRANSIENT)
    assert story.retry("a").refusal.reason is RefusalReason.NODE_NOT_ENDED


def test_what_an_early_end_had_passed_over_is_passed_over_now():
    nap = node("s", "sleep@1", config={"duration": "60s"})
    story = started(nap, node("t"), node("u"), edges=[edge("s", "t", "failure"), edge("t", "u")], timeout="61s")
    story.later(70)
    story.tick()
    assert (story.state, story.states["u"]) == ("TIMEOUT", "IDLE")
    decision = story.retry()
    assert names(decision) == ["ExecutionReopened", "WorkSkipped", "ExecutionFinished"]
    assert story.state == "SUCCESS"


def test_what_an_early_end_had_blocked_is_blocked_now():
    nodes = [node("d"), node("a", timeout="10s", retry={"attempts": 1}), node("b"), node("c")]
    story = begun(*nodes, edges=chain("a", "b", "c"), timeout="20s")
    story.succeed("d")
    story.later(30)
    assert names(story.tick()) == ["RunFailed", "StopOrdered", "ExecutionFinished"]
    decision = story.retry("d")
    assert reopened(decision) == {"d": 2, "c": 1}
    assert names(decision) == ["ExecutionReopened", "WorkBlocked"]
    story.do("d")
    assert (story.state, story.execution.error.node) == ("FAILED", "a")


def test_edges_of_work_that_is_still_under_way_have_yet_to_resolve():
    story = begun(node("bad"), node("slow"), node("end"), edges=[*chain("bad", "end"), *chain("slow", "end")])
    story.fail("bad")
    (_, end) = the_event("ExecutionReopened", story.retry()).work
    assert (end.key.generation, end.unresolved, end.taken) == (1, 2, 0), "it had not begun, so it keeps its key"
    story.succeed("slow")
    story.do("bad", "end")
    assert story.state == "SUCCESS"
