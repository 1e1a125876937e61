"""Templates see outputs of other nodes. If those are too large for any runner, the node is not granted and fails."""

from services.coordinator.core.commands import ReportFailure
from services.coordinator.core.effects import GrantRun, StopRun
from services.coordinator.core.inputs import INPUTS_BYTES_MAX
from services.coordinator.core.values import INLINE_BYTES_MAX, Error, ErrorClass, OutputRef
from tests.support.story import begun, edge, names, node, started, the_event

LARGE = b'"' + b"x" * (INLINE_BYTES_MAX - 2) + b'"'
COUNT = INPUTS_BYTES_MAX // INLINE_BYTES_MAX + 1
SOURCES = [f"n{number}" for number in range(COUNT)]


def seeing_all(id):
    return node(id, "transform@1", inputs={"x": "{{ nodes|length }}"})


def gathered(*sums, last=LARGE, edges=(), **more):
    """All sources have given a large output, the last of them this one."""
    into = [edge(source, target) for target in sums for source in SOURCES]
    nodes = [*map(node, SOURCES), *map(seeing_all, sums)]
    story = started(*nodes, *more.pop("others", ()), edges=[*into, *edges], **more)
    story.assign(*SOURCES)
    for source in SOURCES[:-1]:
        story.succeed(source, LARGE)
    story.succeed(SOURCES[-1], last)
    return story


def test_inputs_that_fit_are_granted():
    story = gathered("sum", last=b"")
    assert names(story.assign()) == ["RunLeased"]
    (granted,) = story.effects
    assert sum(len(value) for _, value in granted.outputs) == INPUTS_BYTES_MAX


def test_an_output_that_is_kept_outside_counts_with_its_name_alone():
    story = gathered("sum", last=OutputRef("k", "s", 10**9))
    assert "RunFailed" in names(story.assign()), "two bytes too many"
    story = gathered("sum", last=OutputRef("", "", 10**9))
    story.assign()
    assert [type(effect) for effect in story.effects] == [GrantRun]


def test_inputs_that_no_runner_can_be_handed_fail_the_node_for_good():
    story = gathered("sum")
    decision = story.assign(instance="i7")
    assert names(decision) == ["RunLeased", "RunFailed", "ExecutionFinished"]
    assert not any(isinstance(effect, GrantRun | StopRun) for effect in story.effects)
    run = story.run("sum")
    assert (run.state, run.attempt, run.instance_id, run.runner) == ("FAILED", 1, "", "")
    assert (run.error.error_class, run.error.type) == ("PERMANENT", "INPUTS_TOO_LARGE")
    assert str(COUNT * INLINE_BYTES_MAX) in run.error.message
    assert "refer to fewer outputs" in run.error.message
    assert (story.state, story.execution.error.node) == ("FAILED", "sum")


def test_what_handles_the_failure_goes_on():
    story = gathered("sum", others=[node("rescue")], edges=[edge("sum", "rescue", "failure")])
    assert names(story.assign()) == ["RunLeased", "RunFailed"]
    assert story.ready == ["rescue"]
    story.do("rescue")
    assert story.state == "SUCCESS"


def test_numbers_of_runs_follow_those_of_the_leases():
    story = gathered(
        "one",
        "two",
        others=[node("not_taken"), node("free"), node("free_too")],
        edges=[edge("one", "not_taken")] + [edge(SOURCES[0], free) for free in ("free", "free_too")],
    )
    decision = story.assign("free", "one", "free_too")
    assert names(decision) == [*["RunLeased"] * 3, "RunFailed", "WorkBlocked"]
    assert [the_event("RunLeased", decision, id).run - COUNT for id in ("free", "one", "free_too")] == [1, 2, 3]
    assert the_event("RunFailed", decision).run == COUNT + 2
    assert [effect.run.number for effect in story.effects] == [COUNT + 1, COUNT + 3]
    assert story.states["not_taken"] == "BLOCKED"
    assert story.ready == ["two"]


def test_fail_fast_stops_what_was_leased_along_with_it():
    story = gathered("one", "two", others=[node("free")], onFailure="FAIL_FAST")
    decision = story.assign("one", "two", "free")
    assert names(decision) == [*["RunLeased"] * 3, "RunFailed", "StopOrdered", "RunFailed"]
    reasons = [the_event("RunFailed", decision, id).reason for id in ("one", "two")]
    assert reasons == ["PERMANENT_ERROR", "STOPPED"]
    assert (story.states["one"], story.states["two"]) == ("FAILED", "CANCELLED")
    told = [effect for effect in story.effects if isinstance(effect, StopRun)]
    assert [effect.number for effect in told] == [story.run("free").number]
    story.later(2)
    story.tick()
    assert story.state == "FAILED"


def test_output_of_the_workflow_that_sees_too_much_fails_the_execution():
    story = gathered(output={"n": "{{ nodes|length }}"})
    assert story.ready == ["$output"]
    story.assign()
    assert story.state == "FAILED"
    assert (story.execution.error.node, story.execution.error.type) == ("$output", "INPUTS_TOO_LARGE")


def seen_by(story, id):
    """The nodes without an output that the templates of the node see, each with its state and its error."""
    story.assign(id)
    (grant,) = story.effects
    errors = {each.id: each.error for each in grant.without_output}
    return {each.id: each.state for each in grant.without_output}, {id: each for id, each in errors.items() if each}


def test_a_template_behind_a_failure_edge_sees_the_error():
    reader = node("alarm", inputs={"why": "{{ nodes.a.error.message }}"})
    story = begun(node("a"), reader, edges=[edge("a", "alarm", "failure")])
    story.fail("a")
    assert seen_by(story, "alarm") == (
        {"a": "FAILED"},
        {"a": Error(ErrorClass.PERMANENT, "BOOM", "a went wrong 42 times")},
    )


def test_templates_see_how_each_node_without_an_output_stands():
    reader = node("sum", inputs={"x": "{{ nodes }}"}, join="ANY")
    into = [edge(id, "sum", "always") for id in ("bad", "skipped", "blocked", "slow")]
    story = begun(
        *map(node, ["bad", "skipped", "blocked", "slow", "good"]), reader,
        edges=[edge("good", "skipped", "never"), edge("bad", "blocked"), *into],
    )  # fmt: skip
    story.succeed("good")
    story.fail("bad")
    states, errors = seen_by(story, "sum")
    assert states == {"bad": "FAILED", "skipped": "SKIPPED", "blocked": "BLOCKED", "slow": "PENDING"}
    assert list(errors) == ["bad"]
    assert [name for name, _ in story.effects[0].outputs] == ["good"]


def test_nodes_that_no_template_reads_are_not_in_the_grant():
    reader = node("alarm", inputs={"x": "{{ input.x }}"})
    story = begun(node("a"), reader, edges=[edge("a", "alarm", "failure")])
    story.fail("a")
    assert seen_by(story, "alarm") == ({}, {})


def test_many_long_messages_share_the_room_of_a_grant():
    count = 100
    sources = [f"n{number}" for number in range(count)]
    reader = node("alarm", inputs={"x": "{{ nodes }}"})
    story = begun(*map(node, sources), reader, edges=[edge(id, "alarm", "failure") for id in sources])
    for id in sources:
        run = story.run(id)
        story.when(ReportFailure(run.number, run.epoch, Error(ErrorClass.PERMANENT, "BOOM", "x" * 8_192), 0.0))
    lengths = {len(error.message) for error in seen_by(story, "alarm")[1].values()}
    assert lengths == {128 * 1024 // count}
