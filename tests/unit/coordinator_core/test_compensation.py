"""Finished nodes are undone, the last one first, when their execution does not end well."""

import json
from typing import Any

import pytest

from services.coordinator.core.commands import Cancel, Discard, MarkFixed, ReportStopped, Requeue
from services.coordinator.core.effect_keys import EffectKeys
from services.coordinator.core.effects import parking
from services.coordinator.core.retry import DEATHS_MAX
from services.coordinator.core.summary import summary
from services.coordinator.core.values import INLINE_BYTES_MAX, ErrorClass, FinalError, WorkKey
from services.coordinator.core.workflow_state import seen_state
from tests.support.story import BEGIN, SECOND, Story, begun, chain, edge, names, node, started, the_event


def undoable(id, **more):
    own = {name: more.pop(name) for name in ("inputs", "config", "retry", "timeout") if name in more}
    return node(id, compensate={"module": "shop.undo@1", **own}, **more)


def failed(*nodes, edges=(), **document):
    """These nodes have succeeded one after the other. Then `bad`, which needs all of them, has failed."""
    ids = [each["id"] for each in nodes]
    story = started(*nodes, node("bad"), edges=[*edges, *(edge(id, "bad") for id in ids)], **document)
    story.do(*[id for id in ids if story.states[id] == "READY"])
    story.assign("bad")
    story.fail("bad")
    return story


def compensated(story):
    return summary(story.execution)[5:]


def test_finished_nodes_are_undone_one_after_the_other_the_last_one_first():
    story = started(*map(undoable, "abc"), node("plain"), undoable("bad"), edges=chain("a", "bad"))
    story.do("c", "a", "plain", "b")
    story.assign("bad")
    decision = story.fail("bad")
    assert names(decision) == ["RunFailed", "CompensationStarted"]
    order = the_event("CompensationStarted", decision)
    assert [key.node for key in order.works] == ["b$undo", "a$undo", "c$undo"]
    assert (order.outcome, order.error) == ("FAILED", FinalError("bad", "BOOM", "bad went wrong 42 times"))
    for id in ("b$undo", "a$undo", "c$undo"):
        assert (story.state, story.ready) == ("RUNNING", [id])
        story.assign(id)
        assert story.effects[0].run.work.node.runner_module == "shop.undo@1"
        decision = story.succeed(id)
    assert names(decision) == ["RunSucceeded", "ExecutionFinished"]
    assert (story.state, story.execution.error) == ("FAILED", order.error)
    assert compensated(story) == (("a", "b", "c"), ())
    assert summary(story.execution).succeeded == ("a", "b", "c", "plain")


def test_an_execution_without_compensations_ends_at_once():
    story = begun(node("a"), undoable("b"), edges=chain("a", "b"))
    assert names(story.fail("a")) == ["RunFailed", "WorkBlocked", "ExecutionFinished"]
    assert compensated(story) == ((), ())


def test_a_good_end_undoes_nothing():
    story = begun(undoable("a"))
    assert names(story.succeed("a")) == ["RunSucceeded", "ExecutionFinished"]
    assert (story.state, compensated(story)) == ("SUCCESS", ((), ()))


def test_an_output_that_cannot_be_rendered_undoes_what_was_done():
    story = begun(undoable("a"), output={"x": "{{ input.missing }}"})
    story.succeed("a")
    story.assign("$output")
    assert names(story.fail("$output")) == ["RunFailed", "CompensationStarted"]


def test_a_cancel_undoes_what_was_done_when_all_runners_have_answered():
    story = started(undoable("a"), undoable("b"), undoable("c"))
    story.do("a")
    story.assign("b", "c")
    assert names(story.cancel()) == ["StopOrdered"]
    run = story.run("c")
    assert names(story.when(ReportStopped(run.number, run.epoch))) == ["RunCancelled"]
    decision = story.succeed("b")
    assert names(decision) == ["RunSucceeded", "CompensationStarted"]
    assert [key.node for key in the_event("CompensationStarted", decision).works] == ["b$undo", "a$undo"]
    story.do("b$undo", "a$undo")
    assert (story.state, story.execution.error.type) == ("CANCELLED", "CANCELLED")
    assert compensated(story) == (("a", "b"), ())
    assert summary(story.execution).cancelled == ("c",)


