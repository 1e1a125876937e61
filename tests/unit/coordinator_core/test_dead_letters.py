"""Work that failed for good with nobody to handle it is a dead letter, which a person resolves once."""

import pytest

from services.coordinator.core.commands import (
    CompleteRun,
    Discard,
    MarkFixed,
    Quarantine,
    ReportDeferred,
    ReportFailure,
    ReportSuccess,
    Requeue,
)
from services.coordinator.core.decision import RefusalReason
from services.coordinator.core.effects import StopRun, parking
from services.coordinator.core.events import DeadLetterResolved
from services.coordinator.core.fold import apply
from services.coordinator.core.results import RECORDED_BYTES_MAX
from services.coordinator.core.summary import summary
from services.coordinator.core.values import BrokenInvariant, DeadLetterResolution, Error, ErrorClass
from tests.support.story import SECOND, begun, chain, edge, fields, names, node, started, the_event

RESOLUTIONS = [Requeue, MarkFixed, Discard]


def letters(story):
    return {
        number: (letter.reason.value, letter.resolution.value)
        for number, letter in story.execution.dead_letters.items()
    }


def failed(*more, edges=(), **document):
    """`bad` has failed in run 1, and `after` is blocked by it."""
    story = begun(node("bad"), node("after"), *more, edges=[*chain("bad", "after"), *edges], **document)
    story.fail("bad")
    return story


def command(make, run=1):
    return make(f"m-{make.__name__}", "ann", run, *([b'"by hand"'] if make is MarkFixed else []))


def test_every_final_failure_that_nobody_handles_is_a_dead_letter():
    nodes = [node("permanent"), node("tried", retry={"attempts": 2}), node("saved"), node("rescue"), node("deadly")]
    story = begun(*nodes, edges=[edge("saved", "rescue", "failure")])
    story.fail("permanent")
    story.fail("tried", ErrorClass.TRANSIENT)
    assert letters(story) == {1: ("PERMANENT_ERROR", "PENDING")}, "what is tried again is none"
    story.wake()
    story.assign("tried")
    story.fail("tried", ErrorClass.TRANSIENT)
    story.fail("saved")
    for number in (1, 2):
        story.lose(f"i{number}")
        story.assign("deadly", instance=f"i{number + 1}")
    story.lose("i3")
    reasons = [reason for reason, _ in letters(story).values()]
    assert reasons == ["PERMANENT_ERROR", "MAX_RETRIES", "POISON"]


def test_a_node_that_is_stopped_with_its_execution_is_none():
    story = begun(node("a"))
    story.cancel()
    story.fail("a")
    assert letters(story) == {}


def test_a_requeue_does_the_work_again_with_other_inputs():
    story = failed()
    decision = story.give(Requeue, 1, "try a smaller one", b'{"n":1}')
    assert names(decision) == ["ExecutionReopened", "DeadLetterResolved"]
    resolved = the_event("DeadLetterResolved", decision)
    assert fields(resolved, "run", "resolution", "caller", "notes", "epoch", "holder") == (
        1, DeadLetterResolution.REQUEUED, "ann", "try a smaller one", 2, "c3",
    )  # fmt: skip
    assert (story.ready, story.work("bad").overrides) == (["bad"], b'{"n":1}')
    story.do("bad", "after")
    assert (story.state, letters(story)) == ("SUCCESS", {1: ("PERMANENT_ERROR", "REQUEUED")})


def test_a_requeue_that_fails_again_is_another_dead_letter():
    story = failed()
    story.give(Requeue, 1)
    story.assign("bad")
    story.fail("bad")
    assert letters(story) == {1: ("PERMANENT_ERROR", "REQUEUED"), 2: ("PERMANENT_ERROR", "PENDING")}


def test_a_retry_resolves_the_dead_letters_of_what_it_does_again():
    story = begun(node("bad"), node("worse"))
    story.fail("bad")
    story.fail("worse")
    story.retry("bad")
    assert [resolution for _, resolution in letters(story).values()] == ["REQUEUED", "PENDING"]


def test_work_that_a_person_has_done_goes_on_without_another_run_of_a_runner():
    story = failed(node("last"), edges=chain("after", "last"))
    decision = story.give(MarkFixed, 1, b'{"paid":true}', "paid by hand")
    assert names(decision) == ["ExecutionReopened", "DeadLetterResolved", "RunSucceeded"]
    assert story.ready == ["after"]
    run = story.run("bad")
    assert (run.work.key.generation, run.output, run.runner, run.state.value) == (2, b'{"paid":true}', "", "SUCCESS")
    story.do("after", "last")
    assert (story.state, letters(story)) == ("SUCCESS", {1: ("PERMANENT_ERROR", "FIXED")})


