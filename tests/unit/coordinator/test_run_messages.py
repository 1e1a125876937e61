"""The grant of a run."""

from typing import cast

import pytest

from services.chassis.grpc.timestamps import micros_of
from services.coordinator.core.commands import ReportProgress
from services.coordinator.core.values import OutputRef
from services.coordinator.rpc.run_messages import run_grant, run_of_key
from tests.support.story import BEGIN, SECOND, Story, begun, edge, node, started
from windlass.coordinator.v1 import sessions_pb2 as pb


def granted(story: Story, now: int = BEGIN) -> pb.RunGrant:
    (effect,) = story.effects
    return cast("pb.RunGrant", run_grant(story.execution, effect, "key", "", 8, now).work)


@pytest.mark.parametrize(("seconds_later", "seconds_left"), [(0, 60), (59, 1), (61, 0)])
def test_grant_says_what_is_left_of_the_executions_deadline(seconds_later: int, seconds_left: int) -> None:
    story = Story([node("a", timeout="5s")])
    story.start(deadline=BEGIN + 60 * SECOND)
    story.assign()
    grant = granted(story, BEGIN + seconds_later * SECOND)
    assert grant.HasField("execution_left")
    assert grant.execution_left.ToMicroseconds() == seconds_left * SECOND
    assert grant.timeout.ToSeconds() == 5


def test_grant_of_an_execution_without_a_deadline_says_nothing_of_one() -> None:
    story = started(node("a", timeout="5s"))
    story.assign()
    assert not granted(story).HasField("execution_left")


def test_a_grant_has_what_its_templates_see() -> None:
    story = Story(
        [node("a"), node("b", inputs={"x": "{{ nodes.a.output }} {{ nodes.c.output }}"}), node("c")],
        [edge("a", "b"), edge("a", "c", "never"), edge("c", "b")],
        initialState={"r": "eu"},
    )
    story.start(input=b'{"i":1}')
    story.assign("a")
    plain = granted(story)
    assert (plain.execution_input, plain.state, dict(plain.outputs), plain.render_only) == (b"", b"", {}, False)
    story.succeed("a")
    story.assign("b")
    grant = granted(story)
    assert (grant.execution_input, grant.state) == (b'{"i":1}', b'{"r":"eu"}')
    assert {name: output.json for name, output in grant.outputs.items()} == {"a": b'{"ok":true}'}
    assert {name: node.state for name, node in grant.without_output.items()} == {"c": "SKIPPED"}
    assert not grant.workflow_version
    assert not grant.HasField("execution_create_time"), "no template reads them"
    assert (story.run("b").number, grant.module, grant.may_have_run_before) == (3, "noop@1", False)


def test_a_grant_says_why_an_earlier_node_failed() -> None:
    reader = node("b", inputs={"x": "{{ nodes.a.error.message }}", "v": "{{ execution.version }}"})
    story = begun(node("a"), reader, edges=[edge("a", "b", "failure")])
    story.fail("a")
    story.assign("b")
    grant = granted(story)
    failed = grant.without_output["a"]
    assert (failed.state, failed.error_type, failed.error_message) == ("FAILED", "BOOM", "a went wrong 42 times")
    assert grant.workflow_version == 1
    assert micros_of(grant.execution_create_time) == BEGIN


def test_the_grant_of_a_compensation_says_why_the_execution_ends_and_has_no_deadline() -> None:
    undo = {"module": "noop@1", "inputs": {"why": "{{ error.message }}"}}
    story = Story([node("a", compensate=undo), node("b")], [edge("a", "b")])
    story.start(deadline=BEGIN + 60 * SECOND)
    story.do("a")
    story.assign("b")
    assert not granted(story).HasField("execution_error")
    story.fail("b")
    story.assign("a$undo")
    grant = granted(story)
    error = grant.execution_error
    assert (grant.node, error.node, error.type, error.message) == ("a$undo", "b", "BOOM", "b went wrong 42 times")
    assert not grant.HasField("execution_left")


def test_the_grant_of_an_item_has_the_item_alone() -> None:
    body = {"module": "noop@1", "inputs": {"x": "{{ item }}"}}
    story = started(
        node("each", "for_each@1", config={"items": [{"id": 7}, {"id": 8}], "maxParallel": 1, "body": body})
    )
    story.assign()
    grant = granted(story)
    assert (grant.node, grant.module, grant.iteration, grant.item) == ("each", "noop@1", 1, b'{"id":7}')
    assert (grant.config, grant.until) == (b"{}", "")


def test_an_item_without_templates_is_granted_without_the_item() -> None:
    story = started(node("each", "for_each@1", config={"items": [7], "body": {"module": "noop@1"}}))
    story.assign()
    assert (granted(story).item, granted(story).has_templates) == (b"", False)