def test_nothing_ends_a_compensation_early():
    """Neither a second cancel, nor the term in which runners had to stop, nor the deadline."""
    story = started(undoable("a"), node("b"), timeout="10s")
    story.do("a")
    story.assign("b")
    story.cancel()
    run = story.run("b")
    story.when(ReportStopped(run.number, run.epoch))
    story.assign("a$undo")
    assert story.when(Cancel("m2", "again", "ann")).refusal is None
    assert story.execution.next_wake() == 0
    story.later(60)
    assert story.tick().events == []
    assert list(story.execution.live) == [story.run("a$undo").number]
    assert story.state == "RUNNING"
    story.succeed("a$undo")
    assert story.state == "CANCELLED"


def test_an_execution_that_is_out_of_time_undoes_what_was_done():
    story = started(undoable("a"), node("s", "sleep@1", config={"duration": "1h"}), timeout="10s")
    story.do("a")
    assert names(story.wake()) == ["StopOrdered", "RunCancelled", "CompensationStarted"]
    story.assign("a$undo")
    assert story.now == BEGIN + 10 * SECOND
    story.succeed("a$undo")
    assert story.state == "TIMEOUT"


@pytest.mark.parametrize("on_failure", ["CONTINUE", "FAIL_FAST"])
def test_a_compensation_that_fails_for_good_does_not_stop_the_others(on_failure):
    story = failed(undoable("a"), undoable("b"), onFailure=on_failure)
    story.assign("b$undo")
    assert names(story.fail("b$undo")) == ["RunFailed"]
    assert story.ready == ["a$undo"]
    story.do("a$undo")
    assert (story.state, story.execution.error.node) == ("FAILED", "bad")
    assert compensated(story) == (("a",), ("b",))


def test_a_cancelled_execution_ends_as_cancelled_whatever_its_compensations_do():
    story = started(undoable("a"), node("b"), onFailure="FAIL_FAST")
    story.do("a")
    story.cancel()
    story.assign("a$undo")
    assert names(story.fail("a$undo")) == ["RunFailed", "ExecutionFinished"]
    assert (story.state, story.execution.error.type, story.execution.first_failure) == ("CANCELLED", "CANCELLED", None)


def test_a_compensation_is_tried_again_by_the_policy_of_its_node():
    story = failed(undoable("a", retry={"attempts": 3, "initialDelay": "60s", "factor": 1}), retry={"attempts": 2})
    for _ in range(2):
        story.assign("a$undo")
        assert names(story.fail("a$undo", ErrorClass.TRANSIENT)) == ["RunFailed"]
        assert parking(story.execution, story.now) == story.execution.next_wake() == story.now + 60 * SECOND
        story.later(70)
        story.tick()
    story.assign("a$undo")
    assert names(story.fail("a$undo", ErrorClass.TRANSIENT)) == ["RunFailed", "ExecutionFinished"]
    assert story.run("a$undo").attempt == 3


def test_a_compensation_has_what_it_does_not_say_from_its_node():
    plain: dict[str, Any] = {"module": "shop.undo@1"}
    own = plain | {"timeout": "5s", "retry": {"factor": 3}, "runnerLabels": {"a": "b"}, "idempotent": True}
    policies: dict[str, Any] = {
        "timeout": "9s",
        "retry": {"attempts": 7},
        "runnerLabels": {"x": "y"},
        "idempotent": True,
    }
    story = Story([node("a", compensate=plain, **policies), node("b", compensate=own, **policies)])
    nodes = story.definition.nodes
    assert [each.id for each in story.definition.graph] == ["a", "b"]
    a, b = nodes["a$undo"], nodes["b$undo"]
    assert (a.timeout, a.retry.attempts, a.runner_labels, a.is_idempotent) == (9 * SECOND, 7, (("x", "y"),), False)
    assert (b.timeout, b.retry.attempts, b.retry.factor) == (5 * SECOND, 7, 3.0)
    assert (b.runner_labels, b.is_idempotent) == ((("a", "b"),), True)


