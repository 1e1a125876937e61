"""Nodes that start executions of other workflows: `sub_workflow@1`."""

import re
from dataclasses import replace

import pytest

from services.coordinator.core.child_ids import child_id
from services.coordinator.core.commands import EndChild, NoteChildStarted, RefuseChild
from services.coordinator.core.effects import parking, resume_effects
from services.coordinator.core.events import ChildRequested
from services.coordinator.core.results import json_fault
from services.coordinator.core.state import CancelChild, ReportFinished, StartChild, TellParent
from services.coordinator.core.values import ExecutionState, FinalError, OutputRef
from tests.support.story import BEGIN, EXECUTION_ID, SECOND, Document, Story, chain, edge, names, node, the_event
from windlass.definition.limits import CHILD_DEPTH_MAX, DEPTH_MAX

PARENT_ID = "01931f3c-0000-7000-8000-000000000001"


def billing(id: str = "bill", *, config: Document | None = None, **more: object) -> Document:
    return node(id, "sub_workflow@1", config={"workflow": "billing"} | (config or {}), **more)


def waiting(*nodes: Document, edges: tuple[Document, ...] | list[Document] = (), **more: object) -> Story:
    """An execution whose node `bill` waits for a child that is queued."""
    story = Story(nodes or [billing()], edges, **more)
    story.start()
    story.when(NoteChildStarted(child(story)))
    return story


def child(story: Story) -> str:
    """The id of the child that was requested last."""
    requested = [event for event in story.journal if isinstance(event, ChildRequested)]
    return requested[-1].child_execution_id


def ended(story: Story, output: object = b'{"paid":7}') -> EndChild:
    return EndChild(child(story), ExecutionState.SUCCESS, output, None, 0.5)  # type: ignore[arg-type]


def failed(story: Story, state: ExecutionState = ExecutionState.FAILED) -> EndChild:
    return EndChild(child(story), state, None, FinalError("charge", "CARD_DECLINED", "no money"), 0.5)


# The start of the child


def test_a_child_is_owed_until_it_is_queued():
    story = Story([billing(config={"version": 3}, inputs={"amount": 7})])
    decision = story.start()
    assert names(decision) == ["ExecutionStarted", "WaitStarted", "ChildRequested"]
    requested = the_event("ChildRequested", decision)
    assert (requested.workflow, requested.version, requested.input) == ("billing", 3, b'{"amount":7}')
    (start,) = story.effects
    assert isinstance(start, StartChild)
    assert story.again().execution.owed == [start]
    assert story.state == "WAITING"
    assert parking(story.execution, story.now) is None, "it would forget the start in the middle"
    assert names(story.when(NoteChildStarted(child(story)))) == ["ChildStarted"]
    assert story.execution.owed == []
    assert parking(story.execution, story.now) == 0, "only a message wakes it"


def test_the_answer_to_a_repeated_start_changes_nothing():
    story = waiting()
    assert story.when(NoteChildStarted(child(story))).events == []
    story.when(ended(story))
    assert story.when(NoteChildStarted(child(story))).events == []


def test_a_child_that_cannot_be_queued_for_now_lets_its_parent_rest():
    story = Story([billing(), node("s", "sleep@1", config={"duration": "90s"})])
    story.start()
    rest = story.now + 20 * SECOND
    assert parking(story.execution, story.now, rest) == rest
    assert parking(story.execution, story.now, story.now + 200 * SECOND) == story.execution.next_wake()


def test_templates_of_config_and_inputs_are_rendered_together():
    story = Story([billing(config={"version": "{{ input.v }}"}, inputs={"amount": "{{ input.n }}"})])
    story.start(input=b'{"v":2,"n":7}')
    story.assign("bill")
    rendered = b'{"config":{"workflow":"billing","version":2},"inputs":{"amount":7}}'
    assert story.work("bill").node.runner_inputs == (
        b'{"config":{"workflow":"billing","version":"{{ input.v }}"},"inputs":{"amount":"{{ input.n }}"}}'
    )
    decision = story.succeed("bill", rendered)
    assert names(decision) == ["ControlRendered", "WaitStarted", "ChildRequested"]
    requested = the_event("ChildRequested", decision)
    assert (requested.version, requested.input) == (2, b'{"amount":7}')


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (b'{"config":{}}', "the renderer returned no config and inputs"),
        (OutputRef("k", "ab" * 32, 300_000), "the config and the inputs have over 262144 bytes"),
    ],
)
def test_a_rendering_that_is_unusable_fails_the_node(output: object, message: str):
    story = Story([billing(inputs={"amount": "{{ input.n }}"})])
    story.start()
    story.assign("bill")
    story.succeed("bill", output)  # type: ignore[arg-type]
    assert (story.execution.error.type, story.execution.error.message) == ("INVALID_CONFIG", message)


