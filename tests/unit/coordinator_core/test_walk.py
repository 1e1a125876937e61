"""An execution walks its graph."""

import json

import pytest

from services.coordinator.core.commands import Assign, AssignedRun, ReportSuccess, Start
from services.coordinator.core.handlers import handle
from services.coordinator.core.summary import summary
from services.coordinator.core.values import BrokenInvariant, FinalError, Origin, OutputRef
from tests.support.story import Story, begun, chain, edge, events, fields, names, node, started, the_event


def test_empty_graph_succeeds_at_once():
    story = Story()
    assert names(story.start()) == ["ExecutionStarted", "ExecutionFinished"]
    assert (story.state, story.execution.output) == ("SUCCESS", b"{}")


def test_a_linear_step_is_two_events():
    story = started(node("a"), node("b"), node("c"), edges=chain("a", "b", "c"))
    assert names(story.assign("a")) == ["RunLeased"]
    assert names(story.succeed("a")) == ["RunSucceeded"]
    assert names(story.assign("b")) == ["RunLeased"]
    assert names(story.succeed("b")) == ["RunSucceeded"]
    assert names(story.assign("c")) == ["RunLeased"]
    assert names(story.succeed("c")) == ["RunSucceeded", "ExecutionFinished"]


def test_all_roots_are_ready_at_once_in_the_order_of_the_definition():
    story = started(node("a"), node("b"), node("c"), node("z"), edges=[edge("z", "c")])
    assert story.ready == ["a", "b", "z"]
    assert story.state == "RUNNING"


def test_start_carries_what_was_asked_for():
    story = Story([node("a")], timeout="60s")
    asked = {"input": b'{"x":1}', "labels": (("a", "1"), ("b", "2")), "priority": 5, "caller": "ann"}
    started = the_event("ExecutionStarted", story.start(create_time=7, grant_time=9, **asked))
    assert fields(started.origin, "create_time", *asked) == (7, *asked.values())
    assert fields(started, "epoch", "holder", "grant_time") == (1, "c1", 9)
    assert started.deadline_time == story.execution.deadline == 7 + 60_000_000
    assert (story.execution.grant_time, story.execution.start_time) == (9, story.now)


def test_join_any_starts_with_the_first_and_only_once():
    story = started(node("a"), node("b"), node("c", join="ANY"), edges=[edge("a", "c"), edge("b", "c")])
    story.do("a", "c")
    assert story.state == "RUNNING"
    assert names((story.assign("b"), story.succeed("b"))[1]) == ["RunSucceeded", "ExecutionFinished"]
    assert len(story.execution.runs) == 3


def test_node_where_a_taken_and_a_skipped_branch_meet_is_done():
    story = started(
        node("if", "condition@1"),
        *map(node, ["yes", "no", "deep", "end"]),
        edges=[edge("if", "yes", "true"), edge("if", "no", "false"), *chain("no", "deep", "end"), edge("yes", "end")],
    )
    story.assign("if")
    assert events(story.succeed("if", branch="true"), "node", "run") == [
        ("RunSucceeded", "if", 1), ("WorkSkipped", "no", 2), ("WorkSkipped", "deep", 3),
    ]  # fmt: skip
    assert story.ready == ["yes"]
    assert [run.state.value for run in story.execution.runs] == ["SUCCESS", "SKIPPED", "SKIPPED"]
    story.do("yes", "end")
    assert story.state == "SUCCESS"
    assert summary(story.execution).skipped == ("no", "deep")


def test_a_failure_blocks_what_needs_its_success_and_nothing_else():
    story = started(
        *map(node, ["bad", "next", "last", "free", "more", "both"]),
        edges=[*chain("bad", "next", "last"), *chain("free", "more"), edge("more", "both"), edge("next", "both")],
    )
    story.assign("bad")
    assert events(story.fail("bad"), "node") == [("RunFailed", "bad"), ("WorkBlocked", "next"), ("WorkBlocked", "last")]
    assert story.state == "RUNNING"
    story.assign("free")
    story.succeed("free")
    story.assign("more")
    finished = the_event("ExecutionFinished", story.succeed("more"))
    assert story.state == "FAILED"
    assert finished.error == FinalError("bad", "BOOM", "bad went wrong 42 times")
    assert summary(story.execution)[:5] == (("free", "more"), ("bad",), (), ("next", "last", "both"), ())
    assert story.execution.output is None


def test_a_failure_edge_handles_the_failure():
    story = started(
        *map(node, ["a", "good", "alarm", "end"]),
        edges=[edge("a", "good"), edge("a", "alarm", "failure"), edge("good", "end"), edge("alarm", "end")],
    )
    story.assign("a")
    assert names(story.fail("a")) == ["RunFailed", "WorkSkipped"]
    story.do("alarm", "end")
    assert story.state == "SUCCESS"
    assert summary(story.execution)[:5] == (("alarm", "end"), ("a",), ("good",), (), ())


def test_always_cleans_up_after_a_failure_further_up_but_does_not_absolve():
    story = begun(node("a"), node("b"), node("cleanup"), edges=[edge("a", "b"), edge("b", "cleanup", "always")])
    assert names(story.fail("a")) == ["RunFailed", "WorkBlocked"]
    assert story.ready == ["cleanup"]
    story.do("cleanup")
    assert story.state == "FAILED"