def test_an_output_that_a_person_gives_ends_the_execution():
    story = begun(node("a"), output={"x": "{{ input.missing }}"})
    story.succeed("a")
    story.assign("$output")
    story.fail("$output")
    decision = story.give(MarkFixed, 2, b'{"x":7}')
    assert names(decision)[-1] == "ExecutionFinished"
    assert (story.state, story.execution.output) == ("SUCCESS", b'{"x":7}')


def test_a_discard_leaves_the_execution_as_it_ended():
    story = failed()
    before = (story.state, story.execution.end_time, story.execution.error)
    decision = story.give(Discard, 1, "not needed")
    assert names(decision) == ["DeadLetterResolved"]
    assert (story.state, story.execution.end_time, story.execution.error) == before
    assert letters(story) == {1: ("PERMANENT_ERROR", "DISCARDED")}


def test_a_requeue_in_an_execution_that_was_cancelled_also_does_what_was_left():
    story = failed(node("slow"))
    story.cancel()
    story.wake()
    decision = story.give(Requeue, 1)
    assert {work.key.node for work in the_event("ExecutionReopened", decision).work} == {"bad", "after", "slow"}


@pytest.mark.parametrize("first", RESOLUTIONS)
@pytest.mark.parametrize("second", RESOLUTIONS)
def test_a_dead_letter_is_resolved_once(first, second):
    """S16: whoever comes second with the same decision is told the same, with another one is refused."""
    story = failed(node("slow"))
    story.when(command(first))
    again = story.when(command(second))
    if first is second:
        assert (again.events, again.refusal) == ([], None)
        other = command(second)
        other.message_id = "of somebody else"
        for answer in (["CommandChangedNothing"], []):
            decision = story.when(other)
            assert (names(decision), decision.refusal) == (answer, None)
    else:
        assert (names(again), again.refusal.reason) == (["CommandRefused"], RefusalReason.ALREADY_RESOLVED)
    assert [type(event) for event in story.journal].count(DeadLetterResolved) == 1


def test_a_second_resolution_in_a_journal_is_a_bug():
    story = failed()
    story.give(Discard, 1)
    with pytest.raises(BrokenInvariant, match="twice"):
        apply(story.execution, story.journal[-1])


@pytest.mark.parametrize("make", RESOLUTIONS)
def test_a_run_that_is_no_dead_letter_cannot_be_resolved(make):
    story = begun(node("a"))
    assert story.when(command(make)).refusal.reason is RefusalReason.DEAD_LETTER_NOT_FOUND


@pytest.mark.parametrize("make", [Requeue, MarkFixed])
def test_a_dead_letter_waits_while_something_after_it_is_under_way(make):
    story = begun(node("bad"), node("cleanup"), edges=[edge("bad", "cleanup", "always")])
    story.fail("bad")
    story.assign("cleanup")
    assert story.when(command(make)).refusal.reason is RefusalReason.NODE_NOT_ENDED
    assert letters(story) == {1: ("PERMANENT_ERROR", "PENDING")}


# onFailure: HOLD


def held(*more, edges=(), **document):
    return failed(*more, edges=edges, onFailure="HOLD", **document)


def test_a_node_that_failed_for_good_waits_for_a_person_and_its_branch_with_it():
    story = begun(node("bad"), node("after"), node("other"), edges=chain("bad", "after"), onFailure="HOLD")
    assert names(story.fail("bad")) == ["RunFailed", "WaitStarted"]
    assert (story.states["after"], letters(story)) == ("IDLE", {1: ("PERMANENT_ERROR", "PENDING")})
    story.succeed("other")
    assert (story.state, story.run("bad").state.value) == ("WAITING", "FAILED")
    assert parking(story.execution, story.now) == 0, "only a message wakes it"
    assert parking(story.again().execution, story.now) == 0


def test_a_poisoned_node_is_held_too_and_a_handled_failure_is_not():
    story = begun(
        node("deadly"), node("saved"), node("rescue"), edges=[edge("saved", "rescue", "failure")], onFailure="HOLD"
    )
    story.fail("saved")
    assert story.ready == ["rescue"]
    for number in (1, 2):
        story.lose(f"i{number}")
        story.assign("deadly", instance=f"i{number + 1}")
    assert names(story.lose("i3")) == ["RunLost", "WaitStarted"]


def test_a_held_node_is_requeued():
    story = held()
    story.give(Requeue, 1)
    assert (story.states["bad"], story.ready) == ("READY", ["bad"])
    story.do("bad", "after")
    assert story.state == "SUCCESS"


def test_a_held_node_is_retried():
    story = held()
    assert names(story.retry()) == ["ExecutionReopened", "DeadLetterResolved"]
    assert story.ready == ["bad"]


def test_a_held_node_is_fixed():
    story = held()
    story.give(MarkFixed, 1, b'"by hand"')
    story.do("after")
    assert (story.state, summary(story.execution).succeeded) == ("SUCCESS", ("bad", "after"))