@pytest.mark.parametrize(
    "config",
    [
        '{"workflow":7}',
        '{"workflow":"Not a name"}',
        "[]",
        '{"workflow":"w","version":0}',
        '{"workflow":"w","version":true}',
        '{"workflow":"w","version":"2"}',
        '{"workflow":"w","version":2147483648}',
        '{"workflow":"w","onParentEnd":"FORGET"}',
    ],
)
def test_a_rendered_config_that_is_no_config_fails_the_node(config: str):
    story = Story([billing(inputs={"amount": "{{ input.n }}"})])
    story.start()
    story.assign("bill")
    rendered = f'{{"config":{config},"inputs":{{}}}}'.encode()
    story.succeed("bill", rendered)
    assert story.execution.error.type == "INVALID_CONFIG"
    assert story.execution.owed == [ReportFinished(ExecutionState.FAILED)]


def test_inputs_that_are_nested_too_deep_start_no_child():
    inputs = b'{"a":' * (DEPTH_MAX + 1) + b"1" + b"}" * (DEPTH_MAX + 1)
    assert json_fault(inputs)
    story = Story([billing(inputs={"amount": "{{ input.n }}"})])
    story.start()
    story.assign("bill")
    story.succeed("bill", b'{"config":{"workflow":"w"},"inputs":%b}' % inputs)
    assert story.execution.error.message == f"the inputs are nested deeper than {DEPTH_MAX} levels"


def test_children_end_at_the_greatest_depth():
    story = Story([billing()])
    story.start(depth=CHILD_DEPTH_MAX - 1)
    assert story.state == "WAITING"
    story = Story([billing()])
    assert "ChildRequested" not in names(story.start(depth=CHILD_DEPTH_MAX))
    assert (story.execution.error.node, story.execution.error.type) == ("bill", "CHILD_TOO_DEEP")


def test_the_timeout_of_the_node_is_the_deadline_of_its_child():
    story = Story([billing(timeout="30s")])
    assert the_event("ChildRequested", story.start()).deadline_time == BEGIN + 30 * SECOND
    story = Story([billing()])
    assert the_event("ChildRequested", story.start()).deadline_time == 0


def test_the_id_of_a_child_is_an_execution_id_of_its_own():
    first = child_id(EXECUTION_ID, 1, BEGIN)
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", first)
    assert int(first.replace("-", "")[:12], 16) == BEGIN // 1_000
    assert first == child_id(EXECUTION_ID, 1, BEGIN)
    assert len({first, child_id(EXECUTION_ID, 2, BEGIN), child_id(PARENT_ID, 1, BEGIN)}) == 3


def test_a_start_that_is_refused_fails_the_node_once():
    story = waiting(billing(), node("sorry"), edges=[edge("bill", "sorry", "failure")])
    refusal = RefuseChild(child(story), "WORKFLOW_ARCHIVED", "workflow 'billing' is archived")
    assert names(story.when(refusal)) == ["WaitEnded", "RunFailed"]
    assert (story.run("bill").error.type, story.ready) == ("WORKFLOW_ARCHIVED", ["sorry"])
    assert story.when(refusal).events == []


def test_a_start_that_is_refused_is_owed_no_more():
    story = Story([billing()])
    story.start()
    story.when(RefuseChild(child(story), "INPUT_MISMATCH", "amount is missing"))
    assert (story.state, story.execution.owed) == ("FAILED", [ReportFinished(ExecutionState.FAILED)])


# The end of the child


def test_the_output_of_the_child_is_that_of_the_node():
    story = waiting(billing(), node("after"), edges=chain("bill", "after"))
    assert names(story.when(ended(story))) == ["WaitEnded", "RunSucceeded"]
    assert (story.work("bill").output, story.ready) == (b'{"paid":7}', ["after"])
    assert story.when(ended(story)).events == [], "a repetition"


def test_a_stored_output_stays_where_it_is():
    story = waiting()
    kept = OutputRef("outputs/ab/cd", "ab" * 32, 300_000)
    story.when(ended(story, kept))
    assert story.work("bill").output == kept


def test_an_output_that_is_nested_too_deep_fails_the_node():
    story = waiting()
    story.when(ended(story, b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1)))
    assert story.execution.error.type == "OUTPUT_NOT_JSON"


def test_a_child_may_be_over_before_its_start_is_acknowledged():
    story = Story([billing()])
    story.start()
    story.when(ended(story))
    assert story.state == "SUCCESS"
    assert story.execution.owed == [ReportFinished(ExecutionState.SUCCESS)]


def test_the_failure_of_the_child_is_that_of_the_node():
    story = waiting(retry={"attempts": 5})
    assert names(story.when(failed(story))) == ["WaitEnded", "RunFailed", "ExecutionFinished"]
    error = story.execution.error
    message = f"execution {child(story)}: no money"
    assert (error.node, error.type, error.message) == ("bill", "CARD_DECLINED", message)


