"""The workflow's state is a function of the nodes before, and not of the time."""

import json

import pytest

from services.coordinator.core.state import Execution
from services.coordinator.core.values import INLINE_BYTES_MAX, OutputRef
from services.coordinator.core.workflow_state import STATE_VALUE_BYTES_MAX, seen_state
from tests.support.story import Story, begun, chain, edge, names, node, started, the_event

CONFLICT = "{} and {}, none of which comes before the other, set state.{} to different values"


def sets(id, **inputs):
    return node(id, "state.set@1", inputs=inputs)


def seen(story, id):
    """The state that the node's templates see, which is the same for a successor that has only the journal."""
    found = seen_state(story.execution, story.definition.nodes[id])
    again = story.again()
    assert seen_state(again.execution, again.definition.nodes[id]) == found
    return json.loads(found)


def error_of(story, id):
    error = story.run(id).error
    return error.type, error.message


def test_nodes_see_what_the_nodes_before_them_have_set():
    story = started(
        sets("a", x=1, y=[2]), node("b"), sets("c", x=3), node("d"), node("beside"),
        edges=chain("a", "b", "c", "d"), initialState={"x": 0, "z": None},
    )  # fmt: skip
    assert story.states["a"] == "SUCCEEDED", "it needs no runner"
    story.do("b")
    assert seen(story, "a") == seen(story, "beside") == {"x": 0, "z": None}
    assert seen(story, "b") == seen(story, "c") == {"x": 1, "y": [2], "z": None}
    assert seen(story, "d") == {"x": 3, "y": [2], "z": None}
    assert story.run("a").output == b'{"x":1,"y":[2]}'


def test_a_workflow_that_sets_nothing_sees_its_initial_state_as_it_is_written():
    story = Story([node("a")], initialState={"r": "eu"})
    assert seen_state(story.execution, story.definition.nodes["a"]) is story.definition.initial_state
    assert story.definition.setters == {}


def test_what_a_runner_rendered_is_what_is_set():
    story = begun(sets("a", x="{{ input.n }}"), node("b"), edges=chain("a", "b"))
    assert story.effects[0].run.work.node.runner_module == "transform@1"
    story.succeed("a", b'{"x":7}')
    assert seen(story, "b") == {"x": 7}
    assert story.run("a").output == b'{"x":7}'


@pytest.mark.parametrize("output", [b"7", b"nonsense", OutputRef("k", "s", 10**6)])
def test_what_a_renderer_must_not_return_fails_the_node(output):
    story = begun(sets("a", x="{{ input.n }}"))
    story.succeed("a", output)
    assert error_of(story, "a")[0] == "INVALID_CONFIG"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": "y" * STATE_VALUE_BYTES_MAX}, f"state.x has more than {STATE_VALUE_BYTES_MAX} bytes of JSON"),
        (
            {f"k{number}": "y" * (STATE_VALUE_BYTES_MAX - 2) for number in range(16)},
            f"all keys together have more than {INLINE_BYTES_MAX} bytes of JSON",
        ),
    ],
)
def test_the_state_is_bounded(inputs, message):
    story = started(sets("a", **inputs))
    assert error_of(story, "a") == ("STATE_TOO_LARGE", message)
    fitting = started(sets("a", x="y" * (STATE_VALUE_BYTES_MAX - 2)))
    assert fitting.state == "SUCCESS"


def diamond(*meeting, more=(), **document):
    """`a` is before `l` and `r`, and these before `j`."""
    nodes = [sets("a", x=0, kept=1), *meeting, node("j")]
    edges = [edge("a", "l"), edge("a", "r"), edge("l", "j"), edge("r", "j"), *more]
    return started(*nodes, edges=edges, **document)


def test_states_are_merged_where_branches_meet():
    story = diamond(sets("l", left=1), sets("r", right=2, kept=2))
    assert seen(story, "j") == {"x": 0, "kept": 2, "left": 1, "right": 2}
    assert seen(story, "l") == seen(story, "r") == {"x": 0, "kept": 1}
    assert names(story.assign("j")) == ["RunLeased"]


def test_the_same_value_twice_is_no_conflict():
    story = diamond(sets("l", v={"a": 1, "b": 2}), sets("r", v={"b": 2, "a": 1}))
    assert names(story.assign("j")) == ["RunLeased"]
    assert seen(story, "j")["v"] == {"a": 1, "b": 2}


def test_two_branches_that_set_a_key_to_different_values_are_a_fault_where_they_meet():
    story = diamond(sets("l", v=1), sets("r", v=2))
    decision = story.assign("j")
    assert names(decision) == ["RunLeased", "RunFailed", "ExecutionFinished"]
    assert the_event("RunLeased", decision).instance_id == ""
    assert error_of(story, "j") == ("STATE_CONFLICT", CONFLICT.format("l", "r", "v"))
    assert (story.state, story.execution.error.node) == ("FAILED", "j")


@pytest.mark.parametrize("value", [1.0, "1", True, None])
def test_values_of_different_types_differ(value):
    story = diamond(sets("l", v=1), sets("r", v=value))
    assert "RunFailed" in names(story.assign("j"))


def test_a_control_node_where_states_conflict_fails_without_a_runner():
    story = started(sets("l", v=1), sets("r", v=2), node("j", "join@1"), edges=[edge("l", "j"), edge("r", "j")])
    assert error_of(story, "j") == ("STATE_CONFLICT", CONFLICT.format("l", "r", "v"))


