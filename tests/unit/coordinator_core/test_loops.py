"""Loops: their items are work of their own, and the graph sees the loop alone."""

from typing import Any

import pytest

from services.coordinator.core.commands import CompleteRun, FinishLoop, ReportSuccess, Signal, StartLoop
from services.coordinator.core.effects import GrantRun, ReadItems, StopRun, StoreLoopOutput, parking, resume_effects
from services.coordinator.core.fold import answers
from services.coordinator.core.items import InvalidItems, LoopConfig, loop_config, unread_lists
from services.coordinator.core.loop_outputs import output_parts
from services.coordinator.core.loops import OUTPUT_BYTES_MAX
from services.coordinator.core.summary import summary
from services.coordinator.core.values import INLINE_BYTES_MAX, ErrorClass, FailureReason, OutputRef, WorkKey
from tests.support.loops import BODY, LARGE, for_each, left_to_somebody_else, looping
from tests.support.story import SECOND, Story, begun, chain, edge, fields, names, node, started, the_event

# for_each


def test_items_begin_while_fewer_than_the_limit_are_under_way():
    story = looping(*"abcde", maxParallel=2)
    assert (story.ready_items, story.run("l").state.value) == ([1, 2], "RUNNING")
    story.assign()
    assert fields(the_event("RunSucceeded", story.succeed("l", item=2)), "then")[0].ready == (WorkKey("l", 3),)
    assert story.ready_items == [3]


def test_the_limit_is_ten_if_none_is_given():
    assert looping(*range(12)).ready_items == list(range(1, 11))


def test_the_output_has_the_order_of_the_items():
    story = looping("a", "b", "c")
    story.assign()
    for item in (3, 1, 2):
        decision = story.succeed("l", b'"%d"' % item, item=item)
    assert names(decision) == ["RunSucceeded", "LoopClosed", "RunSucceeded", "ExecutionFinished"]
    assert story.run("l").output == b'["1","2","3"]'
    assert (story.state, summary(story.execution).succeeded) == ("SUCCESS", ("l",))


def test_a_loop_over_nothing_ends_at_once():
    story = Story([for_each([])])
    assert names(story.start()) == ["ExecutionStarted", "RunSucceeded", "ExecutionFinished"]
    assert story.run("l").output == b"[]"


def test_each_item_is_granted_alone_with_its_place():
    story = looping({"id": 7}, [1], None, maxParallel=1)
    seen = []
    for item in (1, 2, 3):
        story.assign()
        (grant,) = story.effects
        seen.append((type(grant), grant.item, grant.run.work.key.iteration))
        story.succeed("l", item=item)
    assert seen == [(GrantRun, b'{"id":7}', 1), (GrantRun, b"[1]", 2), (GrantRun, b"null", 3)]


def test_a_plain_run_has_no_item():
    story = begun(node("a"))
    assert [effect.item for effect in story.effects] == [None]


def test_an_item_has_the_policies_of_the_loop_and_the_module_of_the_body():
    body = {"module": "billing.charge@1", "config": {"currency": "EUR"}, "inputs": {"id": "{{ item }}"}}
    more = {"timeout": "20s", "runnerLabels": {"site": "eu"}, "idempotent": True, "retry": {"attempts": 2}}
    story = started(for_each(["a"], body=body, node_more=more))
    (work,) = story.execution.ready
    item = work.node
    assert (item.id, item.module, item.config, item.inputs) == (
        "l", "billing.charge@1", b'{"currency":"EUR"}', b'{"id":"{{ item }}"}',
    )  # fmt: skip
    assert (item.timeout, item.runner_labels, item.is_idempotent) == (20 * SECOND, (("site", "eu"),), True)
    assert (item.retry.attempts, item.has_templates, item.needs_runner) == (2, True, True)


def test_a_body_reads_its_own_references():
    story = started(
        node("a"), node("b"), for_each("{{ nodes.a.output }}", body={**BODY, "inputs": {"x": "{{ nodes.b.output }}"}}),
        edges=[*chain("a", "l"), *chain("b", "l")],
    )  # fmt: skip
    loop: Any = story.definition.nodes["l"]
    assert (loop.references, loop.body.references) == (("a",), ("b",))


