"""A fork takes over what its origin has done well, and does the rest."""

import json

import pytest

from services.coordinator.core.commands import Cancel, FinishedWork, Pause, ReportStopped
from services.coordinator.core.decision import RefusalReason
from services.coordinator.core.forking import finished_work
from services.coordinator.core.values import ErrorClass, OutputRef, WorkKey
from services.coordinator.core.workflow_state import seen_state
from tests.support.story import Story, begun, chain, edge, events, fields, names, node, started, the_event

ORIGIN_ID = "01931f3c-0000-7c3d-8e4f-1234567890ab"


def fork(origin, *nodes, edges=(), from_node="", command=None, **document):
    """A fork of the story, with these nodes or with the same ones; and the decision on its start."""
    story = Story(nodes, edges, **document) if nodes else origin.again()
    if not nodes:
        story.execution = type(story.execution)(story.execution.execution_id, story.definition)
        story.journal, story.stored = [], []
    asked = {"origin_execution_id": ORIGIN_ID, "origin_seq": origin.execution.seq, "from_node": from_node}
    decision = story.start(**asked, finished=finished_work(origin.execution, from_node), **(command or {}))
    return story, decision


def taken(decision):
    return [event.key.node for event in decision.events if type(event).__name__ == "WorkTakenOver"]


def failed(*more, edges=(), **document):
    """`a` has succeeded, `bad` has failed, and `after` is blocked by it."""
    story = started(
        node("a"), node("bad"), node("after"), *more, edges=[*chain("a", "bad", "after"), *edges], **document
    )
    story.assign("a")
    story.succeed("a", b'{"n":1}', branch="left")
    story.assign("bad")
    story.fail("bad")
    return story


def test_a_fork_takes_over_what_was_done_well_and_does_the_rest():
    origin = failed()
    story, decision = fork(origin)
    assert names(decision) == ["ExecutionStarted", "WorkTakenOver"]
    event = the_event("WorkTakenOver", decision)
    assert fields(event, "node", "run", "output", "branch", "origin_run") == ("a", 1, b'{"n":1}', "left", 1)
    assert [key.node for key in event.then.ready] == ["bad"]
    assert story.ready == ["bad"]
    run = story.run("a")
    assert (run.state.value, run.attempt, run.instance_id) == ("SUCCESS", 0, "")
    assert run.start_time == run.end_time == story.now
    story.do("bad", "after")
    assert story.state == "SUCCESS"
    assert [run.work.key.node for run in story.execution.runs] == ["a", "bad", "after"]


def test_the_origin_stays_as_it_is():
    origin = failed()
    before = (origin.execution.seq, origin.state, origin.states)
    fork(origin)
    assert (origin.execution.seq, origin.state, origin.states) == before


def test_a_fork_from_a_node_does_it_and_all_that_depends_on_it():
    origin = started(*map(node, "abcx"), edges=chain("a", "b", "c"))
    origin.do("a", "x", "b", "c")
    story, decision = fork(origin, from_node="b")
    assert taken(decision) == ["a", "x"]
    assert story.ready == ["b"]
    story.do("b", "c")
    assert story.state == "SUCCESS"


def test_an_execution_that_goes_on_gives_what_it_has_done_so_far():
    origin = started(*map(node, "abc"), edges=chain("a", "c"))
    origin.do("a")
    origin.assign("b")
    story, decision = fork(origin)
    assert taken(decision) == ["a"]
    assert story.ready == ["b", "c"]
    assert origin.states["b"] == "LIVE"


def test_all_may_be_taken_over_and_the_output_is_rendered_anew():
    origin = started(node("a"), output={"x": "{{ nodes.a.output }}"})
    origin.do("a")
    origin.assign("$output")
    origin.fail("$output")
    assert origin.state == "FAILED"
    story, decision = fork(origin)
    assert names(decision) == ["ExecutionStarted", "WorkTakenOver", "OutputRequested"]
    story.do("$output")
    assert story.state == "SUCCESS"