def test_failures_of_two_children_count_as_the_same_failure():
    one, other = waiting(), waiting()
    other.now += 5 * SECOND
    again = Story([billing()])
    again.now = other.now
    again.start()
    for story in (one, again):
        story.when(failed(story))
    assert child(one) != child(again)
    assert one.run("bill").fingerprint == again.run("bill").fingerprint


def test_a_child_without_an_error_fails_the_node_with_its_state():
    story = waiting()
    story.when(replace(failed(story, ExecutionState.TIMEOUT), error=None))
    assert story.execution.error.type == "TIMEOUT"


@pytest.mark.parametrize("amount", [7, "{{ input.n }}"])
def test_a_node_with_a_retry_policy_starts_another_child(amount: object):
    story = Story([billing(retry={"attempts": 2, "initialDelay": "10s"}, inputs={"amount": amount})])
    rendered = b'{"config":{"workflow":"billing"},"inputs":{"amount":7}}'
    story.start(input=b'{"n":7}')
    children = []
    for attempt in (1, 2):
        if amount != 7:
            story.assign("bill")
            story.succeed("bill", rendered)
        assert story.run("bill").attempt == attempt
        children.append(child(story))
        story.when(NoteChildStarted(children[-1]))
        story.when(failed(story))
        if attempt == 1:
            assert story.states["bill"] == "BACKOFF"
            story.wake()
    assert len(set(children)) == 2
    assert (story.state, story.run("bill").error.type) == ("FAILED", "CARD_DECLINED")


def test_a_child_that_was_cancelled_is_not_started_again():
    story = waiting(billing(retry={"attempts": 5}))
    story.when(failed(story, ExecutionState.CANCELLED))
    assert story.state == "FAILED"


# The end of the parent


def test_a_parent_that_ends_cancels_its_child_before_it_reports_its_end():
    story = waiting()
    assert names(story.cancel()) == ["StopOrdered", "ChildCancelOrdered", "RunCancelled", "ExecutionFinished"]
    owed = [CancelChild(child(story)), ReportFinished(ExecutionState.CANCELLED)]
    assert story.effects == owed
    assert resume_effects(story.again().execution) == owed


def test_a_child_that_is_abandoned_goes_on():
    story = waiting(billing(config={"onParentEnd": "ABANDON"}))
    assert "ChildCancelOrdered" not in names(story.cancel())
    assert story.execution.owed == [ReportFinished(ExecutionState.CANCELLED)]


def test_the_deadline_of_the_parent_ends_its_child():
    story = waiting(timeout="60s")
    assert "ChildCancelOrdered" in names(story.wake())
    assert story.state == "TIMEOUT"


def test_a_failure_that_ends_the_parent_ends_its_child():
    story = Story([billing(), node("a")], onFailure="FAIL_FAST")
    story.start()
    story.when(NoteChildStarted(child(story)))
    story.assign("a")
    assert "ChildCancelOrdered" in names(story.fail("a"))


def test_a_start_that_is_not_acknowledged_comes_before_the_cancel():
    """Nobody knows whether the child is queued, so it is queued for certain and then cancelled."""
    story = Story([billing()])
    story.start()
    story.cancel()
    assert [type(each) for each in story.execution.owed] == [StartChild, CancelChild, ReportFinished]
    assert story.when(NoteChildStarted(child(story))).events == [], "it is final"


def test_an_end_that_comes_after_the_end_of_the_parent_changes_nothing():
    story = waiting()
    story.cancel()
    for command in (ended(story), failed(story), RefuseChild(child(story), "WORKFLOW_NOT_FOUND", "gone")):
        decision = story.when(command)
        assert (decision.events, decision.refusal) == ([], None)


def test_what_a_final_execution_owes_may_have_to_wait():
    story = waiting()
    story.cancel()
    assert parking(story.execution, story.now) is None
    assert parking(story.execution, story.now, story.now + 9) == story.now + 9


def test_a_child_tells_its_parent_before_it_reports_its_end():
    story = Story([node("a")])
    story.start(parent_execution_id=PARENT_ID, depth=1)
    story.do("a")
    owed = [TellParent(PARENT_ID), ReportFinished(ExecutionState.SUCCESS)]
    assert story.effects == owed
    assert resume_effects(story.again().execution) == owed


def test_children_of_parallel_nodes_are_told_apart():
    story = Story([billing("one"), billing("two")])
    story.start()
    first, second = story.execution.children
    story.when(EndChild(second, ExecutionState.SUCCESS, b"2", None, 0.5))
    story.when(EndChild(first, ExecutionState.SUCCESS, b"1", None, 0.5))
    assert story.execution.output == b'{"one":1,"two":2}'
