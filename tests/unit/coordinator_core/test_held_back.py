"""Work that waits because the circuit of its target is open: it costs no attempt, and is let through again."""

from typing import Any

import pytest

from services.coordinator.core.commands import HeldWork, HoldBack, LetThrough, Release, ReportHeldBack
from services.coordinator.core.effects import PARKING_WAIT_MIN, parking
from services.coordinator.core.retry import HAND_BACKS_MAX
from services.coordinator.core.values import ErrorClass, FailureReason, ReleaseReason, RunState, WorkKey
from tests.support.story import BEGIN, SECOND, Story, begun, chain, events, fields, names, node, started, the_event

TARGET = "http.request@1 example.org:443"
LATER = BEGIN + 30 * SECOND


def hold(story: Story, *ids: str, until: int = LATER) -> Any:
    return story.when(HoldBack([HeldWork(story.work(id).key, TARGET, until) for id in ids]))


def test_a_run_that_was_not_made_costs_no_attempt_and_its_work_waits() -> None:
    story = begun(retry={"attempts": 1})
    decision = story.hold_back("a", "crm", LATER)
    held = the_event("WorkHeldBack", decision)
    assert fields(held, "node", "run", "target", "until_time") == ("a", 1, "noop@1 crm", LATER)
    assert held.give_up_time == BEGIN + 3600 * SECOND
    assert (story.states["a"], story.state, story.ready) == ("HELD_BACK", "WAITING", [])
    assert story.run("a").state is RunState.CANCELLED
    assert (story.work("a").failures, story.work("a").may_have_run_before) == (0, False)
    assert fields(the_event("WorkLetThrough", story.let_through("a")), "node", "is_probe") == ("a", False)
    story.do("a")
    assert story.state == "SUCCESS"


def test_the_same_report_again_gets_the_first_answer() -> None:
    story = begun()
    first = story.run("a")
    story.hold_back("a")
    decision = story.when(ReportHeldBack(first.number, first.epoch, "crm"))
    assert (decision.refusal, names(decision)) == (None, [])
    assert story.when(Release(first.number, first.epoch + 1, ReleaseReason.DRAINED)).refusal is not None


def test_a_late_hand_back_is_refused() -> None:
    story = begun()
    first = story.run("a")
    story.lose()
    assert story.when(ReportHeldBack(first.number, first.epoch, "crm")).refusal is not None
    assert story.ready == ["a"]


def test_ready_work_is_held_back_without_a_run() -> None:
    story = started(node("a"), node("b"))
    assert events(hold(story, "a"), "node", "run") == [("WorkHeldBack", "a", 0)]
    assert (story.ready, story.execution.runs, story.state) == (["b"], [], "RUNNING")
    story.let_through("a")
    assert story.ready == ["b", "a"]


def test_work_that_a_runner_has_or_that_is_done_is_not_held_back() -> None:
    story = begun(node("a"), node("b"))
    story.succeed("b")
    assert names(hold(story, "a", "b")) == []


def test_waiting_work_may_wait_for_longer_and_not_for_less() -> None:
    story = started()
    hold(story, "a")
    assert names(hold(story, "a", until=LATER)) == []
    assert the_event("WorkHeldBack", hold(story, "a", until=LATER + 1)).until_time == LATER + 1
    assert parking(story.execution, BEGIN) == LATER + 1


def test_work_that_does_not_wait_is_not_let_through() -> None:
    story = begun()
    assert names(story.let_through("a")) == []
    assert names(story.when(LetThrough([WorkKey("z")]))) == []
    assert names(story.when(HoldBack([HeldWork(WorkKey("z"), TARGET, LATER)]))) == []


def test_nothing_is_held_back_while_the_execution_ends() -> None:
    story = begun(node("a"), node("b"))
    story.cancel()
    assert hold(story, "a").refusal is not None
    # The runner does not know yet.
    assert names(story.hold_back("a")) == ["RunReleased"]
    story.wake()
    assert story.state == "CANCELLED"
    assert hold(story, "a").refusal is not None


def test_a_cancel_ends_work_that_waits() -> None:
    story = started(node("a"), node("b"))
    hold(story, "a", "b")
    story.cancel()
    assert (story.state, story.states) == ("CANCELLED", {"a": "CANCELLED", "b": "CANCELLED"})


def test_a_successor_finds_what_waits_and_what_is_probed() -> None:
    story = started(node("a"), node("b"))
    hold(story, "a", "b")
    story.let_through("b", is_probe=True)
    again = story.again()
    again.adopt(epoch=2)
    held, passed = again.execution.held_back[WorkKey("a")], again.execution.let_through[WorkKey("b")]
    assert (held.target, held.until) == (TARGET, LATER)
    assert (passed.target, passed.is_probe) == (TARGET, True)


def test_a_probe_is_one_until_it_has_an_outcome() -> None:
    story = started()
    hold(story, "a")
    story.let_through("a", is_probe=True)
    passed = story.execution.let_through[WorkKey("a")]
    story.assign()
    story.lose()
    assert passed.is_probe
    story.assign()
    story.fail("a", ErrorClass.TRANSIENT)
    assert not passed.is_probe
    assert passed.target == TARGET


