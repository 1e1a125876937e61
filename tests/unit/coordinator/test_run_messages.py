"""The grant of a run."""

from typing import cast

import pytest

from services.coordinator.core.commands import ReportProgress
from services.coordinator.rpc.run_messages import run_grant
from tests.support.story import BEGIN, SECOND, Story, edge, node, started
from windlass.coordinator.v1 import sessions_pb2 as pb


def granted(story: Story, now: int = BEGIN) -> pb.RunGrant:
    (effect,) = story.effects
    return cast("pb.RunGrant", run_grant(story.execution, effect, "key", now).work)


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
    assert (story.run("b").number, grant.module, grant.may_have_run_before) == (3, "noop@1", False)


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