def test_without_an_output_such_a_fork_ends_at_once_with_the_outputs_that_it_took_over():
    origin = begun(node("a"))
    origin.succeed("a", b'{"n":1}')
    story, decision = fork(origin)
    assert names(decision) == ["ExecutionStarted", "WorkTakenOver", "ExecutionFinished"]
    assert json.loads(story.execution.output) == {"a": {"n": 1}}


def test_control_nodes_are_taken_over_too_and_do_not_wait_again():
    origin = started(
        node("a"), node("nap", "sleep@1", config={"duration": "60s"}), node("j", "join@1"), node("bad"),
        edges=chain("a", "nap", "j", "bad"),
    )  # fmt: skip
    origin.do("a")
    origin.wake()
    origin.assign("bad")
    origin.fail("bad")
    story, decision = fork(origin)
    assert taken(decision) == ["a", "nap", "j"]
    assert not story.execution.waits
    assert story.ready == ["bad"]


def test_several_control_nodes_at_the_root_are_taken_over_in_any_order():
    nodes = [node("join1", "join@1"), node("join2", "join@1"), node("bad")]
    origin = started(*nodes, edges=[*chain("join1", "bad"), *chain("join2", "bad")])
    origin.assign("bad")
    origin.fail("bad")
    story, decision = fork(origin, *reversed(nodes), edges=[*chain("join1", "bad"), *chain("join2", "bad")])
    assert taken(decision) == ["join2", "join1"]
    assert story.ready == ["bad"]


def test_a_loop_is_taken_over_as_a_whole():
    loop = node("loop", "for_each@1", config={"items": [1, 2], "body": {"module": "noop@1"}})
    origin = started(loop, node("bad"), edges=chain("loop", "bad"))
    for item in (1, 2):
        origin.assign()
        origin.succeed("loop", item=item)
    origin.assign("bad")
    origin.fail("bad")
    story, decision = fork(origin)
    assert taken(decision) == ["loop"]
    assert story.execution.runs[0].output == b'[{"ok":true},{"ok":true}]'
    assert not story.execution.loops


def test_a_loop_with_another_body_is_done_again():
    def loop(module):
        return node("loop", "for_each@1", config={"items": [1], "body": {"module": module}})

    origin = started(loop("noop@1"))
    origin.assign()
    origin.succeed("loop", item=1)
    _, decision = fork(origin, loop("x.y@1"))
    assert taken(decision) == []


def test_the_branch_that_was_taken_is_taken_again_and_what_was_skipped_is_skipped():
    nodes = [node("choose", "switch@1", config={"cases": [{"when": "true", "branch": "left"}], "default": "right"})]
    nodes += [node("left"), node("right"), node("both"), node("bad")]
    edges = [edge("choose", "left", "left"), edge("choose", "right", "right"), *chain("left", "both", "bad")]
    edges += [edge("right", "both", "always")]
    origin = started(*nodes, edges=edges)
    origin.assign("choose")
    origin.succeed("choose", branch="left")
    origin.do("left", "both")
    origin.assign("bad")
    origin.fail("bad")
    story, decision = fork(origin)
    assert taken(decision) == ["choose", "left", "both"]
    assert names(decision).count("WorkSkipped") == 1
    assert story.states["right"] == "SKIPPED"
    assert story.ready == ["bad"]


def test_what_depends_on_a_failure_that_was_handled_is_done_again():
    nodes = [node("bad"), node("rescue"), node("after"), node("end")]
    origin = begun(*nodes, edges=[edge("bad", "rescue", "failure"), *chain("rescue", "after", "end")])
    origin.fail("bad")
    origin.do("rescue", "after", "end")
    story, decision = fork(origin, from_node="end")
    assert taken(decision) == []
    assert story.ready == ["bad"]