def test_work_that_is_held_back_again_is_no_probe() -> None:
    story = started()
    hold(story, "a")
    story.let_through("a", is_probe=True)
    hold(story, "a", until=LATER + 1)
    assert story.execution.let_through == {}
    story.let_through("a")
    assert not story.execution.let_through[WorkKey("a")].is_probe


def test_when_the_retry_budget_is_over_the_work_fails_for_its_circuit() -> None:
    story = started(node("a", retry={"budget": "100s"}), node("b"), edges=chain("a", "b"))
    story.later(5)
    hold(story, "a")
    story.let_through("a")
    story.later(10)
    hold(story, "a", until=LATER + SECOND)
    assert story.execution.next_wake() == BEGIN + 105 * SECOND
    failed = the_event("RunFailed", story.wake())
    assert failed.reason is FailureReason.CIRCUIT_BREAKER
    assert (failed.error.error_class, failed.error.type) == (ErrorClass.CIRCUIT_OPEN, "CIRCUIT_OPEN")
    assert TARGET in failed.error.message
    assert not failed.is_charged
    assert (story.state, story.states) == ("FAILED", {"a": "FAILED", "b": "BLOCKED"})


def test_without_a_retry_budget_the_work_waits_as_long_as_it_takes() -> None:
    story = started(node("a", retry={"budget": "0s"}))
    assert the_event("WorkHeldBack", hold(story, "a")).give_up_time == 0
    assert story.execution.next_wake() == 0


def test_work_that_waits_elsewhere_is_untouched_by_a_failure() -> None:
    story = started(node("a"), node("b", retry={"attempts": 1}))
    hold(story, "a")
    story.assign("b")
    story.fail("b")
    assert list(story.execution.held_back) == [WorkKey("a")]


def test_an_execution_that_only_waits_for_circuits_is_parked_until_it_looks_again() -> None:
    story = started(node("a"), node("b"))
    hold(story, "a")
    assert parking(story.execution, BEGIN) is None
    hold(story, "b", until=LATER + SECOND)
    assert parking(story.execution, BEGIN) == LATER
    assert parking(story.execution, LATER - PARKING_WAIT_MIN) is None


def test_it_wakes_for_a_timer_that_is_due_before() -> None:
    story = started(node("a"), node("s", "sleep@1", config={"duration": "20s"}))
    hold(story, "a")
    assert parking(story.execution, BEGIN) == BEGIN + 20 * SECOND


def test_it_stays_while_nobody_knows_when_the_circuit_lets_it_through() -> None:
    story = begun()
    story.hold_back("a")
    assert parking(story.execution, BEGIN) is None


def test_while_it_is_paused_it_looks_at_no_circuit_and_its_retry_budget_does_not_end_it() -> None:
    story = started(node("a", retry={"budget": "100s"}))
    hold(story, "a")
    story.pause()
    assert parking(story.execution, LATER) == 0
    story.later(200)
    assert names(story.tick()) == []
    story.resume()
    assert the_event("RunFailed", story.tick()).reason is FailureReason.CIRCUIT_BREAKER


def test_nothing_is_remembered_of_work_that_is_over() -> None:
    story = started(node("a"), node("b", retry={"attempts": 1}), node("c"))
    hold(story, "a", "b")
    story.let_through("a", "b")
    story.do("a")
    story.assign("b")
    story.fail("b")
    assert story.execution.let_through == {}
    story.do("c")


@pytest.mark.parametrize("is_rendering", [True, False])
def test_a_run_that_calls_nothing_is_only_handed_back(is_rendering: bool) -> None:
    nap = node("a", "sleep@1", config={"duration": "{{ input.n }}"})
    story = started(node("a", inputs={"n": "{{ input.n }}"}) if is_rendering else nap)
    story.assign(is_rendering=is_rendering)
    assert names(story.hold_back("a")) == ["RunReleased"]
    assert story.ready == ["a"]


def test_a_runner_that_reports_open_circuits_without_end_ends_the_work() -> None:
    story = begun(retry={"attempts": 1})
    for _ in range(HAND_BACKS_MAX):
        story.hold_back("a")
        story.let_through("a")
        story.assign()
    assert the_event("RunFailed", story.hold_back("a")).error.type == "HANDED_BACK"


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://Example.org/a?b=c", TARGET),
        ("http://user:word@example.org/", "http.request@1 example.org:80"),
        ("http://[::1]:8080/", "http.request@1 [::1]:8080"),
        ("https://{{ input.host }}/", ""),
        ("https://example.org:99999/", ""),
        ("mailto:ann@example.org", ""),
    ],
)
def test_the_definition_says_what_a_request_calls_unless_a_template_does(url: str, target: str) -> None:
    story = Story([node("a", "http.request@1", config={"url": url})])
    assert story.definition.nodes["a"].target == target
    assert Story([node("a", "x.y@1", config={"url": url})]).definition.nodes["a"].target == ""
