"""Nodes that start executions of other workflows: `sub_workflow@1`."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from services.chassis.blobs import month_of
from services.coordinator.core.child_ids import child_id
from services.coordinator.core.commands import (
    Discard,
    EndChild,
    NoteChildCancelTold,
    NoteChildStarted,
    RefuseChild,
    ReportSuccess,
)
from services.coordinator.core.effects import parking, resume_effects
from services.coordinator.core.events import ChildCancelOrdered, ChildRequested
from services.coordinator.core.results import json_fault
from services.coordinator.core.state import CancelChild, ReportFinished, StartChild, TellParent
from services.coordinator.core.values import ExecutionState, FinalError, OutputRef, WorkKey
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


def test_a_child_is_never_of_an_earlier_month_than_its_parent():
    """The api of the parent and the coordinator of the child have different clocks."""
    new_year = round(datetime(2027, 1, 1, tzinfo=UTC).timestamp() * 1_000)
    digits = f"{new_year:012x}"
    parent = f"{digits[:8]}-{digits[8:]}-7000-8000-000000000001"
    a_moment_before, a_month_later = (new_year - 1) * 1_000, (new_year + 31 * 86_400_000) * 1_000
    assert month_of(child_id(parent, 1, a_moment_before)) == month_of(parent) == "2027-01"
    assert month_of(child_id(parent, 1, a_month_later)) == "2027-02"


def test_a_start_that_is_refused_fails_the_node_once():
    story = Story([billing(), node("sorry")], [edge("bill", "sorry", "failure")])
    story.start()
    refusal = RefuseChild(child(story), "WORKFLOW_ARCHIVED", "workflow 'billing' is archived")
    assert names(story.when(refusal)) == ["ChildRefused", "WaitEnded", "RunFailed"]
    assert (story.run("bill").error.type, story.ready) == ("WORKFLOW_ARCHIVED", ["sorry"])
    assert story.execution.owed == []
    assert story.when(refusal).events == []


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
    owed = [CancelChild(child(story), WorkKey("bill"), 1), ReportFinished(ExecutionState.CANCELLED)]
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
    for news in (NoteChildStarted(child(story)), NoteChildCancelTold(child(story))):
        assert story.when(news).events == [], "it is final"


def test_a_parent_that_awaits_its_runners_settles_what_it_owes():
    story = Story([billing(), node("a"), billing("other")])
    story.start()
    story.assign("a")
    bill, other = story.execution.children
    story.cancel()
    assert not story.execution.is_final
    assert names(story.when(NoteChildStarted(bill))) == ["ChildStarted"]
    assert names(story.when(RefuseChild(other, "QUEUE_FULL", "full"))) == ["ChildRefused"]
    for id in (bill, other):
        assert names(story.when(NoteChildCancelTold(id))) == ["ChildCancelTold"]
        assert story.when(NoteChildCancelTold(id)).events == []
    assert story.execution.owed == []


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


# Children that are the items of a list


def looping(*items: object, body: Document | None = None, **config: object) -> Story:
    """A for_each whose items are children. The first ones are rendered and queued."""
    body = body or {"workflow": "billing", "inputs": {}}
    story = Story([node("each", "for_each@1", config={"items": list(items), "body": body} | config)])
    story.start()
    return story


def all_children(story: Story) -> list[str]:
    return list(story.execution.children)


def test_each_item_of_a_list_may_be_a_child():
    story = looping(7, 8, 9, maxParallel=2)
    first, second = all_children(story)
    assert {wait.work.key.iteration for wait in story.execution.children.values()} == {1, 2}
    story.when(EndChild(second, ExecutionState.SUCCESS, b"80", None, 0.5))
    (_, third) = all_children(story)
    story.when(EndChild(first, ExecutionState.SUCCESS, b"70", None, 0.5))
    story.when(EndChild(third, ExecutionState.SUCCESS, b"90", None, 0.5))
    assert story.execution.output == b'{"each":[70,80,90]}'


def test_the_input_of_an_item_is_the_item_and_its_index():
    story = looping("a", body={"workflow": "billing"})
    (work,) = story.execution.ready
    assert work.node.inputs == b'{"item":"{{ item }}","index":"{{ index }}"}'
    story.assign()
    (run,) = story.execution.live.values()
    rendered = b'{"config":{"workflow":"billing"},"inputs":{"item":"a","index":0}}'
    decision = story.when(ReportSuccess(run.number, run.epoch, output=rendered))
    assert the_event("ChildRequested", decision).input == b'{"item":"a","index":0}'


def test_a_child_that_fails_ends_its_loop_and_the_other_children():
    story = looping(7, 8, 9)
    first, second, third = all_children(story)
    story.when(NoteChildStarted(first))
    error = FinalError("charge", "CARD_DECLINED", "no money")
    decision = story.when(EndChild(second, ExecutionState.FAILED, None, error, 0.5))
    assert names(decision)[:2] == ["WaitEnded", "RunFailed"]
    assert [event.child_execution_id for event in decision.events if isinstance(event, ChildCancelOrdered)] == [
        first,
        third,
    ]
    assert (story.execution.error.type, story.execution.children) == ("CARD_DECLINED", {})
    assert [type(each) for each in story.execution.owed] == [StartChild, CancelChild, CancelChild, ReportFinished]


def test_a_child_that_fails_has_its_place_in_the_output_when_the_loop_continues():
    story = looping(7, 8, onItemFailure="CONTINUE")
    first, second = all_children(story)
    story.when(EndChild(first, ExecutionState.FAILED, None, FinalError("a", "BOOM", "bad"), 0.5))
    story.when(EndChild(second, ExecutionState.SUCCESS, b"80", None, 0.5))
    message = f"execution {first}: bad"
    assert json.loads(story.execution.output) == {"each": [{"error": {"type": "BOOM", "message": message}}, 80]}


def test_a_parent_that_ends_cancels_the_children_of_its_loops():
    story = looping(7, 8)
    children = all_children(story)
    story.cancel()
    assert list(story.execution.uncancelled) == children


def test_an_item_whose_loop_has_ended_settles_its_start():
    """The loop goes on to other nodes, so the execution is not final and has to forget what it owed."""
    story = Story(
        [
            node("each", "for_each@1", config={"items": [7, 8], "body": {"workflow": "billing", "inputs": {}}}),
            node("rescue"),
        ],
        [edge("each", "rescue", "failure")],
    )
    story.start()
    first, second = all_children(story)
    story.when(EndChild(first, ExecutionState.FAILED, None, FinalError("a", "BOOM", "bad"), 0.5))
    assert parking(story.execution, story.now) is None
    assert names(story.when(RefuseChild(second, "WORKFLOW_ARCHIVED", "archived"))) == ["ChildRefused"]
    story.when(NoteChildCancelTold(second))
    assert (story.execution.owed, story.ready) == ([], ["rescue"])


@pytest.mark.parametrize("amount", [1, "{{ input.n }}"])
def test_a_retry_lays_the_inputs_of_a_person_over_those_of_the_node(amount: object):
    story = Story([billing(inputs={"amount": amount, "to": "ann"})])
    story.start(input=b'{"n":1}')
    rendered = b'{"config":{"workflow":"billing"},"inputs":{"amount":1,"to":"ann"}}'
    if amount != 1:
        story.assign()
        story.succeed("bill", rendered)
    story.when(NoteChildStarted(child(story)))
    story.when(failed(story))
    decision = story.retry(bill=b'{"amount":7}')
    if amount != 1:
        story.assign()
        decision = story.succeed("bill", rendered)
    requested = the_event("ChildRequested", decision)
    assert (requested.input, requested.key.generation) == (b'{"amount":7,"to":"ann"}', 2)


def test_a_node_whose_child_failed_may_be_held_for_a_person():
    story = waiting(onFailure="HOLD")
    story.when(failed(story))
    assert (story.state, story.states["bill"], len(story.execution.runs)) == ("WAITING", "WAITING", 1)
    assert "ExecutionFinished" in names(story.give(Discard, 1, message_id="m1"))
    assert story.execution.error.type == "CARD_DECLINED"


def held(*more: Document, edges: list[Document] | None = None) -> Story:
    """The child of the node `bill` has failed in run 1, and `after` waits for it."""
    story = waiting(billing(), node("after"), *more, edges=[*chain("bill", "after"), *(edges or [])], onFailure="HOLD")
    story.when(failed(story))
    return story


def test_a_held_node_goes_on_when_its_child_is_done_again_and_succeeds():
    story = held()
    decision = story.again().when(ended(story))
    assert names(decision) == ["ExecutionReopened", "DeadLetterResolved", "RunSucceeded"]
    assert names(story.when(ended(story))) == names(decision)
    letter = story.execution.dead_letters[1]
    assert (letter.resolution.value, letter.reviewer) == ("FIXED", f"execution {child(story)}")
    assert (story.ready, story.work("bill").output) == (["after"], b'{"paid":7}')
    assert story.when(ended(story)).events == [], "a repetition"
    story.do("after")
    assert story.state == "SUCCESS"


def test_nothing_else_is_done_again_when_the_child_of_a_held_node_succeeds():
    """The node `any` was let in by another edge and is under way."""
    story = held(node("other"), node("any", join="ANY"), edges=[*chain("bill", "any"), *chain("other", "any")])
    story.do("other")
    story.assign("any")
    story.when(ended(story))
    assert (story.ready, len(story.execution.live)) == (["after"], 1)
    story.succeed("any")
    story.do("after")
    assert story.state == "SUCCESS"


def test_a_held_node_whose_child_fails_again_still_waits_for_a_person():
    story = held()
    assert story.when(failed(story)).events == []
    assert story.when(ended(story, b"{")).events == [], "no output of a node"
    other = replace(ended(story), child_execution_id=EXECUTION_ID)
    assert story.when(other).events == [], "a child of somebody else"
    assert story.states["bill"] == "WAITING"


def test_a_node_that_has_failed_does_not_wait_for_its_child_any_more():
    """The workflow goes on with its other branches, and the failure of this one stands."""
    story = waiting(billing(), node("other"))
    story.when(failed(story))
    assert story.when(ended(story)).events == []
    story.do("other")
    assert story.state == "FAILED"