def test_a_join_of_any_edge_is_taken_over_only_with_all_nodes_before_it():
    nodes = [node("quick"), node("slow"), node("first", join="ANY"), node("end")]
    edges = [*chain("quick", "first", "end"), *chain("slow", "first")]
    origin = started(*nodes, edges=edges)
    origin.do("quick", "first", "end")
    origin.assign("slow")
    origin.fail("slow")
    story, decision = fork(origin)
    assert taken(decision) == ["quick"]
    assert story.ready == ["slow", "first"]


def test_another_version_takes_over_nodes_with_the_same_id_and_module():
    origin = started(*map(node, "abcd"), edges=chain("a", "b", "c"))
    origin.do("a", "d", "b")
    origin.assign("c")
    origin.fail("c")
    new = [node("a"), node("new"), node("b"), node("c"), node("d", "x.y@1")]
    story, decision = fork(origin, *new, edges=[*chain("a", "b", "c"), *chain("new", "c")])
    assert taken(decision) == ["a", "b"]
    assert story.ready == ["new", "d"]


def test_a_node_behind_a_new_one_is_done_again():
    origin = started(*map(node, "abc"), edges=chain("a", "b", "c"))
    origin.do("a", "b")
    story, decision = fork(origin, node("a"), node("new"), node("b"), node("c"), edges=[*chain("a", "new", "b", "c")])
    assert taken(decision) == ["a"]
    assert story.ready == ["new"]


def test_a_branch_that_the_new_version_does_not_know_is_not_taken():
    origin = started(node("a"), node("b"), edges=[edge("a", "b", "left")])
    origin.assign("a")
    origin.succeed("a", branch="left")
    _, decision = fork(origin, node("a"), node("b"), edges=[edge("a", "b", "right")])
    assert names(decision) == ["ExecutionStarted", "WorkTakenOver", "WorkSkipped", "ExecutionFinished"]


def test_stored_outputs_go_along_by_reference():
    origin = begun(node("a"), node("b"), edges=chain("a", "b"))
    ref = OutputRef("outputs/ab/cd", "ab" * 32, 300_000)
    origin.succeed("a", ref)
    _, decision = fork(origin)
    assert the_event("WorkTakenOver", decision).output == ref


def test_the_state_that_nodes_have_set_goes_along():
    origin = started(
        node("set", "state.set@1", inputs={"region": "eu"}), node("bad"),
        edges=chain("set", "bad"), initialState={"region": "us", "x": 1},
    )  # fmt: skip
    origin.assign("bad")
    origin.fail("bad")
    story, decision = fork(origin)
    assert taken(decision) == ["set"]
    assert json.loads(seen_state(story.execution, story.definition.nodes["bad"])) == {"region": "eu", "x": 1}


def _any_of_two_setters():
    nodes = [
        node("left", "state.set@1", inputs={"v": "{{ 1 }}"}),
        node("right", "state.set@1", inputs={"v": "{{ 2 }}"}),
    ]
    nodes += [node("first", join="ANY"), node("bad")]
    return nodes, [*chain("left", "first", "bad"), *chain("right", "first")]


def test_the_state_is_that_of_the_path_which_was_first_in_the_origin():
    nodes, edges = _any_of_two_setters()
    origin = started(*nodes, edges=edges)
    for id, value in (("right", 2), ("left", 1)):
        origin.assign(id)
        origin.succeed(id, json.dumps({"v": value}).encode())
    origin.do("first")
    origin.assign("bad")
    origin.fail("bad")
    assert origin.work("first").begun_by == "right"
    story, decision = fork(origin)
    assert the_event("WorkTakenOver", decision, "first").begun_by == "right"
    assert json.loads(seen_state(story.execution, story.definition.nodes["bad"])) == {"v": 2}
    # In another version the path may be gone.
    alone = [each for each in nodes if each["id"] != "right"]
    _, decision = fork(origin, *alone, edges=edges[:2])
    assert the_event("WorkTakenOver", decision, "first").begun_by == ""


def _undoable(id):
    return node(id, compensate={"module": "shop.undo@1"})


