"""wait_signal@1, and the signals that come before it."""

import pytest

from services.coordinator.core.commands import Signal
from services.coordinator.core.decision import RefusalReason
from services.coordinator.core.effects import parking
from services.coordinator.core.events import WaitKind
from services.coordinator.core.handlers import signalling
from tests.support.story import SECOND, Story, begun, chain, edge, fields, names, node, started, the_event


def waiting(signal="paid", **config):
    return node("w", "wait_signal@1", config={"signal": signal, **config})


def signal(story, name="paid", payload=b'{"amount":7}', message_id="s1", caller="ann"):
    return story.when(Signal(message_id, caller, name, payload))


def test_a_node_goes_on_with_the_payload_of_its_signal():
    story = Story([waiting(), node("b")], chain("w", "b"))
    assert fields(the_event("WaitStarted", story.start()), "kind", "name", "due_time") == (WaitKind.SIGNAL, "paid", 0)
    assert (story.state, parking(story.execution, story.now)) == ("WAITING", 0)
    decision = signal(story)
    assert names(decision) == ["SignalReceived", "WaitEnded", "SignalTaken", "RunSucceeded"]
    assert fields(the_event("SignalReceived", decision), "caller", "signal") == ("ann", "paid")
    assert (story.ready, story.work("w").output) == (["b"], b'{"amount":7}')
    assert len(story.execution.runs) == 1


def test_a_signal_that_comes_early_is_kept_until_its_node_begins():
    story = begun(node("a"), waiting(), edges=chain("a", "w"))
    assert names(signal(story)) == ["SignalReceived"]
    assert names(signal(story, "other", message_id="s2")) == ["SignalReceived"]
    story = story.again()
    decision = story.succeed("a")
    assert names(decision) == ["RunSucceeded", "SignalTaken", "RunSucceeded", "ExecutionFinished"]
    assert story.work("w").output == b'{"amount":7}'


def test_signals_of_one_name_are_taken_in_the_order_in_which_they_came():
    nodes = [node("a"), *(node(id, "wait_signal@1", config={"signal": "paid"}) for id in "xyz")]
    story = begun(*nodes, edges=chain("a", "x", "y", "z"))
    for number in (1, 2):
        signal(story, payload=b"%d" % number, message_id=f"s{number}")
    story.succeed("a")
    assert [story.work(id).output for id in "xy"] == [b"1", b"2"]
    assert story.states["z"] == "WAITING"
    signal(story, payload=b"3", message_id="s3")
    assert story.work("z").output == b"3"


def test_a_signal_goes_to_one_node_the_one_that_has_waited_longest():
    nodes = [node(id, "wait_signal@1", config={"signal": "paid"}) for id in "xy"]
    story = started(*nodes)
    signal(story)
    assert (story.states["x"], story.states["y"]) == ("SUCCEEDED", "WAITING")


def test_a_signal_of_another_name_wakes_nobody():
    story = started(waiting())
    assert names(signal(story, "Paid")) == ["SignalReceived"]
    assert story.state == "WAITING"


@pytest.mark.parametrize(
    ("action", "state", "outcome"), [({}, "FAILED", "SIGNAL_TIMEOUT"), ({"onTimeout": "CONTINUE"}, "SUCCESS", b"null")]
)
def test_a_wait_that_takes_too_long_fails_or_goes_on_with_null(action, state, outcome):
    story = started(waiting(timeout="1h", **action))
    assert parking(story.execution, story.now) == story.now + 3600 * SECOND
    story.wake()
    assert story.state == state
    run = story.run("w")
    assert outcome in (run.output, run.error and run.error.type)


def test_a_wait_that_failed_takes_its_failure_edge():
    story = started(waiting(timeout=1), node("late"), edges=[edge("w", "late", "failure")])
    story.wake()
    assert story.ready == ["late"]


def test_more_signals_than_are_kept_are_refused(monkeypatch):
    monkeypatch.setattr(signalling, "SIGNALS_KEPT_MAX", 2)
    story = begun(node("a"), waiting())
    for number in range(2):
        assert signal(story, "early", message_id=f"s{number}").refusal is None
    refused = signal(story, "early", message_id="s9")
    assert refused.refusal.reason is RefusalReason.SIGNALS_FULL
    assert signal(story, "paid", message_id="s10").refusal is None, "a node waits for it"


def test_signals_that_are_too_large_together_are_refused(monkeypatch):
    monkeypatch.setattr(signalling, "SIGNAL_BYTES_KEPT_MAX", 10)
    story = begun(node("a"))
    assert signal(story, payload=b'"345678"').refusal is None
    assert signal(story, payload=b"90", message_id="s2").refusal is None
    refused = signal(story, payload=b"1", message_id="s3")
    assert refused.refusal.reason is RefusalReason.SIGNALS_FULL


def test_an_execution_that_ends_or_has_ended_takes_no_signal():
    story = begun(node("a"))
    story.cancel()
    assert signal(story).refusal.reason is RefusalReason.EXECUTION_FINAL
    story.wake()
    assert story.state == "CANCELLED"
    assert signal(story, message_id="s2").refusal.reason is RefusalReason.EXECUTION_FINAL


def test_a_cancel_ends_the_wait_for_a_signal():
    story = started(waiting())
    story.cancel()
    assert (story.state, story.states["w"]) == ("CANCELLED", "CANCELLED")


@pytest.mark.parametrize(
    "config",
    [b"[]", b"{}", b'{"signal":7}', b'{"signal":""}', b'{"signal":"x","timeout":"soon"}', b'{"signal":"x","timeout":0}',
     b'{"signal":"x","onTimeout":"WAIT"}', b'{"signal":"%s"}' % (b"x" * 129)],
)  # fmt: skip
def test_a_rendered_config_that_makes_no_sense_fails_the_node(config):
    story = begun(waiting("{{ input.signal }}"))
    story.succeed("w", config)
    assert (story.state, story.run("w").error.type) == ("FAILED", "INVALID_CONFIG")


def test_a_rendered_name_is_waited_for():
    story = Story([waiting("paid-{{ input.id }}")])
    story.start(input=b'{"id":7}')
    story.assign("w")
    assert names(story.succeed("w", b'{"signal":"paid-7"}')) == ["ControlRendered", "WaitStarted"]
    signal(story, "paid-7")
    assert (story.state, len(story.execution.runs)) == ("SUCCESS", 1)


def test_a_signal_that_is_sent_again_counts_once():
    nodes = [node(id, "wait_signal@1", config={"signal": "paid"}) for id in "xy"]
    story = started(*nodes)
    signal(story)
    again = signal(story.again())
    assert (again.events, again.refusal) == ([], None)
    assert story.states["y"] == "WAITING"