def test_what_handles_a_conflict_sees_the_first_value_and_no_conflict():
    story = diamond(
        sets("l", v=1),
        sets("r", v=2),
        node("h"),
        node("k"),
        more=[edge("j", "h", "failure"), edge("h", "k"), edge("a", "k")],
    )
    story.assign("j")
    assert names(story.assign("h")) == ["RunLeased"]
    story.succeed("h")
    assert names(story.assign("k")) == ["RunLeased"]
    assert seen(story, "k")["v"] == 1


def test_a_later_value_wins_over_a_path_around_it():
    story = started(sets("a", x=1), sets("b", x=2), node("j"), edges=[*chain("a", "b", "j"), edge("a", "j")])
    assert seen(story, "j") == {"x": 2}
    assert names(story.assign("j")) == ["RunLeased"]


def test_a_value_that_comes_after_two_others_ends_their_conflict():
    """`l` and `r` do not agree, but `c` comes after both."""
    story = started(
        sets("l", v=1), sets("r", v=2), node("h", "join@1"), sets("c", v=3), node("j"),
        edges=[edge("l", "h"), edge("r", "h"), edge("h", "c", "always"), *(edge(id, "j") for id in "clr")],
    )  # fmt: skip
    assert error_of(story, "h")[0] == "STATE_CONFLICT"
    assert seen(story, "j") == {"v": 3}
    assert names(story.assign("j")) == ["RunLeased"]


def test_a_branch_that_was_not_taken_sets_nothing():
    story = begun(
        node("if", "condition@1"), sets("l", v=1), sets("r", v=2), node("j"),
        edges=[edge("if", "l", "true"), edge("if", "r", "false"), edge("l", "j"), edge("r", "j")],
    )  # fmt: skip
    story.succeed("if", branch="false")
    assert seen(story, "j") == {"v": 2}
    assert names(story.assign("j")) == ["RunLeased"]


def test_a_node_that_failed_to_set_a_key_leaves_it_as_it_was():
    story = begun(
        sets("a", x=1), sets("b", x="{{ input.x }}"), node("c"), edges=[edge("a", "b"), edge("b", "c", "failure")]
    )
    story.assign("b")
    story.fail("b")
    assert seen(story, "c") == {"x": 1}


def test_a_join_of_any_branch_has_the_state_of_the_branch_that_it_began_on():
    story = started(
        sets("a", x=0), node("l"), node("r"), sets("ls", v=1), sets("rs", v=2), node("j", join="ANY"), node("k"),
        edges=[edge("a", "l"), edge("a", "r"), *chain("l", "ls", "j"), *chain("r", "rs", "j"), edge("j", "k")],
    )  # fmt: skip
    story.do("r")
    assert seen(story, "j") == {"x": 0, "v": 2}
    story.do("l")
    assert seen(story, "j") == {"x": 0, "v": 2}, "the other branch has ended since"
    assert names(story.assign("j")) == ["RunLeased"]
    story.succeed("j")
    assert seen(story, "k") == {"x": 0, "v": 2}


def test_a_join_of_any_branch_may_begin_with_the_initial_state():
    story = started(
        node("l"), node("r"), sets("rs", v=2), node("j", join="ANY"),
        edges=[edge("l", "j"), *chain("r", "rs", "j")], initialState={"v": 0},
    )  # fmt: skip
    story.do("l")
    assert seen(story, "j") == {"v": 0}


def test_a_join_of_any_branch_that_was_skipped_hands_on_what_was_set():
    story = begun(
        node("if"), sets("l", v=1), sets("r", w=2), node("j", join="ANY"), node("k"),
        edges=[edge("l", "j", "failure"), edge("r", "j", "failure"), edge("j", "k"), edge("if", "k")],
    )  # fmt: skip
    story.succeed("if")
    assert story.states["j"] == "SKIPPED"
    assert seen(story, "k") == {"v": 1, "w": 2}


@pytest.mark.parametrize(("template", "events"), [("{{ state.v }}", 3), ("{{ nodes.l.output.v }}", 1)])
def test_the_output_sees_the_state_of_all_leaves_only_if_it_reads_the_state(template, events):
    story = started(sets("l", v=1), sets("r", v=2), output={"x": template})
    assert len(story.assign("$output").events) == events


def test_a_chain_of_two_thousand_settings_is_read_at_its_end():
    ids = [f"n{number}" for number in range(2_000)]
    story = Story([*(sets(id, x=id) for id in ids), node("z")], chain(*ids, "z"))
    story.start()
    again: Execution = story.again().execution
    assert json.loads(seen_state(again, story.definition.nodes["z"])) == {"x": "n1999"}
    assert story.ready == ["z"]


def test_what_is_done_again_sets_its_keys_again():
    story = begun(sets("a", x="{{ input.x }}"), node("b"), node("bad"), edges=chain("a", "b", "bad"))
    story.succeed("a", b'{"x":1}')
    story.do("b")
    story.assign("bad")
    assert seen(story, "bad") == {"x": 1}
    story.fail("bad")
    story.retry(from_node="a")
    story.assign("a")
    story.succeed("a", b'{"x":2}')
    assert seen(story, "b") == {"x": 2}


def test_a_reopened_join_of_any_branch_has_the_state_of_the_branch_that_stays():
    """The node that lets it begin stays. The other branch is done again, and has not ended yet."""
    story = started(
        sets("l", v=1), node("r"), sets("rs", v=2), node("j", join="ANY"), node("k"),
        edges=[edge("l", "j"), *chain("r", "rs", "j"), edge("j", "k"), edge("rs", "k")],
    )  # fmt: skip
    story.do("r")
    story.assign("j")
    story.fail("j")
    assert story.state == "FAILED"
    story.retry(from_node="r")
    assert story.ready == ["r", "j"]
    assert seen(story, "j") == {"v": 1}
    story.do("j", "r")
    assert "RunFailed" in names(story.assign("k")), "both branches are seen where they meet"
