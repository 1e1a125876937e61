"""The fold: bookkeeping by key, at the cost of the edges that an event names. What it cannot apply is a bug."""

import gc
import re
import sys
from contextlib import nullcontext

import pytest

from services.coordinator.core.advance import advance
from services.coordinator.core.events import (
    NOTHING_FOLLOWS,
    Consequences,
    ExecutionFinished,
    ExecutionStarted,
    LoopStarted,
    RunLeased,
    RunSucceeded,
    StopOrdered,
    WorkBlocked,
)
from services.coordinator.core.fold import apply, fold
from services.coordinator.core.fold.timers import TIMERS_PER_LOOK
from services.coordinator.core.projection import RUN_COLUMNS, run_row
from services.coordinator.core.retry import DEFAULT_RETRY
from services.coordinator.core.state import Execution
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import BrokenInvariant, ExecutionState, FinalError, Origin, WorkKey
from tests.support.story import EXECUTION_ID, Story, begun, chain, fields, names, node


def leased(key, run, attempt=1):
    return RunLeased(
        time=1, key=key, run=run, attempt=attempt, instance_id="i", runner="r", traceparent="",
        is_idempotent=False, backstop_time=0,
    )  # fmt: skip


def succeeded(key, run):
    return RunSucceeded(
        time=2, key=key, run=run, output=b"%d" % run, branch="", start_time=0, end_time=0, inputs_hash=b"",
        config_hash=b"", cost_tokens=0, then=NOTHING_FOLLOWS,
    )  # fmt: skip


def started(*ready):
    return ExecutionStarted(
        time=1, epoch=1, holder="c", origin=Origin("w", "f", 1, "v"), grant_time=1, deadline_time=0,
        retry=DEFAULT_RETRY, then=Consequences(ready=ready),
    )  # fmt: skip


def loop_started(*items):
    """Of the node `a`, with these items."""
    return LoopStarted(
        time=1, key=WorkKey("a"), run=1, count=10_000, parallel_max=1_000, continues_on_failure=False, delay=0,
        then=Consequences(ready=items),
    )  # fmt: skip


def stop_ordered(*cancelled):
    return StopOrdered(
        time=1, outcome=ExecutionState.CANCELLED, error=FinalError("", "CANCELLED", ""), answer_by_time=2,
        message_id="", caller="", cancelled=cancelled, passed_over=(),
    )  # fmt: skip


def looping():
    body = {"module": "noop@1"}
    return Story([node("a", "for_each@1", config={"items": [], "body": body}), node("b")]).definition


def running():
    story = Story([node("a"), node("b")], chain("a", "b"))
    story.start()
    return story


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (leased(WorkKey("a"), 2), BrokenInvariant),
        (leased(WorkKey("b"), 1), KeyError),
        (leased(WorkKey("a", 0, 2), 1), KeyError),
        (WorkBlocked(time=1, key=WorkKey("b"), then=NOTHING_FOLLOWS), IndexError),
        (stop_ordered(WorkKey("b")), KeyError),
        (stop_ordered(WorkKey("a"), WorkKey("a")), BrokenInvariant),
        (
            ExecutionFinished(time=1, state=ExecutionState.SUCCESS, output=b"{}", error=None, duration=0),
            BrokenInvariant,
        ),
    ],
)
def test_an_event_that_contradicts_the_state_crashes(event, fault):
    with pytest.raises(fault):
        apply(running().execution, event)


def test_a_stop_cancels_the_work_that_it_names_and_no_other():
    """Whether work is cancelled is not decided again when the journal is folded."""
    execution = Story([node("a"), node("b")]).execution
    fold(execution, [started(WorkKey("a"), WorkKey("b")), stop_ordered(WorkKey("b"))])
    assert [(key.node, work.state.value) for key, work in execution.work.items()] == [
        ("a", "READY"),
        ("b", "CANCELLED"),
    ]


def test_work_that_is_passed_over_out_of_turn_crashes():
    execution = Execution(EXECUTION_ID, running().definition)
    apply(execution, started())
    execution.passed_over.append(execution.work_of(WorkKey("a")))
    with pytest.raises(BrokenInvariant, match="before"):
        apply(execution, WorkBlocked(time=1, key=WorkKey("b"), then=NOTHING_FOLLOWS))


def test_a_node_may_be_worked_on_many_times():
    """Each iteration and each generation has its own runs, state and output."""
    keys = [WorkKey("a", 1, 1), WorkKey("a", 2, 1), WorkKey("a", 0, 2)]
    execution = fold(
        Execution(EXECUTION_ID, looping()),
        [
            started(keys[2]),
            loop_started(*keys[:2]),
            leased(keys[1], 2),
            leased(keys[0], 3),
            succeeded(keys[0], 3),
            leased(keys[2], 4),
            succeeded(keys[2], 4),
        ],
    )
    assert [execution.work[key].state.value for key in keys] == ["SUCCEEDED", "LIVE", "SUCCEEDED"]
    assert [execution.work[key].output for key in keys] == [b"3", None, b"4"]
    assert list(execution.live) == [2]
    shown = [dict(zip(RUN_COLUMNS, run_row(execution, run), strict=True)) for run in execution.runs]
    assert [(row["node"], row["iteration"], row["generation"]) for row in shown] == [
        WorkKey("a"), keys[1], keys[0], keys[2],
    ]  # fmt: skip