def test_items_may_be_rendered_first():
    story = begun(for_each("{{ input.ids }}", maxParallel="{{ input.width }}"))
    assert b"body" not in story.definition.nodes["l"].runner_inputs
    decision = story.succeed("l", b'{"items":[4,5,6],"maxParallel":2}')
    assert names(decision) == ["ControlRendered", "LoopStarted"]
    assert (story.ready_items, len(story.execution.runs)) == ([1, 2], 1)
    story.assign()
    assert [effect.item for effect in story.effects] == [b"4", b"5"]


@pytest.mark.parametrize(
    "config",
    [
        b"{}",
        b"[]",
        b'{"items":"abc"}',
        b'{"items":{}}',
        b'{"items":[1],"maxParallel":0}',
        b'{"items":[1],"maxParallel":1001}',
        b'{"items":[1],"maxParallel":true}',
        b'{"items":[1],"maxParallel":"2"}',
        b'{"items":[1],"onItemFailure":"IGNORE"}',
        b'{"items":[' + b"0," * 10_000 + b"0]}",
    ],
)
def test_a_rendered_config_that_makes_no_sense_fails_the_loop(config):
    story = begun(for_each("{{ input.ids }}"))
    failed = the_event("RunFailed", story.succeed("l", config))
    assert (failed.error.type, failed.reason) == ("INVALID_CONFIG", FailureReason.PERMANENT_ERROR)
    assert story.state == "FAILED"


def test_ten_thousand_items_are_allowed():
    story = begun(for_each("{{ input.ids }}"))
    assert names(story.succeed("l", b'{"items":[' + b"0," * 9_999 + b"0]}")) == ["ControlRendered", "LoopStarted"]


def test_an_item_is_tried_again_like_any_work():
    story = looping("a", "b")
    story.assign()
    failed = the_event("RunFailed", story.fail("l", ErrorClass.TRANSIENT, item=1))
    assert (failed.reason, failed.then.ready) == (None, ())
    story.succeed("l", item=2)
    story.wake()
    story.assign()
    assert story.run("l", 1).attempt == 2
    story.succeed("l", item=1)
    assert story.state == "SUCCESS"


def test_an_item_that_is_handed_back_or_lost_is_ready_again():
    story = looping("a", "b")
    story.assign()
    story.lose()
    assert story.ready_items == [1, 2]
    story.assign(instance="i2")
    run = story.run("l", 2)
    story.release_run(run)
    assert story.ready_items == [2]
    assert len(story.execution.loops[WorkKey("l")].going) == 2


def test_the_first_item_that_fails_ends_the_loop():
    story = looping(*"abcd", maxParallel=3, more=[node("after")], edges=chain("l", "after"))
    story.assign()
    story.fail("l", ErrorClass.TRANSIENT, item=3)
    decision = story.fail("l", item=1)
    *decided, finished = decision.events
    assert [(type(event).__name__, event.key) for event in decided] == [
        ("RunFailed", WorkKey("l", 1)),
        ("LoopClosed", WorkKey("l")),
        ("RunCancelled", WorkKey("l", 2)),
        ("RunFailed", WorkKey("l")),
        ("WorkBlocked", WorkKey("after")),
    ]
    assert decided[1].cancelled == (WorkKey("l", 3),)
    assert finished.error.node == "l"


def test_a_runner_of_a_stopped_item_is_told_so():
    story = looping("a", "b")
    story.assign()
    story.fail("l", item=1)
    stopped = story.run("l", 2)
    assert (stopped.state.value, stopped.is_taken_back) == ("CANCELLED", True)
    stop = StopRun(stopped.number, stopped.epoch, "i1", "LEASE_ENDED")
    assert stop in story.effects
    assert stop in resume_effects(story.again().execution), "a successor says it again"
    late = story.when(ReportSuccess(stopped.number, stopped.epoch, b"1", instance_id="i1"))
    assert late.refusal is not None


def test_the_error_of_the_loop_names_the_item():
    story = looping("a", "b")
    story.assign()
    story.fail("l", item=2)
    error = story.execution.error
    assert (error.node, error.type, error.message) == ("l", "BOOM", "iteration 2: l went wrong 42 times")


def test_a_failed_loop_may_be_handled():
    story = looping("a", more=[node("rescue")], edges=[edge("l", "rescue", "failure")])
    story.assign()
    story.fail("l", item=1)
    assert story.ready == ["rescue"]
    story.do("rescue")
    assert story.state == "SUCCESS"


