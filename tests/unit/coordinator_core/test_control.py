"""Nodes that the core does itself."""

import pytest

from services.coordinator.core.advance import advance
from services.coordinator.core.commands import ReportSuccess
from services.coordinator.core.controls import CONTROLS, end_wait
from services.coordinator.core.controls.control import Control
from services.coordinator.core.effects import parking
from services.coordinator.core.events import WaitEnded, WaitKind, WaitOutcome
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import BrokenInvariant, FailureReason, OutputRef
from tests.support.story import BEGIN, SECOND, Story, begun, chain, edge, events, fields, names, node, the_event
from windlass.definition.modules import CONTROL_MODULES


def test_the_definition_language_knows_every_control_node():
    assert set(CONTROLS) == CONTROL_MODULES


def test_a_join_passes_at_once():
    story = begun(node("a"), node("j", "join@1"), node("b"), edges=chain("a", "j", "b"))
    assert names(story.succeed("a")) == ["RunSucceeded", "RunSucceeded"]
    assert story.ready == ["b"]
    assert (story.run("j").state.value, story.run("j").attempt, story.run("j").output) == ("SUCCESS", 1, b"{}")


def test_joins_alone_end_at_once():
    story = Story([node("j", "join@1"), node("k", "join@1")], chain("j", "k"))
    assert names(story.start()) == ["ExecutionStarted", "RunSucceeded", "RunSucceeded", "ExecutionFinished"]
    assert story.execution.output == b'{"k":{}}'


def test_a_sleep_waits_without_a_runner():
    story = Story([node("s", "sleep@1", config={"duration": "5s"}), node("b")], chain("s", "b"))
    assert names(story.start()) == ["ExecutionStarted", "WaitStarted"]
    assert (story.state, story.ready, story.run("s").state.value) == ("WAITING", [], "RUNNING")
    assert story.execution.next_wake() == story.now + 5 * SECOND
    story.later(4.999)
    assert story.tick().events == [], "never early"
    assert names(story.wake()) == ["WaitEnded", "RunSucceeded"]
    assert story.ready == ["b"]
    assert story.tick().events == [], "never twice"


def test_a_sleep_until_a_time_that_has_passed_ends_at_the_next_tick():
    story = Story([node("s", "sleep@1", config={"until": "1970-01-01T00:00:09Z"})])
    story.start()
    assert names(story.tick()) == ["WaitEnded", "RunSucceeded", "ExecutionFinished"]


def test_sleeps_due_together_end_together_in_order():
    story = Story([node(id, "sleep@1", config={"duration": d}) for id, d in (("x", "2s"), ("y", "1s"), ("z", "9s"))])
    story.start()
    story.later(3)
    assert events(story.tick(), "node", "run") == [
        ("WaitEnded", "y", 2), ("RunSucceeded", "y", 2), ("WaitEnded", "x", 1), ("RunSucceeded", "x", 1),
    ]  # fmt: skip


def test_a_templated_config_is_rendered_by_a_runner_first():
    story = Story([node("s", "sleep@1", config={"duration": "{{ input.wait }}"})])
    story.start(input=b'{"wait":"7s"}')
    assert story.ready == ["s"]
    story.assign("s")
    assert names(story.succeed("s", b'{"duration":"7s"}')) == ["ControlRendered", "WaitStarted"]
    run = story.run("s")
    assert (len(story.execution.runs), run.state.value, story.state) == (1, "RUNNING", "WAITING")
    again = story.when(ReportSuccess(1, run.epoch, b'{"duration":"7s"}'))
    assert (again.events, again.refusal) == ([], None)
    assert names(story.wake()) == ["WaitEnded", "RunSucceeded", "ExecutionFinished"]
    assert story.now == BEGIN + 7 * SECOND


@pytest.mark.parametrize(
    "output",
    [
        b'{"duration":"soon"}',
        b'{"duration":"366d"}',
        b'{"duration":5,"until":6}',
        b'{"until":"9999-12-31T23:59:59-01:00"}',
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        OutputRef("k", "", 300_000),
    ],
)
def test_a_config_that_makes_no_sense_fails_the_node(output):
    story = begun(node("s", "sleep@1", config={"duration": "{{ input }}"}))
    decision = story.succeed("s", output)
    assert names(decision)[-2:] == ["RunFailed", "ExecutionFinished"]
    failed = the_event("RunFailed", decision)
    assert (failed.run, failed.reason, failed.error.type) == (1, FailureReason.PERMANENT_ERROR, "INVALID_CONFIG")
    assert (failed.retry_time, failed.is_reported) == (0, True)
    assert len(story.execution.runs) == 1