def test_the_grant_of_a_turn_has_its_until() -> None:
    story = started(node("again", "repeat@1", config={"until": "output.done", "body": {"module": "noop@1"}}))
    story.assign()
    assert (granted(story).until, granted(story).iteration, granted(story).item) == ("output.done", 1, b"")


def test_a_grant_after_a_lost_runner_says_so_and_has_its_cursor() -> None:
    story = started(node("a", idempotent=True))
    story.assign("a")
    first = granted(story)
    assert (first.attempt, first.may_have_run_before, first.idempotent, first.cursor) == (1, False, True, b"")
    story.when(ReportProgress(1, story.run("a").epoch, 0.5, "", b'{"row":7}'))
    story.lose()
    story.assign("a")
    second = granted(story)
    assert (second.attempt, second.may_have_run_before) == (2, True)
    assert (second.idempotent, second.cursor) == (True, b'{"row":7}')


def test_the_renderer_of_a_control_node_is_granted_its_config_as_inputs() -> None:
    story = Story([node("s", "sleep@1", config={"duration": "{{ input.wait }}"})])
    story.start(input=b'{"wait":"7s"}')
    story.assign("s")
    grant, template = granted(story), b'{"duration":"{{ input.wait }}"}'
    assert (grant.render_only, grant.module, grant.config) == (True, "transform@1", template)
    assert (grant.inputs, grant.execution_input) == (template, b'{"wait":"7s"}')


def test_grant_to_a_renderer_and_the_one_after_it() -> None:
    story = Story([node("a", config={"c": "{{ input.n }}"}, inputs={"x": "{{ input.n }}"}, timeout="5s")])
    story.start(input=b'{"n":7}')
    story.assign("a", is_rendering=True)
    first = granted(story)
    assert (first.render_all, first.has_templates, first.attempt, first.execution_input) == (True, True, 0, b'{"n":7}')
    assert not first.HasField("timeout")
    story.succeed("a", b'{"config":{"c":7},"inputs":{"x":7}}')
    story.assign("a")
    second = granted(story)
    assert (second.render_all, second.has_templates, second.attempt, second.execution_input) == (False, False, 1, b"")
    assert (second.config, second.inputs, second.timeout.ToSeconds()) == (b'{"c":7}', b'{"x":7}', 5)


def test_large_rendered_documents_go_by_reference() -> None:
    story = Story([node("a", inputs={"x": "{{ input.n }}"})])
    story.start(input=b'{"n":7}')
    story.assign("a", is_rendering=True)
    story.succeed("a", OutputRef("ab/cd.json", "ab" * 32, 300_000))
    story.assign("a")
    grant = granted(story)
    assert (grant.config, grant.inputs, grant.rendered.key, grant.rendered.size_bytes) == (
        b"",
        b"",
        "ab/cd.json",
        300_000,
    )


MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize(
    ("input_bytes", "outputs", "is_input_here", "outputs_here"),
    [(100, 3, True, 3), (3 * MEBIBYTE, 0, False, 0), (MEBIBYTE, 20, False, 8), (100, 120, True, 8)],
)
def test_grant_leaves_the_largest_data_to_be_fetched_and_has_less_than_four_mebibytes(
    input_bytes: int, outputs: int, is_input_here: bool, outputs_here: int
) -> None:
    sources = [node(f"n{number}") for number in range(outputs)]
    sum_ = node("sum", "transform@1", config={"x": "y" * 900_000}, inputs={"x": "{{ nodes|length }}"})
    story = Story([*sources, sum_], [edge(each["id"], "sum") for each in sources])
    story.start(input=b'"' + b"x" * input_bytes + b'"')
    for number in range(outputs):
        story.assign(f"n{number}")
        story.succeed(f"n{number}", b'"' + b"y" * (256 * 1024 - 2 - number) + b'"')
    story.assign("sum")
    grant = granted(story)
    assert grant.ByteSize() < 3.5 * MEBIBYTE
    assert grant.HasField("execution_input_ref") is not is_input_here
    here = {name for name, output in grant.outputs.items() if output.HasField("json")}
    assert here == {f"n{number}" for number in range(outputs - outputs_here, outputs)}, "the smallest go along"
    for name in grant.outputs.keys() - here:
        run = story.execution.runs[run_of_key(grant.outputs[name].ref.key) - 1]
        assert (run.work.node.id, len(run.output)) == (name, grant.outputs[name].ref.size_bytes)


@pytest.mark.parametrize("key", ["", "runs/", "runs/x", "runs/-1", "runs/1234567890", "ab/cd.json", "$input"])
def test_key_of_something_else_names_no_run(key: str) -> None:
    assert run_of_key(key) == 0