def test_a_failed_item_ends_a_workflow_that_ends_at_its_first_failure():
    story = Story([for_each(["a", "b"]), node("x")], onFailure="FAIL_FAST")
    story.start()
    story.assign()
    decision = story.fail("l", item=1)
    assert names(decision) == ["RunFailed", "LoopClosed", "RunCancelled", "RunFailed", "StopOrdered"]
    assert {effect.number for effect in story.effects} == {story.run("l", 2).number, story.run("x").number}
    story.wake()
    assert (story.state, story.execution.error.node) == ("FAILED", "l")


def test_items_that_poison_their_runners_end_the_loop_once():
    story = looping(*"abc")
    for number in (1, 2):
        story.assign(instance=f"i{number}")
        story.lose(f"i{number}")
    story.assign(instance="i3")
    decision = story.lose("i3")
    assert [each for each in names(decision) if each.startswith("Loop")] == ["LoopClosed"]
    assert (story.execution.error.type, story.state) == ("POISON", "FAILED")


def test_an_item_that_another_failure_let_wait_is_not_granted():
    """The second runner dies with one item that fails with it, and one that is ready again."""
    story = looping(*"ab")
    for number in (1, 2):
        story.assign(instance=f"i{number}")
        story.lose(f"i{number}")
    (first, second) = list(story.execution.ready)
    story.assign_works([first], instance="i3")
    story.assign_works([second], instance="i2")
    decision = story.lose("i3")
    assert story.ready_items == []
    assert the_event("LoopClosed", decision).stopped == (WorkKey("l", 2),)


def test_failed_items_keep_their_place_if_the_loop_continues():
    story = looping(*"abc", onItemFailure="CONTINUE", maxParallel=1)
    for item in (1, 2, 3):
        story.assign()
        if item == 2:
            story.fail("l", item=item)
        else:
            story.succeed("l", b"%d" % item, item=item)
    assert story.state == "SUCCESS"
    assert story.run("l").output == b'[1,{"error":{"type":"BOOM","message":"l went wrong 42 times"}},3]'


def test_a_loop_that_continues_may_have_no_good_item():
    story = looping("a", onItemFailure="CONTINUE")
    story.assign()
    story.fail("l", item=1)
    assert (story.state, story.run("l").output[:11]) == ("SUCCESS", b'[{"error":{')


# The end of the execution


def test_a_cancel_ends_the_loop_and_its_items():
    story = looping(*"abcd", maxParallel=3)
    story.assign_works(list(story.execution.ready)[:2])
    story.fail("l", ErrorClass.TRANSIENT, item=2)
    decision = story.cancel()
    assert the_event("StopOrdered", decision).cancelled == (WorkKey("l", 3), WorkKey("l", 2))
    assert story.run("l").state.value == "CANCELLED"
    story.stopped("l", 1)
    assert story.state == "CANCELLED"
    assert summary(story.execution).cancelled == ("l",)


@pytest.mark.parametrize("end", ["succeed", "fail", "lose", "release"])
def test_the_outcome_of_an_item_after_a_cancel_begins_nothing(end):
    story = looping(*"abc", maxParallel=1)
    story.assign()
    story.cancel()
    if end == "lose":
        story.lose()
    elif end == "release":
        story.release_run(story.run("l", 1))
    else:
        getattr(story, end)("l", item=1)
    assert (story.state, story.ready_items) == ("CANCELLED", [])


def test_a_failed_loop_is_done_again_with_all_its_items():
    story = looping("a", "b", maxParallel=1)
    story.assign()
    story.succeed("l", item=1)
    story.assign()
    story.fail("l", item=2)
    assert story.state == "FAILED"
    story.retry(l=b'{"x":1}')
    assert [(work.key, work.overrides) for work in story.execution.ready] == [(WorkKey("l", 1, 2), b'{"x":1}')]
    for item in (1, 2):
        story.assign()
        story.succeed("l", b"%d" % item, item=item)
    assert (story.state, story.run("l").output) == ("SUCCESS", b"[1,2]")


def test_no_item_is_granted_and_no_loop_ends_while_the_execution_is_paused():
    story = looping("a", "b", maxParallel=1)
    story.assign()
    story.pause()
    story.succeed("l", b"1", item=1)
    assert (story.ready_items, story.state) == ([2], "PAUSED")
    story.resume()
    story.assign()
    story.pause("pause2")
    story.succeed("l", b"2", item=2)
    assert story.state == "PAUSED"
    story.resume("resume2")
    assert (story.state, story.run("l").output) == ("SUCCESS", b"[1,2]")