def test_a_lost_renderer_is_replaced_at_once():
    story = begun(node("s", "sleep@1", config={"duration": "{{ input }}"}))
    story.lose(is_idempotent_only=True)
    assert story.ready == ["s"]


class Silent(Control):
    module = "silent_test@1"

    def begin(self, turn, work):
        """It breaks its promise to emit something."""


class Messenger(Control):
    """It waits for a message, however long that takes."""

    module = "message_test@1"

    def begin(self, turn, work):
        turn.wait(work, WaitKind.SIGNAL)

    def resume(self, turn, work, end):
        turn.succeed(work, f'"{end.outcome}"'.encode())


class Forgetful(Messenger):
    def resume(self, turn, work, end):
        """It breaks the same promise as the silent one, later."""


def with_control(monkeypatch, control):
    monkeypatch.setitem(CONTROLS, control.module, control)
    return Story([node("m", control.module), node("b")], chain("m", "b"))


def test_a_control_that_emits_nothing_or_resumes_what_never_waited_is_a_bug(monkeypatch):
    with pytest.raises(BrokenInvariant, match="without an event"):
        with_control(monkeypatch, Silent()).start()
    story = with_control(monkeypatch, Forgetful())
    story.start()
    with pytest.raises(BrokenInvariant, match="without an event"):
        arrive(story, "m")
    story = with_control(monkeypatch, Messenger())
    story.start()
    turn = Turn(story.execution, story.now)
    end = WaitEnded(time=1, key=story.work("m").key, run=1, outcome=WaitOutcome.ARRIVED)
    with pytest.raises(BrokenInvariant, match="never waits"):
        CONTROLS["join@1"].resume(turn, story.work("m"), end)


def test_an_execution_that_waits_for_a_message_alone_parks_and_wakes(monkeypatch):
    story = with_control(monkeypatch, Messenger())
    started = story.start()
    assert names(started) == ["ExecutionStarted", "WaitStarted"]
    assert fields(the_event("WaitStarted", started), "run", "kind", "due_time") == (1, WaitKind.SIGNAL, 0)
    assert (story.state, story.execution.next_wake()) == ("WAITING", 0)
    assert parking(story.execution, story.now) == 0, "no time wakes it"
    story.later(10**6)
    assert story.tick().events == []
    woken = story.again()
    assert parking(woken.execution, woken.now) == 0
    arrive(woken, "m")
    assert (woken.ready, woken.run("m").output, parking(woken.execution, woken.now)) == (["b"], b'"ARRIVED"', None)


def arrive(story, id):
    """Does what a handler of messages will do."""
    turn = Turn(story.execution, story.now)
    end_wait(turn, story.work(id), WaitOutcome.ARRIVED)
    advance(turn)
    assert names(turn) == ["WaitEnded", "RunSucceeded"]
    story.take(turn.events)


def test_a_cancel_ends_a_wait_for_a_message(monkeypatch):
    story = with_control(monkeypatch, Messenger())
    story.start()
    assert names(story.cancel()) == ["StopOrdered", "RunCancelled", "ExecutionFinished"]
    assert (story.state, story.states["m"]) == ("CANCELLED", "CANCELLED")


def test_a_wait_for_a_message_beside_a_timer_parks_until_the_time(monkeypatch):
    monkeypatch.setitem(CONTROLS, Messenger.module, Messenger())
    story = Story([node("m", Messenger.module), node("s", "sleep@1", config={"duration": "30s"})])
    story.start()
    assert parking(story.execution, story.now) == story.now + 30 * SECOND


def test_parking_is_for_long_waits_with_nothing_running():
    story = Story([node("s", "sleep@1", config={"duration": "30s"}), node("a")], [edge("a", "s", "always")])
    story.start()
    assert parking(story.execution, story.now) is None, "a is ready"
    story.assign("a")
    assert parking(story.execution, story.now) is None, "a is running"
    story.succeed("a")
    assert parking(story.execution, story.now) == story.now + 30 * SECOND
    story.later(20)
    assert parking(story.execution, story.now) is None, "not worth it any more"
    story.wake()
    assert parking(story.execution, story.now) is None, "final"
