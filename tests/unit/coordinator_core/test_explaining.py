"""What an execution waits for, and where its time went."""

import pytest

from services.coordinator.core.commands import (
    DecideApproval,
    HeartbeatRun,
    NoteChildStarted,
    Pause,
    ReportDeferred,
    ReportStarted,
    Signal,
)
from services.coordinator.core.explaining import Cause, Stopwatch, behind_circuit, blockers, kept_signals
from services.coordinator.core.fold import apply
from services.coordinator.core.state import Execution
from services.coordinator.core.values import ApprovalChoice, ErrorClass
from tests.support.story import BEGIN, EXECUTION_ID, SECOND, Story, begun, chain, node, started


def watched(story: Story) -> tuple[Stopwatch, Execution]:
    """The journal of the story, followed to its present time."""
    stopwatch, execution = Stopwatch(), Execution(EXECUTION_ID, story.definition)
    for event in story.journal:
        stopwatch.before(execution, event)
        apply(execution, event)
    stopwatch.reach(execution, story.now)
    return stopwatch, execution


def spent(story: Story) -> dict[str, float]:
    """The seconds by their cause."""
    return {cause.value: span / SECOND for cause, span in watched(story)[0].spent.items() if span}


def blocked_by(story: Story, *live: str) -> list[tuple[str, str, float, float]]:
    """Cause, node, and the seconds since when and until when it holds, from the beginning of the story."""
    stopwatch, execution = watched(story)
    return [
        (
            each.cause.value,
            each.work.node.id if each.work else "",
            (each.since - BEGIN) / SECOND,
            max(0, each.until - BEGIN) / SECOND,
        )
        for each in blockers(execution, stopwatch.since, live)
    ]


def test_the_time_in_the_queue_is_split_at_the_grant():
    story = Story([node("a")])
    story.later(10)
    story.start(create_time=BEGIN, grant_time=BEGIN + 7 * SECOND)
    assert spent(story) == {"QUEUED_FOR_SLOT": 7, "QUEUED_FOR_COORDINATOR": 3}


def test_the_time_in_the_queue_after_a_wake_is_split_at_the_grant_too():
    story = started(node("go", "wait_signal@1", config={"signal": "go"}))
    story.later(100)
    story.adopt(wake_time=story.now - 60 * SECOND, grant_time=story.now - 10 * SECOND)
    assert spent(story) == {"WAITING_FOR_SIGNAL": 40, "QUEUED_FOR_SLOT": 50, "QUEUED_FOR_COORDINATOR": 10}
    story.later(5)
    assert spent(story)["WAITING_FOR_SIGNAL"] == 45
    assert sum(spent(story).values()) == (story.now - BEGIN) / SECOND


def test_a_wake_that_another_clock_puts_before_or_behind_the_events_around_it_loses_no_time():
    story = started(node("go", "wait_signal@1", config={"signal": "go"}))
    story.later(100)
    story.adopt(wake_time=BEGIN - SECOND, grant_time=BEGIN - 2 * SECOND)
    assert spent(story) == {"QUEUED_FOR_COORDINATOR": 100}
    story.later(100)
    story.adopt(epoch=3, wake_time=story.now + SECOND, grant_time=story.now + 2 * SECOND)
    assert spent(story) == {"QUEUED_FOR_COORDINATOR": 100, "WAITING_FOR_SIGNAL": 100}


def test_a_take_over_of_an_execution_that_was_not_parked_is_no_time_in_the_queue():
    story = started(node("go", "wait_signal@1", config={"signal": "go"}))
    story.later(100)
    story.adopt()
    assert spent(story) == {"WAITING_FOR_SIGNAL": 100}


def test_time_belongs_to_what_the_execution_was_at():
    story = started(node("a"), node("b", "sleep@1", config={"duration": "30s"}), edges=chain("a", "b"))
    story.later(2)
    story.assign("a")
    story.later(5)
    story.fail("a", ErrorClass.TRANSIENT, random=0.5)
    story.wake()
    story.assign("a")
    story.later(1)
    story.succeed("a")
    story.wake()
    assert spent(story) == {"WAITING_FOR_RUNNER": 2, "RUNNING": 6, "BACKOFF": 0.5, "SLEEPING": 30}
    assert sum(spent(story).values()) == (story.now - BEGIN) / SECOND


def test_work_behind_an_open_circuit_waits_since_it_was_held_back_until_the_circuit_is_probed():
    story = begun()
    story.later(3)
    story.hold_back("a", "crm", story.now + 30 * SECOND)
    assert blocked_by(story) == [("CIRCUIT_OPEN", "a", 3, 33)]
    story.later(30)
    story.let_through("a")
    story.do("a")
    assert spent(story) == {"RUNNING": 3, "CIRCUIT_OPEN": 30}


@pytest.mark.parametrize(
    ("budget", "probe", "now", "until"),
    [
        ("1h", 50, 5, 50),  # the target is probed later than the journal knows
        ("1h", 0, 5, 30),  # the circuit is closed, or not known here
        ("40s", 50, 5, 40),  # the retry budget is over before the probe
        ("20s", 0, 5, 20),
        ("20s", 0, 35, 0),  # all that was known is over
        ("20s", 50, 35, 50),
        (0, 50, 5, 50),  # there is no budget
    ],
)
def test_work_behind_a_circuit_waits_until_the_probe_but_not_longer_than_its_retry_budget(budget, probe, now, until):
    story = begun(retry={"budget": budget})
    story.hold_back("a", "crm", BEGIN + 30 * SECOND)
    (blocker,) = blockers(story.execution, {}, ())
    probe_time = BEGIN + probe * SECOND if probe else 0
    dated = behind_circuit(blocker, probe_time, BEGIN + now * SECOND)
    assert max(0, dated.until - BEGIN) / SECOND == until