def test_a_cancel_of_a_paused_execution_ends_a_loop_that_has_to_go_on():
    story = looping("a")
    story.assign()
    story.pause()
    story.succeed("l", item=1)
    story.cancel()
    assert (story.state, story.run("l").state.value) == ("CANCELLED", "CANCELLED")


def test_a_successor_goes_on_with_the_items():
    story = looping(*"abc", maxParallel=2)
    story.assign()
    story.succeed("l", b"1", item=1)
    again = story.again()
    again.adopt("i1")
    assert (again.ready_items, list(again.execution.live)) == ([3], [3])
    again.assign()
    assert [effect.item for effect in again.effects] == [b'"c"']
    again.succeed("l", b"3", item=3)
    again.succeed("l", b"2", item=2)
    assert again.run("l").output == b"[1,2,3]"


# Large lists


def listed():
    """A loop whose rendered config is in the output store."""
    story = begun(for_each("{{ input.ids }}"))
    story.succeed("l", LARGE)
    return story


def test_a_large_list_is_read_before_the_loop_starts():
    story = begun(for_each("{{ input.ids }}"))
    assert names(story.succeed("l", LARGE)) == ["ControlRendered", "ItemsRequested"]
    (effect,) = story.effects
    assert (type(effect), effect.work.config) == (ReadItems, LARGE)
    assert (story.state, parking(story.execution, story.now)) == ("RUNNING", None)
    assert [type(each) for each in resume_effects(story.again().execution)] == [ReadItems]
    config = LoopConfig({"maxParallel": 2}, [b"4", b"5", b"6"])
    assert names(story.when(StartLoop(WorkKey("l"), config))) == ["ItemsRead", "LoopStarted"]
    story.assign()
    assert [effect.item for effect in story.effects] == [b"4", b"5"]
    assert story.when(StartLoop(WorkKey("l"), config)).events == [], "a repeat changes nothing"


def test_a_successor_reads_the_list_again():
    story = listed()
    story.when(StartLoop(WorkKey("l"), LoopConfig({}, [b"4", b"5"])))
    assert unread_lists(story.execution) == []
    again = story.again()
    ((loop, ref),) = unread_lists(again.execution)
    assert ref == LARGE
    loop.items = [b"4", b"5"]
    again.assign()
    assert [effect.item for effect in again.effects] == [b"4", b"5"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "too large"),
        (LoopConfig({}, None), "items is a list"),
        (LoopConfig({"maxParallel": 0}, [b"1"]), "maxParallel is a whole number from 1 to 1000"),
    ],
)
def test_a_list_that_cannot_be_used_fails_the_loop(config, message):
    story = listed()
    assert names(story.when(StartLoop(WorkKey("l"), config, "too large")))[:2] == ["ItemsRead", "RunFailed"]
    error = story.execution.error
    assert (story.state, error.type, error.message) == ("FAILED", "INVALID_CONFIG", message)


def test_a_large_list_may_turn_out_to_be_empty():
    story = listed()
    story.when(StartLoop(WorkKey("l"), LoopConfig({}, ())))
    assert (story.state, story.run("l").output) == ("SUCCESS", b"[]")


def test_a_cancel_forgets_a_list_that_is_not_read_yet():
    story = listed()
    assert names(story.cancel()) == ["StopOrdered", "RunCancelled", "ExecutionFinished"]
    assert story.when(StartLoop(WorkKey("l"), LoopConfig({}, ()))).events == []


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"1"])
def test_a_config_that_is_no_object_is_none_of_a_loop(text):
    with pytest.raises(InvalidItems, match="config"):
        loop_config(text)


def test_an_item_has_at_most_the_inline_limit():
    item = b'"%b"' % (b"x" * (INLINE_BYTES_MAX - 2))
    assert loop_config(b'{"items":[%b]}' % item).items == [item]
    with pytest.raises(InvalidItems, match="an item has over"):
        loop_config(b'{"items":[%b]}' % item.replace(b"x", b"xx", 1))


# Large outputs