@pytest.mark.parametrize(
    ("branch", "state"), [("left", "READY"), ("right", "READY"), ("neither", "SKIPPED"), (None, "BLOCKED")]
)
def test_two_edges_from_one_node_to_the_same_target_both_count(branch, state):
    story = begun(node("if", "switch@1"), node("t"), edges=[edge("if", "t", "left"), edge("if", "t", "right")])
    if branch is None:
        story.fail("if")
    else:
        story.succeed("if", branch=branch)
    target = story.work("t")
    assert (story.states["t"], target.unresolved) == (state, 0)
    assert (target.taken, target.blocked) == ({"READY": 1}.get(state, 0), {"BLOCKED": 2}.get(state, 0))


def test_work_behind_a_failure_is_skipped_or_blocked_by_its_own_edges():
    story = started(
        *map(node, "abcde"),
        edges=[edge("a", "b", "success"), edge("b", "c", "failure"), edge("a", "d", "label"), edge("c", "e")],
    )
    story.assign("a")
    decision = story.fail("a")
    assert names(decision) == [
        "RunFailed", "WorkBlocked", "WorkBlocked", "WorkSkipped", "WorkSkipped", "ExecutionFinished",
    ]  # fmt: skip
    assert story.states == {"a": "FAILED", "b": "BLOCKED", "c": "SKIPPED", "d": "BLOCKED", "e": "SKIPPED"}


def test_fail_fast_stops_everything_at_the_first_unhandled_failure():
    nodes = map(node, ["bad", "slow", "waiting", "next"])
    story = started(*nodes, edges=chain("bad", "next"), onFailure="FAIL_FAST")
    story.assign("bad", "slow")
    decision = story.fail("bad")
    assert names(decision) == ["RunFailed", "StopOrdered"]
    assert [effect.number for effect in story.effects] == [2]
    assert story.ready == []
    assert names(story.succeed("slow")) == ["RunSucceeded", "ExecutionFinished"]
    assert (story.state, story.execution.error.node) == ("FAILED", "bad")
    assert summary(story.execution)[:5] == (("slow",), ("bad",), (), (), ("waiting", "next"))


def test_default_output_is_that_of_the_leaves():
    story = started(node("a"), node("b"), node("c"), node("d"), edges=[edge("a", "b"), edge("a", "d", "nope")])
    story.do("a")
    story.assign("b")
    story.succeed("b", OutputRef("k", "ab" * 32, 300_000))
    story.assign("c")
    story.succeed("c", b"")
    assert json.loads(story.execution.output) == {
        "b": {"$ref": "k", "sha256": "ab" * 32, "size_bytes": 300_000},
        "c": None,
    }


def test_a_default_output_beyond_the_inline_limit_names_its_runs():
    story = started(node("a"), node("b"))
    story.do("a")
    story.assign("b")
    story.work("a").output = big = b'"' + b"x" * 200_000 + b'"'
    finished = the_event("ExecutionFinished", handle(story.execution, _success(story, "b", big), story.now))
    output = json.loads(finished.output)
    assert output == {id: {"$run": story.execution.execution_id + f".{n}"} for id, n in (("a", 1), ("b", 2))}


def _success(story, id, output):
    run = story.run(id)
    return ReportSuccess(run.number, run.epoch, output)


def test_output_template_is_rendered_by_a_runner():
    story = begun(node("a"), output={"x": "{{ nodes.a.output }}"})
    assert names(story.succeed("a")) == ["RunSucceeded", "OutputRequested"]
    story.assign("$output")
    grant = story.effects[0]
    assert (grant.run.work.node.runner_module, grant.outputs) == ("transform@1", [("a", b'{"ok":true}')])
    assert names(story.succeed("$output", b'{"x":1}')) == ["RunSucceeded", "ExecutionFinished"]
    assert story.execution.output == b'{"x":1}'
    assert summary(story.execution).succeeded == ("a",)


def test_an_output_that_cannot_be_rendered_fails_the_execution():
    story = Story(output={"x": "{{ input.missing }}"})
    story.start()
    story.assign("$output")
    assert names(story.fail("$output")) == ["RunFailed", "ExecutionFinished"]
    assert (story.state, story.execution.error.node) == ("FAILED", "$output")


def test_no_output_is_rendered_after_a_failure():
    story = begun(node("a"), output={"x": "1"})
    assert names(story.fail("a")) == ["RunFailed", "ExecutionFinished"]


def test_a_fan_out_of_1000_is_joined():
    ids = [f"n{number}" for number in range(1000)]
    story = Story(
        [node("root"), *map(node, ids), node("all", "join@1")],
        [edge(*pair) for id in ids for pair in (("root", id), (id, "all"))],
    )
    execution, now = story.execution, story.now

    handle(execution, Start(1, "c", Origin("default", "wide", 1, "v")), now)
    while not execution.is_final:
        handle(execution, Assign([AssignedRun(work, "i", "r") for work in list(execution.ready)[:100]]), now)
        for run in list(execution.live.values()):
            handle(execution, ReportSuccess(run.number, run.epoch, b"{}"), now)
    assert execution.output == b'{"all":{}}'


def test_nothing_ready_but_work_remains_is_a_broken_invariant():
    story = begun(node("a"), node("b"), edges=chain("a", "b"))
    story.work("b").unresolved = 2
    with pytest.raises(BrokenInvariant, match="stuck"):
        handle(story.execution, _success(story, "a", b"{}"), story.now)