def test_a_held_node_that_is_discarded_fails():
    story = held()
    decision = story.give(Discard, 1)
    assert names(decision) == ["DeadLetterResolved", "WorkBlocked", "ExecutionFinished"]
    assert (story.state, story.execution.error.node) == ("FAILED", "bad")
    summed = summary(story.execution)
    assert (summed.failed, summed.blocked) == (("bad",), ("after",))


def test_an_execution_that_holds_a_node_can_be_cancelled():
    story = held()
    decision = story.cancel()
    assert names(decision) == ["StopOrdered", "ExecutionFinished"]
    assert (story.state, story.run("bad").state.value) == ("CANCELLED", "FAILED")
    assert summary(story.execution).failed == ("bad",)
    assert letters(story) == {1: ("PERMANENT_ERROR", "PENDING")}, "it can be requeued later"
    story.give(Requeue, 1)
    story.do("bad", "after")
    assert story.state == "SUCCESS"


# By hand


def test_a_run_that_is_set_apart_fails_for_good():
    story = begun(node("a", retry={"attempts": 5}), node("b"))
    decision = story.when(Quarantine("q", "ann", 1, "it hangs"))
    assert names(decision) == ["RunQuarantined", "RunFailed"]
    assert story.effects == [StopRun(1, 2, "i1", "LEASE_ENDED")]
    assert (letters(story), story.run("a").state.value) == ({1: ("MANUAL", "PENDING")}, "DLQ")
    assert story.run("a").error.message == "it hangs"
    again = story.when(Quarantine("q2", "bob", 1))
    assert (names(again), again.refusal) == (["CommandChangedNothing"], None)
    late = story.when(ReportSuccess(1, 2, b"{}"))
    assert late.refusal.reason is RefusalReason.LEASE_ENDED


@pytest.mark.parametrize(("run", "reason"), [(0, "RUN_NOT_FOUND"), (9, "RUN_NOT_FOUND"), (1, "RUN_ENDED")])
def test_only_a_run_whose_work_is_to_be_done_is_set_apart(run, reason):
    story = started(node("a"), node("b"))
    story.do("a")
    assert story.when(Quarantine("q", "ann", run)).refusal.reason == reason


def test_an_earlier_run_of_work_that_is_under_way_again_is_over():
    story = begun(node("a", retry={"attempts": 5}))
    story.fail("a", ErrorClass.TRANSIENT)
    story.wake()
    story.assign("a")
    assert story.when(Quarantine("q", "ann", 1)).refusal.reason is RefusalReason.RUN_ENDED


def test_a_control_node_that_waits_has_a_refusal_of_its_own():
    story = started(node("go", "wait_signal@1", config={"signal": "go"}))
    assert story.when(Quarantine("q", "ann", 1)).refusal.reason is RefusalReason.RUN_IS_WAITING


def deferred_run():
    story = begun(node("a"), node("b"))
    story.when(ReportDeferred(1, story.run("a").epoch, cost_tokens=5))
    return story


def run_in_backoff():
    story = begun(node("a", retry={"attempts": 5}), node("b"))
    story.when(ReportFailure(1, story.run("a").epoch, Error(ErrorClass.TRANSIENT, "BUSY", "no"), 0.5, cost_tokens=5))
    return story


def run_before_the_next():
    """The backoff is over, and no runner has the work yet."""
    story = run_in_backoff()
    story.wake()
    return story


def run_held_back():
    story = begun(node("a"), node("b"))
    story.hold_back("a", "crm", story.now + 30 * SECOND)
    return story


def run_handed_back():
    story = begun(node("a"), node("b"))
    story.release("a")
    return story


@pytest.mark.parametrize(
    ("given", "message", "cost_tokens"),
    [
        (deferred_run, "it hangs", 5),
        (run_in_backoff, "it hangs; its last attempt failed: BUSY: no", 5),
        (run_before_the_next, "it hangs; its last attempt failed: BUSY: no", 5),
        (run_held_back, "it hangs", 0),
        (run_handed_back, "it hangs", 0),
    ],
)
def test_work_that_no_runner_has_is_set_apart(given, message, cost_tokens):
    story = given()
    decision = story.when(Quarantine("q", "ann", 1, "it hangs"))
    assert names(decision) == ["RunQuarantined", "RunFailed"]
    run = story.run("a")
    assert (letters(story), run.state.value, run.error.message) == ({1: ("MANUAL", "PENDING")}, "DLQ", message)
    assert (story.effects, run.cost_tokens, story.execution.cost_tokens) == ([], cost_tokens, cost_tokens)
    assert not story.execution.next_wake(), "no timer of it is left"
    again = story.when(Quarantine("q2", "bob", 1))
    assert (names(again), again.refusal) == (["CommandChangedNothing"], None)
    story.succeed("b")
    assert story.state == "FAILED"
    story.give(Requeue, 1)
    story.do("a")
    assert story.state == "SUCCESS"