def test_a_large_output_is_stored_before_the_loop_ends():
    story = looping("a", "b")
    story.assign()
    story.succeed("l", b'"%b"' % (b"x" * 200_000), item=1)
    decision = story.succeed("l", b'"%b"' % (b"y" * 200_000), item=2)
    assert names(decision) == ["RunSucceeded", "LoopGathered"]
    (effect,) = story.effects
    assert isinstance(effect, StoreLoopOutput)
    parts = b"".join(part for part in output_parts(story.execution, effect.loop) if isinstance(part, bytes))
    assert (len(parts), parts[:3], parts[-3:]) == (400_007, b'["x', b'y"]')
    assert (story.state, parking(story.execution, story.now)) == ("RUNNING", None)
    again = story.again()
    assert [type(each) for each in resume_effects(again.execution)] == [StoreLoopOutput]
    assert names(story.when(FinishLoop(WorkKey("l"), LARGE))) == ["LoopClosed", "RunSucceeded", "ExecutionFinished"]
    assert story.run("l").output == LARGE
    assert story.when(FinishLoop(WorkKey("l"), LARGE)).events == [], "a repeat changes nothing"


def test_outputs_that_are_kept_outside_are_parts_of_the_output():
    story = looping("a", "b")
    story.assign()
    story.succeed("l", LARGE, item=1)
    story.succeed("l", b"2", item=2)
    (loop,) = story.execution.unstored.values()
    assert list(output_parts(story.execution, loop)) == [b"[", LARGE, b",", b"2", b"]"]


def test_a_stored_output_that_is_too_large_fails_the_loop():
    story = looping("a")
    story.assign()
    story.succeed("l", LARGE, item=1)
    story.when(FinishLoop(WorkKey("l"), None))
    assert (story.state, story.execution.error.type) == ("FAILED", "OUTPUT_TOO_LARGE")


def test_a_cancel_forgets_an_output_that_is_not_stored_yet():
    story = looping("a")
    story.assign()
    story.succeed("l", LARGE, item=1)
    assert names(story.cancel())[:2] == ["StopOrdered", "RunCancelled"]
    assert (story.state, resume_effects(story.again().execution)[:-1]) == ("CANCELLED", [])
    assert story.when(FinishLoop(WorkKey("l"), LARGE)).events == []


def test_outputs_beyond_the_limit_end_the_loop():
    """They are noticed with the next outcome, so that no event has to count ahead."""
    story = looping(*"abcd", maxParallel=1)
    half = OutputRef("k" * 60, "0" * 64, OUTPUT_BYTES_MAX)
    for item, output in ((1, half), (2, b"1")):
        story.assign()
        story.succeed("l", output, item=item)
    story.assign()
    story.succeed("l", item=3)
    assert (story.state, story.execution.error.type) == ("FAILED", "OUTPUT_TOO_LARGE")


def test_an_output_that_is_nested_too_deep_fails_the_loop():
    story = looping("a")
    story.assign()
    story.succeed("l", b"[" * 30 + b"]" * 30, item=1)
    assert (story.state, story.execution.error.type) == ("FAILED", "OUTPUT_NOT_JSON")


def test_an_output_of_just_the_inline_limit_is_inline():
    story = looping("a")
    story.assign()
    story.succeed("l", b'"%b"' % (b"x" * (INLINE_BYTES_MAX - 4)), item=1)
    assert (story.state, len(story.run("l").output)) == ("SUCCESS", INLINE_BYTES_MAX)


def test_a_failed_item_ends_those_that_are_left_to_somebody_else():
    story = looping("a", "b")
    story.assign()
    left_to_somebody_else(story, "l", 1)
    story.fail("l", item=2)
    assert (story.state, story.run("l", 1).state.value) == ("FAILED", "CANCELLED")


@pytest.mark.parametrize("is_after_takeover", [False, True])
def test_items_that_others_end_push_out_no_answer_to_a_person(monkeypatch, is_after_takeover):
    monkeypatch.setattr(answers, "ANSWERS_MAX", 3)
    items = 6
    story = looping(*range(items), maxParallel=1)
    sent = Signal("signal:e:paid", "ann", "paid", b"{}")
    assert names(story.when(sent)) == ["SignalReceived"]
    for item in range(1, items):
        story.assign()
        left_to_somebody_else(story, "l", item)
        number = story.run("l", item).number
        story.when(CompleteRun(f"complete.{number}:e:done", "", number, b"1", ""))
    if is_after_takeover:
        story = story.again()
    assert story.state == "RUNNING"
    assert story.when(sent).events == []


def test_the_branch_of_an_item_means_nothing_to_a_list():
    story = looping("a", "b", maxParallel=1)
    story.assign()
    story.succeed("l", branch="true", item=1)
    assert story.ready_items == [2]