def test_a_compensation_that_kills_its_runners_is_poison_and_the_next_one_begins():
    story = failed(undoable("a"), undoable("b"))
    for number in range(DEATHS_MAX):
        story.assign("b$undo", instance=f"i{number}")
        story.lose(f"i{number}")
    assert story.run("b$undo").state == "DLQ"
    assert story.ready == ["a$undo"]


def test_a_successor_goes_on_with_the_compensation():
    story = failed(undoable("a"), undoable("b"))
    story.do("b$undo")
    story.assign("a$undo")
    again = story.again()
    assert names(again.adopt("i1")) == ["ExecutionAdopted"]
    assert names(again.succeed("a$undo")) == ["RunSucceeded", "ExecutionFinished"]
    assert compensated(again) == (("a", "b"), ())


def test_a_compensation_sees_what_its_node_saw_and_gave_and_why_the_execution_ends():
    story = begun(
        node("set", "state.set@1", inputs={"v": 1}),
        node("a"),
        undoable("b", inputs={"x": "{{ nodes.a.output }} {{ nodes.b.output }} {{ error.type }} {{ state.v }}"}),
        node("later", "state.set@1", inputs={"v": 2}),
        node("bad"),
        edges=[*chain("set", "a", "b", "later", "bad")],
    )
    story.succeed("a", b'"of a"')
    story.assign("b")
    story.succeed("b", b'"of b"')
    story.assign("bad")
    story.fail("bad")
    story.assign("b$undo")
    (grant,) = story.effects
    assert list(grant.outputs) == [("a", b'"of a"'), ("b", b'"of b"')]
    assert json.loads(seen_state(story.execution, grant.run.work.node)) == {"v": 1}


def test_a_computed_name_reads_the_node_and_all_before_it():
    story = Story(
        [node("a"), undoable("b", inputs={"x": "{{ nodes[input.which] }}"}), undoable("c", inputs={"x": 1})],
        chain("a", "b", "c"),
    )
    assert story.definition.nodes["b$undo"].references == ("a", "b")
    assert story.definition.nodes["c$undo"].references == ()


def test_inputs_that_no_runner_can_be_handed_fail_the_compensation_alone():
    sources = [f"n{number}" for number in range(130)]
    story = started(
        *map(node, sources), undoable("a", inputs={"x": "{{ nodes|length }}"}), undoable("b"), node("bad"),
        edges=[*(edge(id, "a") for id in sources), *chain("a", "b", "bad")],
    )  # fmt: skip
    story.assign()
    for id in sources:
        story.succeed(id, b'"' + b"x" * (INLINE_BYTES_MAX - 2) + b'"')
    story.do("a", "b")
    story.assign("bad")
    story.fail("bad")
    story.do("b$undo")
    assert names(story.assign("a$undo")) == ["RunLeased", "RunFailed", "ExecutionFinished"]
    assert story.run("a$undo").error.type == "INPUTS_TOO_LARGE"
    assert (story.state, compensated(story)) == ("FAILED", (("b",), ("a",)))


def test_the_effect_keys_of_a_compensation_differ_from_those_of_its_node():
    story = failed(undoable("a"))
    story.assign("a$undo")
    undo = story.run("a$undo")
    assert undo.work.key == WorkKey("a$undo", 0, 1)
    keys = EffectKeys(b"secret")
    assert keys.of("e", undo) != keys.of("e", story.run("a"))


def test_a_failure_that_is_handled_undoes_nothing():
    story = begun(undoable("a"), node("b"), node("c"), edges=[edge("a", "b"), edge("b", "c", "failure")])
    story.succeed("a")
    story.assign("b")
    story.fail("b")
    story.do("c")
    assert (story.state, compensated(story)) == ("SUCCESS", ((), ()))