def test_after_the_end_no_time_is_counted():
    story = begun()
    story.later(1)
    story.succeed("a")
    story.later(100)
    assert spent(story) == {"RUNNING": 1}


def test_the_time_after_a_sleep_was_due_is_the_engines():
    story = started(node("a", "sleep@1", config={"duration": "30s"}))
    story.later(34)
    assert spent(story) == {"SLEEPING": 30, "ENGINE": 4}


def test_the_time_before_a_lost_run_is_in_doubt():
    story = begun()
    story.later(12)
    story.lose()
    story.later(3)
    assert spent(story) == {"LEASE_IN_DOUBT": 12, "WAITING_FOR_RUNNER": 3}


def test_a_lost_run_beside_others_leaves_the_time_running():
    story = started(node("a"), node("b"))
    story.assign("a", instance="i1")
    story.assign("b", instance="i2")
    story.later(12)
    story.lose("i1")
    assert spent(story) == {"RUNNING": 12}


def test_a_clock_that_goes_back_costs_nothing():
    story = begun()
    story.later(-5)
    story.succeed("a")
    assert spent(story) == {}


def test_between_waits_the_time_is_the_engines():
    story = started(node("a"))
    stopwatch, execution = watched(story)
    execution.ready.clear()
    stopwatch.reach(execution, story.now + 2 * SECOND)
    assert stopwatch.spent[Cause.ENGINE] == 2 * SECOND


def test_every_blocker_is_named_with_its_times():
    wait = node("d", "sleep@1", config={"duration": "60s"})
    story = started(node("a", timeout="10s"), node("b"), node("c"), wait)
    story.later(1)
    story.assign("a", instance="i1")
    story.assign("b", instance="i2")
    run = story.run("a")
    story.later(1)
    story.when(ReportStarted(run.number, run.epoch, story.now))
    assert blocked_by(story, "i1") == [
        ("RUNNING", "a", 2, 17),
        ("LEASE_IN_DOUBT", "b", 1, 0),
        ("WAITING_FOR_RUNNER", "c", 0, 0),
        ("SLEEPING", "d", 0, 60),
    ]


def test_a_pause_comes_first_and_counts_before_all_else():
    story = begun()
    story.later(2)
    story.when(Pause("m1", "ann", "lunch"))
    story.later(3)
    assert blocked_by(story, "i1") == [("PAUSED", "", 2, 0), ("RUNNING", "a", 0, 0)]
    assert spent(story) == {"RUNNING": 2, "PAUSED": 3}


def test_a_backoff_says_until_when():
    story = begun()
    story.later(1)
    story.fail("a", ErrorClass.TRANSIENT, random=0.5)
    assert blocked_by(story) == [("BACKOFF", "a", 1, 1.5)]


def test_a_wait_lasts_since_its_beginning_whatever_is_heard_of_it_meanwhile():
    ask = node("ask", "approval@1", config={"title": "Pay?", "required": 3})
    child = node("sub", "sub_workflow@1", config={"workflow": "billing"})
    story = started(ask, child, node("away"))
    story.assign("away")
    run = story.run("away")
    story.when(ReportDeferred(run.number, run.epoch))
    for number in range(2):
        story.later(10)
        story.when(DecideApproval(f"m{number}", "", f"k{number}", "ADMIN", 1, ApprovalChoice.APPROVE))
        story.when(HeartbeatRun(f"h{number}", "", run.number, 0.5 + number / 10, "at it"))
    story.when(NoteChildStarted(next(iter(story.execution.children))))
    assert sorted(blocked_by(story)) == [
        ("WAITING_FOR_APPROVAL", "ask", 0, 0),
        ("WAITING_FOR_CHILD", "sub", 0, 0),
        ("WAITING_FOR_COMPLETION", "away", 0, 0),
    ]


def test_signals_that_no_node_has_taken_are_counted_by_name_since_the_first_came():
    story = started(node("go", "wait_signal@1", config={"signal": "go"}), node("a"))
    for number, name in enumerate(("late", "og", "go", "late")):
        story.later(1)
        story.when(Signal(f"s{number}", "ann", name, b"{}"))
    stopwatch, execution = watched(story)
    kept = [("late", 2, BEGIN + SECOND), ("og", 1, BEGIN + 2 * SECOND)]
    assert list(kept_signals(execution, stopwatch.came)) == kept
    story.do("a")
    stopwatch, execution = watched(story)
    assert execution.is_final
    assert list(kept_signals(execution, stopwatch.came)) == kept


def test_nothing_blocks_an_execution_that_has_ended():
    story = begun()
    story.succeed("a")
    assert blocked_by(story) == []


def test_a_held_node_waits_for_the_decision_of_a_person():
    story = begun(onFailure="HOLD")
    story.later(2)
    story.fail("a")
    story.later(60)
    assert blocked_by(story) == [("WAITING_FOR_RESOLUTION", "a", 2, 0)]
    assert spent(story) == {"RUNNING": 2, "WAITING_FOR_RESOLUTION": 60}