def test_what_was_undone_is_done_again_and_what_could_not_be_undone_is_taken_over():
    origin = started(_undoable("a"), _undoable("b"), node("bad"), edges=[*chain("a", "bad"), *chain("b", "bad")])
    origin.do("a", "b")
    origin.assign("bad")
    origin.fail("bad")
    assert finished_work(origin.execution, "") == {}, "b is being undone, and a is next"
    origin.assign("b$undo")
    origin.fail("b$undo")
    origin.do("a$undo")
    assert origin.state == "FAILED"
    story, decision = fork(origin)
    assert taken(decision) == ["b"]
    assert story.ready == ["a"]


def test_what_an_ending_execution_may_be_about_to_undo_is_not_taken_over():
    origin = started(_undoable("a"), node("plain"), node("long"), edges=chain("a", "long"))
    origin.do("a", "plain")
    origin.assign("long")
    origin.when(Cancel("m1", "enough", "ann"))
    assert set(finished_work(origin.execution, "")) == {"plain"}


def test_a_fork_does_not_undo_what_it_took_over():
    origin = started(_undoable("a"), _undoable("b"), node("c"), edges=chain("a", "b", "c"))
    origin.do("a", "b", "c")
    story, decision = fork(origin, from_node="b")
    assert taken(decision) == ["a"]
    story.do("b")
    story.assign("c")
    decision = story.fail("c")
    assert [key.node for key in the_event("CompensationStarted", decision).works] == ["b$undo"]


def test_work_of_a_later_generation_is_taken_over_under_the_first_key():
    origin = failed()
    origin.retry("a")
    origin.assign("a")
    origin.succeed("a", b'"again"')
    _, decision = fork(origin)
    event = the_event("WorkTakenOver", decision)
    assert (event.key, event.output, event.origin_run) == (WorkKey("a"), b'"again"', 3)


def test_a_fork_of_a_fork_takes_over_what_that_one_took_over():
    origin = failed()
    first, _ = fork(origin)
    first.assign("bad")
    first.fail("bad")
    _, decision = fork(first)
    assert taken(decision) == ["a"]


def test_a_person_may_have_taken_over_work_done_again():
    story, _ = fork(failed())
    story.do("bad", "after")
    story.retry("a")
    assert story.ready == ["a"]
    story.do("a", "bad", "after")
    assert (story.state, len(story.execution.runs)) == ("SUCCESS", 6)


def test_a_fork_that_was_paused_in_the_queue_takes_over_and_begins_nothing():
    nap = node("nap", "sleep@1", config={"duration": "60s"})
    origin = started(node("a"), node("bad"), nap, edges=[*chain("a", "bad"), *chain("a", "nap")])
    origin.do("a")
    story, decision = fork(origin, command={"pause": Pause("p1", "ann", "look")})
    assert names(decision) == ["ExecutionStarted", "WorkTakenOver", "ExecutionPaused"]
    assert story.state == "PAUSED"


@pytest.mark.parametrize("more", [{"cancel": Cancel("m1")}, {"deadline": 1}])
def test_a_fork_that_ends_before_it_begins_takes_over_nothing(more):
    story, decision = fork(failed(), command=more)
    assert taken(decision) == []
    assert story.execution.is_final


def test_a_late_report_cannot_name_a_run_that_was_taken_over():
    story, _ = fork(failed())
    decision = story.when(ReportStopped(1, story.run("a").epoch))
    assert decision.refusal is None or decision.refusal.reason in RefusalReason
    assert story.states["a"] == "SUCCEEDED"


def test_what_the_core_cannot_take_over_is_left_alone():
    story = Story([node("a"), node("b")], chain("a", "b"))
    found = {name: FinishedWork(("noop@1", ""), 7, b"{}", "", "") for name in ("b", "gone")}
    decision = story.start(finished=found)
    assert events(decision) == [("ExecutionStarted",)]
    assert story.ready == ["a"]


def test_failures_that_are_tried_again_are_not_taken_over():
    origin = begun(node("a", retry={"attempts": 3}))
    origin.fail("a", ErrorClass.TRANSIENT)
    assert finished_work(origin.execution, "") == {}