def test_a_late_report_of_a_stopped_run_changes_nothing_in_the_compensation():
    story = started(undoable("a"), node("b"))
    story.do("a")
    story.assign("b")
    run = story.run("b")
    story.cancel()
    story.wake()
    assert story.ready == ["a$undo"]
    assert story.when(ReportStopped(run.number, run.epoch)).refusal is not None
    assert story.ready == ["a$undo"]


def reopened(decision):
    """The nodes that are done again, with their generations."""
    return {work.key.node: work.key.generation for work in the_event("ExecutionReopened", decision).work}


def test_a_retry_does_undone_nodes_again_and_a_second_failure_undoes_them_again():
    story = failed(undoable("a"), undoable("b"), node("plain"))
    story.assign("b$undo")
    story.fail("b$undo")
    story.do("a$undo")
    assert reopened(story.retry()) == {"a": 2, "bad": 2}, "b was not undone, so it stays"
    assert compensated(story) == ((), ())
    story.do("a")
    story.assign("bad")
    order = the_event("CompensationStarted", story.fail("bad"))
    assert order.works == (WorkKey("a$undo", 0, 2),)
    story.assign("a$undo")
    (grant,) = story.effects
    assert grant.run.work.key.generation == 2
    story.succeed("a$undo")
    assert (story.state, compensated(story)) == ("FAILED", (("a",), ("b",)))


def test_a_retry_of_a_cancelled_execution_does_what_was_undone_and_what_was_never_done():
    story = started(undoable("a"), node("b"), node("c"), edges=chain("a", "c"))
    story.do("a")
    story.cancel()
    story.do("a$undo")
    assert story.state == "CANCELLED"
    assert reopened(story.retry(from_node="a")) == {"a": 2, "b": 2, "c": 2}
    assert story.state == "RUNNING"
    story.do("a", "b", "c")
    assert story.state == "SUCCESS"


def test_a_compensation_of_earlier_work_sees_what_that_work_gave():
    story = started(undoable("a", inputs={"x": "{{ nodes.a.output }}"}), node("bad"), edges=chain("a", "bad"))
    story.assign("a")
    story.succeed("a", b"1")
    story.do("bad")
    assert story.state == "SUCCESS"
    story.retry(from_node="a")
    story.assign("a")
    story.succeed("a", b"2")
    story.assign("bad")
    assert [key.generation for key in the_event("CompensationStarted", story.fail("bad")).works] == [2, 1]
    for output in (b"2", b"1"):
        story.assign("a$undo")
        assert story.effects[0].outputs == [("a", output)]
        story.succeed("a$undo")
    assert story.state == "FAILED"


@pytest.mark.parametrize(("is_final", "reason"), [(False, "EXECUTION_FINAL"), (True, "NODE_NOT_FOUND")])
def test_a_compensation_is_not_retried_by_itself(is_final, reason):
    story = failed(undoable("a"))
    if is_final:
        story.assign("a$undo")
        story.fail("a$undo")
    from_node = "a$undo" if is_final else "bad"
    assert story.retry(from_node=from_node).refusal.reason == reason


@pytest.mark.parametrize("on_failure", ["CONTINUE", "FAIL_FAST", "HOLD"])
def test_a_compensation_that_failed_is_a_dead_letter_which_a_person_resolves(on_failure):
    story = started(undoable("a"), undoable("b"), node("c"), onFailure=on_failure)
    story.do("a", "b")
    story.cancel()
    for id in ("b$undo", "a$undo"):
        story.assign(id)
        story.fail(id)
    assert (story.state, compensated(story)) == ("CANCELLED", ((), ("a", "b")))
    fixed, discarded = story.run("a$undo").number, story.run("b$undo").number
    assert sorted(story.execution.dead_letters) == [discarded, fixed]
    assert story.give(Requeue, fixed, message_id="m1").refusal.reason == "NODE_NOT_RETRIED"
    assert names(story.give(MarkFixed, fixed, b"null", message_id="m2")) == ["DeadLetterResolved"]
    assert names(story.give(Discard, discarded, message_id="m3")) == ["DeadLetterResolved"]
    assert [each.resolution for each in story.execution.dead_letters.values()] == ["DISCARDED", "FIXED"]
    assert story.state == "CANCELLED"
