"""Nodes that the core does itself."""

import pytest

from services.coordinator.core import BrokenInvariant, decide, parking
from services.coordinator.core.commands import ReportSuccess
from services.coordinator.core.effects import Park
from services.coordinator.core.values import FailureReason, OutputRef
from tests.support.story import BEGIN, SECOND, Story, chain, edge, names, node


def test_a_join_passes_at_once():
    story = Story([node("a"), node("j", "join@1"), node("b")], chain("a", "j", "b"))
    story.start()
    story.assign("a")
    assert names(story.succeed("a")) == ["RunSucceeded", "JoinPassed"]
    assert story.ready == ["b"]
    assert (story.run("j").state.value, story.run("j").attempt, story.run("j").output) == (
        "SUCCESS",
        1,
        b"{}",
    )


def test_joins_alone_end_at_once():
    story = Story([node("j", "join@1"), node("k", "join@1")], chain("j", "k"))
    assert names(story.start()) == ["ExecutionStarted", "JoinPassed", "JoinPassed", "ExecutionFinished"]
    assert story.execution.output == b'{"k":{}}'


def test_a_sleep_waits_without_a_runner():
    story = Story([node("s", "sleep@1", config={"duration": "5s"}), node("b")], chain("s", "b"))
    assert names(story.start()) == ["ExecutionStarted", "SleepStarted"]
    assert (story.state, story.ready, story.run("s").state.value) == ("WAITING", [], "RUNNING")
    assert story.execution.next_wake() == story.now + 5 * SECOND
    story.later(4.999)
    assert story.tick().events == [], "never early"
    assert names(story.wake()) == ["SleepEnded"]
    assert story.ready == ["b"]
    assert story.tick().events == [], "never twice"


def test_a_sleep_until_a_time_that_has_passed_ends_at_the_next_tick():
    story = Story([node("s", "sleep@1", config={"until": "1970-01-01T00:00:09Z"})])
    story.start()
    assert names(story.tick()) == ["SleepEnded", "ExecutionFinished"]


def test_sleeps_due_together_end_together_in_order():
    story = Story(
        [node(id, "sleep@1", config={"duration": d}) for id, d in (("x", "2s"), ("y", "1s"), ("z", "9s"))]
    )
    story.start()
    story.later(3)
    decision = story.tick()
    assert [(type(event).__name__, event.number) for event in decision.events] == [
        ("SleepEnded", 2),
        ("SleepEnded", 1),
    ]


def test_a_templated_config_is_rendered_by_a_runner_first():
    story = Story([node("s", "sleep@1", config={"duration": "{{ input.wait }}"})])
    story.start(input=b'{"wait":"7s"}')
    assert story.ready == ["s"]
    story.assign("s")
    grant = story.effects[0]
    template = b'{"duration":"{{ input.wait }}"}'
    assert (grant.is_render_only, grant.module, grant.config) == (True, "transform@1", template)
    assert (grant.inputs, grant.input) == (template, b'{"wait":"7s"}')
    assert names(story.succeed("s", b'{"duration":"7s"}')) == ["ControlRendered", "SleepStarted"]
    run = story.run("s")
    assert (len(story.execution.runs), run.state.value, story.state) == (1, "RUNNING", "WAITING")
    again = story.when(ReportSuccess(1, run.epoch, b'{"duration":"7s"}'))
    assert (again.events, again.refusal) == ([], None)
    assert names(story.wake()) == ["SleepEnded", "ExecutionFinished"]
    assert story.now == BEGIN + 7 * SECOND


def test_until_may_be_rendered():
    story = Story([node("s", "sleep@1", config={"until": "{{ input }}"})])
    story.start()
    story.assign("s")
    story.succeed("s", b'{"until":"2100-01-01T00:00:00Z"}')
    assert story.execution.next_wake() == 4_102_444_800 * SECOND


@pytest.mark.parametrize(
    "output",
    [
        b'{"duration":"soon"}',
        b'{"duration":"366d"}',
        b'{"duration":5,"until":6}',
        b'{"until":"9999-12-31T23:59:59-01:00"}',
        b"[]",
        b"{",
        OutputRef("k", "", 300_000),
    ],
)
def test_a_config_that_makes_no_sense_fails_the_node(output):
    story = Story([node("s", "sleep@1", config={"duration": "{{ input }}"})])
    story.start()
    story.assign("s")
    decision = story.succeed("s", output)
    assert names(decision) == ["RunFailed", "ExecutionFinished"]
    assert decision.events[0].reason is FailureReason.PERMANENT_ERROR
    assert decision.events[0].error.type == "INVALID_CONFIG"


def test_a_lost_renderer_is_replaced_at_once():
    story = Story([node("s", "sleep@1", config={"duration": "{{ input }}"})])
    story.start()
    story.assign("s")
    story.lose(is_idempotent_only=True)
    assert story.ready == ["s"]


def test_a_rendered_node_that_has_nothing_to_render_is_a_bug():
    story = Story([node("s", "sleep@1", config={"duration": "{{ input }}"})])
    story.start()
    story.assign("s")
    from dataclasses import replace

    from services.coordinator.core.definition import Control

    story.work("s").node = replace(story.work("s").node, control=Control.JOIN)
    with pytest.raises(BrokenInvariant):
        decide(story.execution, ReportSuccess(1, 2, b"{}"), story.now)


def test_parking_is_for_long_waits_with_nothing_running():
    story = Story([node("s", "sleep@1", config={"duration": "30s"}), node("a")], [edge("a", "s", "always")])
    story.start()
    assert parking(story.execution, story.now) is None, "a is ready"
    story.assign("a")
    assert parking(story.execution, story.now) is None, "a is running"
    story.succeed("a")
    assert parking(story.execution, story.now) == Park(story.now + 30 * SECOND)
    story.later(20)
    assert parking(story.execution, story.now) is None, "not worth it any more"
    story.wake()
    assert parking(story.execution, story.now) is None, "final"


def test_nothing_is_parked_while_something_beside_the_wait_runs():
    story = Story([node("s", "sleep@1", config={"duration": "60s"}), node("a")])
    story.start()
    story.assign("a")
    assert parking(story.execution, story.now) is None
    story.succeed("a")
    assert parking(story.execution, story.now) == Park(story.now + 60 * SECOND)


def test_a_failure_edge_after_a_sleep_is_skipped():
    story = Story(
        [node("s", "sleep@1", config={"duration": "1s"}), node("f"), node("j", "join@1")],
        [edge("s", "f", "failure"), edge("s", "j")],
    )
    story.start()
    assert names(story.wake()) == ["SleepEnded", "NodesSkipped", "JoinPassed", "ExecutionFinished"]