def test_edges_and_templates_see_the_newest_generation():
    execution = fold(running().execution, [])
    newest = execution.work_of(WorkKey("a", 0, 2))
    assert execution.target_of("a") is newest


@pytest.mark.parametrize(
    ("done", "stuck"),
    [
        ([WorkKey("a"), WorkKey("a", 0, 2)], "1 nodes (b is the first)"),
        ([WorkKey("a"), WorkKey("b")], ""),
        ([WorkKey("a"), WorkKey("b"), WorkKey("b", 0, 2)], ""),
    ],
)
def test_an_execution_ends_when_the_newest_work_of_each_node_has_an_outcome(done, stuck):
    """However much work of a node is done."""
    events = [each for run, key in enumerate(done, 1) for each in (leased(key, run), succeeded(key, run))]
    turn = Turn(fold(Story([node("a"), node("b")]).execution, [started(*done), *events]), 3)
    with pytest.raises(BrokenInvariant, match=re.escape(stuck)) if stuck else nullcontext():
        advance(turn)
    assert names(turn) == ([] if stuck else ["ExecutionFinished"])


def test_the_output_is_rendered_anew_in_its_newest_generation():
    first, second = WorkKey("$output"), WorkKey("$output", 0, 2)
    execution = Story(output={"x": "{{ input }}"}).execution
    turn = Turn(fold(execution, [started(first), leased(first, 1), succeeded(first, 1)]), 3)
    assert execution.work_of(second).state.value == "IDLE"
    advance(turn)
    assert [fields(event, "key") for event in turn.events] == [(second,)]
    assert list(execution.ready) == [execution.work[second]]


CORE = "services/coordinator/core/"


def journal_of_a_loop(turns):
    keys = [WorkKey("a", turn) for turn in range(1, turns + 1)]
    yield started()
    yield loop_started(*keys)
    for run, key in enumerate(keys, 2):
        yield leased(key, run)
    for run, key in enumerate(keys, 2):
        yield succeeded(key, run)


def calls(turns):
    """How many functions the core calls to fold so many items of a loop."""
    definition, journal, count = looping(), list(journal_of_a_loop(turns)), 0

    def profile(frame, event, arg):
        nonlocal count
        # The garbage collector may run meanwhile, and its listeners call functions too.
        count += event in ("call", "c_call") and CORE in frame.f_code.co_filename

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        execution = fold(Execution(EXECUTION_ID, definition), journal)
    finally:
        sys.setprofile(before)
    assert (len(execution.work), len(execution.runs)) == (turns + 1, turns + 1)
    return count


def test_ten_thousand_items_of_a_loop_fold_in_linear_time():
    small, large = calls(1_000), calls(10_000)
    assert large <= 10 * small


def test_a_fresh_execution_waits_for_nothing():
    execution = Execution(EXECUTION_ID, running().definition)
    assert (execution.next_wake(), execution.state.value) == (0, "PENDING")


def test_a_timer_that_is_over_is_passed_by_among_those_that_are_due():
    story = Story([node("s", "sleep@1", config={"duration": "10s"}), node("a", timeout="30s"), node("b")])
    story.start()
    story.assign("a")
    story.succeed("a")
    story.later(60)
    assert len(story.execution.timers) == 2
    assert names(story.tick()) == ["WaitEnded", "RunSucceeded"]


def test_a_long_execution_does_not_keep_the_timers_of_runs_that_have_ended():
    keys = [WorkKey("a", turn) for turn in range(1, 5_001)]
    execution = fold(Execution(EXECUTION_ID, looping()), [started(), loop_started(*keys)])
    for run, key in enumerate(keys, 2):
        lease = leased(key, run)
        lease.backstop_time = 1_000_000
        fold(execution, [lease, succeeded(key, run)])
    assert len(execution.timers) <= TIMERS_PER_LOOK
    assert execution.next_wake() == 0


def test_the_second_failure_does_not_replace_the_first():
    story = begun(node("a"), node("b"))
    story.fail("b")
    story.fail("a")
    assert story.execution.error.node == "b"


def test_nothing_of_an_execution_that_is_let_go_waits_for_the_collector_of_garbage():
    story = Story([node("a"), node("b")], chain("a", "b"))
    story.start()
    story.do("a", "b")
    assert story.execution.is_final
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        del story
        assert not gc.collect()
    finally:
        if was_on:
            gc.enable()
