"""A runner renders work for another one that cannot."""

import pytest

from services.coordinator.core.commands import ReportStarted, ReportStopped
from services.coordinator.core.effects import GrantRun
from services.coordinator.core.retry import DEATHS_MAX
from services.coordinator.core.values import ErrorClass, FailureReason, OutputRef, ReleaseReason
from tests.support.story import SECOND, Story, events, fields, names, node, the_event

RENDERED = b'{"config":{},"inputs":{"x":7}}'


def rendering(**more: object) -> Story:
    """The work is with its renderer."""
    story = Story([node("a", "x.y@1", inputs={"x": "{{ input.n }}"}, **more)])
    story.start(input=b'{"n":7}')
    story.assign("a", is_rendering=True)
    return story


def test_rendered_work_is_ready_for_its_first_attempt():
    story = rendering()
    assert fields(story.run("a"), "attempt", "is_idempotent") == (0, True)
    rendered = story.succeed("a", RENDERED)
    assert events(rendered, "node", "run", "rendered") == [("WorkRendered", "a", 1, RENDERED)]
    assert (story.ready, story.work("a").is_templated, story.run("a").state.value) == (["a"], False, "SUCCESS")
    assert story.succeed("a", RENDERED).events == [], "the same report again"
    leased = the_event("RunLeased", story.assign("a", instance="i2"))
    assert (leased.run, leased.attempt, leased.is_idempotent) == (2, 1, False)
    (grant,) = story.effects
    assert isinstance(grant, GrantRun)
    assert not grant.outputs
    assert not story.work("a").may_have_run_before
    story.succeed("a")
    assert (story.state, story.execution.output) == ("SUCCESS", b'{"a":{"ok":true}}')


def test_what_was_rendered_serves_every_attempt():
    story = rendering(retry={"attempts": 2})
    story.succeed("a", OutputRef("ab/cd.json", "ab" * 32, 300_000))
    story.assign("a", instance="i2")
    story.fail("a", ErrorClass.TRANSIENT)
    story.wake()
    again = story.again()
    assert again.work("a").rendered == OutputRef("ab/cd.json", "ab" * 32, 300_000)
    assert the_event("RunLeased", again.assign("a")).attempt == 2


@pytest.mark.parametrize("output", [b"[]", b"{}", b'{"config":{},"inputs":1}'])
def test_renderer_that_returns_something_else_fails_the_work(output):
    story = rendering()
    failed = the_event("RunFailed", story.succeed("a", output))
    assert (failed.error.type, failed.error.error_class) == ("INVALID_CONFIG", ErrorClass.PERMANENT)
    assert story.state == "FAILED"


def test_failed_rendering_is_tried_again_and_has_had_no_effect():
    story = rendering(retry={"attempts": 2})
    story.fail("a", ErrorClass.TRANSIENT)
    story.wake()
    work = story.work("a")
    assert (story.ready, work.is_templated, work.attempts, work.may_have_run_before) == (["a"], True, 0, False)


def test_lost_or_released_renderer_leaves_no_doubt_about_effects():
    story = rendering()
    story.lose()
    assert (story.ready, story.work("a").may_have_run_before) == (["a"], False)
    story.assign("a", is_rendering=True)
    story.release("a", ReleaseReason.WITHDRAWN, may_have_begun=True)
    assert (story.ready, story.work("a").may_have_run_before) == (["a"], False)


def test_lost_renderers_are_no_deaths_of_the_work():
    story = rendering()
    for number in range(DEATHS_MAX):
        story.lose(f"i{number + 1}", has_begun_runs=True)
        assert story.ready == ["a"]
        story.assign("a", instance=f"i{number + 2}", is_rendering=True)
    story.succeed("a", RENDERED)
    assert fields(story.work("a"), "dead_instances", "was_spared") == ((), False)


def test_work_whose_renderers_die_again_and_again_is_poison():
    story = rendering()
    for number in range(1, DEATHS_MAX):
        lost = the_event("RunLost", story.lose(f"i{number}"))
        assert fields(lost, "is_spared", "reason") == (False, None)
        story.assign("a", instance=f"i{number + 1}", is_rendering=True)
    story = story.again()
    last = the_event("RunLost", story.lose(f"i{DEATHS_MAX}"))
    assert last.reason is FailureReason.POISON
    assert last.error.message.endswith(", which rendered its templates for another runner")
    assert (story.state, story.run("a").state.value, story.execution.error.type) == ("FAILED", "DLQ", "POISON")
    assert not story.work("a").may_have_run_before


def test_rendering_that_had_not_begun_is_spared_once_and_the_work_once_more():
    story = rendering()
    for is_rendering in (True, False):
        lost = the_event("RunLost", story.lose("i1", has_begun_runs=True))
        assert fields(lost, "is_spared", "reason") == (is_rendering, None)
        story.assign("a", instance="i1", is_rendering=True)
    story.succeed("a", RENDERED)
    story.assign("a", instance="i2")
    assert the_event("RunLost", story.lose("i2", has_begun_runs=True)).is_spared


def test_timeout_of_the_node_is_for_the_work_and_not_for_its_rendering():
    story = rendering(timeout="5s")
    story.when(ReportStarted(1, story.run("a").epoch, story.now))
    assert story.execution.next_wake() == 0
    story.succeed("a", RENDERED)
    story.assign("a", instance="i2")
    assert story.execution.next_wake() == story.now + 10 * SECOND


def test_rendering_of_an_ending_execution_ends_with_it():
    story = rendering()
    story.cancel()
    assert names(story.succeed("a", RENDERED)) == ["RunCancelled", "ExecutionFinished"]
    other = rendering()
    other.cancel()
    assert names(other.when(ReportStopped(1, other.run("a").epoch))) == ["RunCancelled", "ExecutionFinished"]