def test_a_token_of_work_that_was_set_apart_is_void():
    story = deferred_run()
    story.when(Quarantine("q", "ann", 1))
    assert story.when(CompleteRun("m", "", 1, b"{}")).refusal.reason is RefusalReason.RUN_ENDED


def test_a_failure_that_its_runner_reports_twice_is_no_late_report_after_the_work_was_set_apart():
    story = run_in_backoff()
    story.when(Quarantine("q", "ann", 1))
    again = story.when(ReportFailure(1, story.run("a").epoch, Error(ErrorClass.TRANSIENT, "BUSY", "no"), 0.5))
    assert (again.events, again.refusal) == ([], None)


def test_held_work_that_was_set_apart_in_its_backoff_waits_for_a_person():
    story = begun(node("a", retry={"attempts": 5}), onFailure="HOLD")
    story.fail("a", ErrorClass.TRANSIENT)
    assert names(story.when(Quarantine("q", "ann", 1))) == ["RunQuarantined", "RunFailed", "WaitStarted"]
    assert story.state == "WAITING"


@pytest.mark.parametrize("given", ["an edge", "a loop"])
def test_a_run_whose_failure_the_graph_handles_is_not_set_apart(given):
    """There would be no dead letter: the failure edge takes the failure of a node, and the loop that of its item."""
    if given == "an edge":
        story = begun(node("a"), node("rescue"), edges=[edge("a", "rescue", "failure")])
    else:
        body = {"items": [1, 2], "body": {"module": "noop@1"}}
        story = begun(node("a", "for_each@1", config=body))
    run = max(story.execution.live)
    decision = story.when(Quarantine("q", "ann", run))
    assert (names(decision), decision.refusal.reason) == (["CommandRefused"], RefusalReason.FAILURE_IS_HANDLED)
    assert run in story.execution.live, "its runner goes on with it"


def test_a_compensation_is_set_apart_although_nothing_follows_from_its_failure():
    story = started(node("paid", compensate={"module": "bank.refund@1"}), node("bad"), edges=chain("paid", "bad"))
    story.do("paid")
    story.assign("bad")
    story.fail("bad")
    story.assign("paid$undo")
    run = story.run("paid$undo").number
    story.when(Quarantine("q", "ann", run))
    assert letters(story)[run] == ("MANUAL", "PENDING")


def test_nothing_is_set_apart_after_the_end():
    story = begun()
    story.succeed("a")
    assert story.when(Quarantine("q", "ann", 1)).refusal.reason is RefusalReason.EXECUTION_FINAL


# What it worked on


RENDERED = b'{"config":{},"inputs":{"n":-1}}'


def reported(rendered, **document):
    story = begun(node("a", inputs={"n": "{{ input.n }}"}), **document)
    error = Error(ErrorClass.PERMANENT, "NEGATIVE", "-1 is negative")
    story.when(ReportFailure(1, story.run("a").epoch, error, 0.5, rendered=rendered))
    return story


def test_what_was_rendered_is_kept_with_the_dead_letter():
    story = reported(RENDERED)
    assert story.again().execution.dead_letters[1].rendered == RENDERED


@pytest.mark.parametrize(
    ("rendered", "document"),
    [
        (b"", {}),
        (b"{", {}),
        (b'{"inputs":{}}', {}),
        (b'{"config":{},"inputs":{"x":"%b"}}' % (b"x" * RECORDED_BYTES_MAX), {}),
        (b'{"config":{},"inputs":{"x":%b1%b}}' % (b"[" * 60, b"]" * 60), {}),
        (RENDERED, {"recordInputs": False}),
    ],
)
def test_what_is_unusable_or_unwanted_is_not_kept(rendered, document):
    assert reported(rendered, **document).execution.dead_letters[1].rendered == b""


def test_nothing_is_kept_of_an_attempt_that_is_followed_by_another():
    story = begun(node("a", retry={"attempts": 2}))
    error = Error(ErrorClass.TRANSIENT, "BUSY", "try again")
    decision = story.when(ReportFailure(1, story.run("a").epoch, error, 0.5, rendered=RENDERED))
    assert the_event("RunFailed", decision).rendered == b""


def test_a_held_node_waits_under_the_run_that_failed():
    story = begun(node("bad"), node("b", "sleep@1", config={"duration": "{{ 1 }}s"}), onFailure="HOLD")
    for id in ("bad", "b"):
        run = story.run(id)
        error = Error(ErrorClass.PERMANENT, "BOOM", "no")
        decision = story.when(ReportFailure(run.number, run.epoch, error, 0.0, end_time=story.now))
        assert the_event("WaitStarted", decision).run == run.number
    assert len(story.execution.runs) == 2
    assert sorted(letters(story)) == [1, 2]
