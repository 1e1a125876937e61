"""A journal is decided again: the present rules are given what was given then, and have to decide the same."""

import copy

import pytest

from services.coordinator.core import commands
from services.coordinator.core.events import Consequences, Event, RunSucceeded, WaitEnded, WaitOutcome
from services.coordinator.core.redeciding import Redecider
from services.coordinator.core.replaying import Replay
from services.coordinator.core.state import Execution
from services.coordinator.core.values import Error, ErrorClass, ExecutionState
from services.coordinator.store.codec import unseal
from tests.support.golden import JOURNALS
from tests.support.steps import done
from tests.support.story import EXECUTION_ID, Story, chain, node
from tests.unit.coordinator.test_golden_journals import definition_of

# These journals were written before a rule was changed: what they say, and what the present rules say.
CHANGED = {
    "deferred": ("RunFailed", "error", "TIMEOUT", "NODE_TIMEOUT"),
    "everything_well": ("RunReleased", "again_time", "0", "1800000001250000"),
    "failed": ("RunLost", "error", "POISON", "RUNNER_LOST"),
}
# The share of a golden journal that is decided anew. A retry of a person, for example, is not in the journal whole, and
# neither is the end of a child.
SHARES = {"answered": 0.7, "children": 0.5, "dead_letters": 0.5, "forked": 0.3, "held_child": 0.5, "reopened": 0.7}


def redecided(definition, appends):
    """Each append is decided by itself, because the clock of these stories stands still."""
    redecider, seq = Redecider(Execution(EXECUTION_ID, definition)), 0
    for events in appends:
        for event in events:
            seq += 1
            done(redecider.take(seq, event))
        done(redecider.finish())
    return redecider


def again(story):
    return redecided(story.definition, [[stored.event for stored in unseal(row)] for row in story.stored])


@pytest.mark.parametrize("folder", sorted(JOURNALS.iterdir()), ids=lambda folder: folder.name)
def test_a_golden_journal_is_decided_as_it_was_unless_a_rule_was_changed_since(folder):
    rows = [unseal(bytes.fromhex(row)) for row in (folder / "journal.hex").read_text().split()]
    redecider = Redecider(Execution(rows[0][0].execution_id, definition_of(folder)))
    for row in rows:
        for stored in row:
            assert isinstance(stored.event, Event)
            done(redecider.take(stored.seq, stored.event))
        done(redecider.finish())
    count = sum(map(len, rows))
    found = redecider.difference
    if folder.name in CHANGED:
        assert found is not None
        kind, field, was, now = CHANGED[folder.name]
        assert (found.event_type, found.field) == (kind, field)
        assert was in found.recorded
        assert now in found.replayed
    else:
        assert found is None
        assert redecider.redecided >= count * SHARES.get(folder.name, 0.8)


def test_another_consequence_is_named_with_its_field():
    story = Story([node("a"), node("b")], chain("a", "b"))
    story.start()
    story.do("a", "b")
    appends = [[stored.event for stored in unseal(row)] for row in story.stored]
    place, event = next(
        (place, event)
        for place, append in enumerate(appends)
        for event in append
        if isinstance(event, RunSucceeded) and event.key.node == "a"
    )
    changed = copy.copy(event)
    changed.then = Consequences()
    appends[place] = [changed if each is event else each for each in appends[place]]
    found = redecided(story.definition, appends).difference
    assert (found.event_type, found.field) == ("RunSucceeded", "then")
    assert '"b"' in found.replayed
    assert '"b"' not in found.recorded


def test_an_event_that_would_not_follow_and_one_that_was_not_recorded_are_differences():
    story = Story([node("a")])
    story.start()
    story.do("a")
    appends = [[stored.event for stored in unseal(row)] for row in story.stored]
    missing = redecided(story.definition, [*appends[:-1], appends[-1][:-1]]).difference
    assert (missing.recorded, missing.replayed) == ("", '"ExecutionFinished"')
    other = redecided(story.definition, [*appends[:-1], [*appends[-1][:-1], appends[0][0]]]).difference
    assert (other.field, other.recorded, other.replayed) == ("", '"ExecutionStarted"', '"ExecutionFinished"')


def test_a_command_that_leads_to_nothing_and_one_that_cannot_be_decided_are_differences(monkeypatch):
    story = Story([node("a"), node("b")], chain("a", "b"))
    story.start()
    story.do("a")
    appends = [[stored.event for stored in unseal(row)] for row in story.stored]
    # `a` is leased a second time.
    found = redecided(story.definition, [*appends[:2], [appends[1][0]]]).difference
    assert (found.recorded, found.replayed) == ('"RunLeased"', '"nothing"')

    def breaks(*_):
        raise ValueError("no rule")

    monkeypatch.setattr("services.coordinator.core.redeciding.handle", breaks)
    found = again(story).difference
    assert (found.seq, found.event_type, found.replayed) == (1, "ExecutionStarted", '"ValueError: no rule"')


def test_a_retry_is_decided_with_the_delay_that_came_of_chance():
    story = Story([node("a", retry={"attempts": 3, "budget": "10m"})])
    story.start()
    story.assign("a")
    story.fail("a", random=0.37)
    story.wake()
    story.do("a")
    assert story.execution.is_final
    found = again(story)
    assert (found.redecided, found.difference) == (len(story.journal), None)


def test_appends_are_told_apart_by_their_times():
    story = Story([node("a")])
    story.start()
    story.later(1)
    story.do("a")
    replay = Replay(EXECUTION_ID, story.definition)
    for seq, event in enumerate(story.journal, 1):
        done(replay.take(seq, event))
    done(replay.finish())
    result = done(replay.comparison().result())
    assert (result.redecided, result.decided_otherwise) == (len(story.journal), None)


def test_an_append_of_a_size_that_no_coordinator_writes_is_folded_and_the_next_one_is_decided(monkeypatch):
    monkeypatch.setattr("services.coordinator.core.redeciding._APPEND_MAX", 2)
    story = Story([node("a"), node("b"), node("c")])
    story.start()
    story.later(1)
    story.do("a", "b")
    story.later(1)
    story.assign("c")
    redecider = Redecider(Execution(EXECUTION_ID, story.definition))
    for seq, event in enumerate(story.journal, 1):
        done(redecider.take(seq, event))
    done(redecider.finish())
    # The start, and the lease of `c`.
    assert (redecider.redecided, redecider.difference) == (2, None)


def test_an_execution_with_more_under_way_than_a_decision_may_concern_is_folded(monkeypatch):
    monkeypatch.setattr("services.coordinator.core.redeciding._UNDER_WAY_MAX", 0)
    story = Story([node("a")])
    story.start()
    story.do("a")
    found = again(story)
    # The start and the lease. The run is under way then.
    assert (found.redecided, found.difference) == (2, None)


def test_nothing_is_decided_after_the_first_difference():
    story = Story([node("a"), node("b")], chain("a", "b"))
    story.start()
    story.do("a", "b")
    appends = [[stored.event for stored in unseal(row)] for row in story.stored]
    # `a` is leased a second time, and then once more.
    twice = redecided(story.definition, [*appends[:2], [appends[1][0]], [appends[1][0]], *appends[2:]])
    assert (twice.difference.seq, twice.redecided) == (3, 2)


def given(story, *made):
    for command in made:
        story.when(command)
    return again(story)


def test_what_comes_from_outside_is_decided_anew_as_far_as_the_journal_says_it():
    story = Story([node("a", timeout="60s"), node("b")], chain("a", "b"))
    story.start()
    story.assign("a")
    run = story.run("a")
    story.when(commands.ReportDeferred(run.number, run.epoch, instance_id="i1"))
    beat = commands.HeartbeatRun("m1", "", run.number, progress=0.5)
    fail = commands.FailRun("m2", "", run.number, Error(ErrorClass.PERMANENT, "NO", "no"), random=0.5)
    found = given(story, beat, fail)
    assert found.difference is None
    # Who has failed, and with what chance of another attempt, is not told.
    assert found.redecided < len(story.journal)


def test_a_timeout_that_is_tried_again_is_folded_because_chance_is_not_recorded():
    story = Story([node("a", timeout="1s")])
    story.start()
    story.assign("a")
    story.later(10)
    story.tick(random=0.5)
    found = again(story)
    assert found.difference is None
    assert found.redecided == len(story.journal) - 1


def test_progress_that_says_nothing_new_is_folded():
    story = Story([node("a")])
    story.start()
    story.assign("a")
    run = story.run("a")
    beat = commands.HeartbeatRun("m1", "", run.number)
    found = given(story, beat)
    assert (found.redecided, found.difference) == (len(story.journal) - 1, None)


@pytest.mark.parametrize(
    "meanwhile",
    [{"cancel": commands.Cancel("m1", "not wanted", "ann")}, {"pause": commands.Pause("m1", "ann", "later")}],
    ids=lambda meanwhile: next(iter(meanwhile)),
)
def test_what_came_while_it_was_queued_is_decided_with_its_start(meanwhile):
    story = Story([node("a")])
    story.start(**meanwhile)
    found = again(story)
    assert (found.redecided, found.difference) == (len(story.journal), None)


def test_a_cancel_that_comes_to_the_append_of_the_start_is_a_command_of_its_own():
    story = Story([node("a")])
    story.start()
    story.when(commands.Cancel("m1", "not wanted", "ann"))
    found = redecided(story.definition, [story.journal])
    assert (found.redecided, found.difference) == (len(story.journal), None)


def test_a_deadline_and_a_runner_that_does_not_stop_in_time_are_decided_by_the_clock():
    story = Story([node("a")], timeout="10s")
    story.start()
    story.assign("a")
    for seconds in (20, 20):
        story.later(seconds)
        story.tick()
    assert story.execution.is_final
    found = again(story)
    assert (found.redecided, found.difference) == (len(story.journal), None)


def test_a_child_that_ends_when_the_deadline_has_passed_is_not_taken_for_the_timer():
    """Both come to the coordinator that takes the execution over, the end of the child first."""
    story = Story([node("kid", "sub_workflow@1", config={"workflow": "billing"})], timeout="10s")
    story.start()
    (child,) = story.execution.children
    story.later(20)
    story.when(commands.EndChild(child, ExecutionState.SUCCESS, b"{}", None, 0.5))
    assert story.state == "SUCCESS"
    found = again(story)
    assert (found.redecided, found.difference) == (3, None)


def test_the_end_of_a_wait_that_no_timer_explains_is_folded():
    story = Story([node("s", "sleep@1", config={"duration": "5s"})])
    story.start()
    story.later(2)
    appends = [[stored.event for stored in unseal(row)] for row in story.stored]
    early = WaitEnded(story.now, story.work("s").key, 1, WaitOutcome.EXPIRED)
    found = redecided(story.definition, [*appends, [early]])
    assert (found.redecided, found.difference) == (len(story.journal), None)


def taken_over():
    """Four runs of three instances, of which one has begun, when another coordinator takes the execution over."""
    story = Story([node(id) for id in "abcd"], [])
    story.start()
    for id, instance in (("a", "i1"), ("b", "i2"), ("c", "i1"), ("d", "i3")):
        story.assign(id, instance=instance, is_idempotent=id == "c")
    run = story.run("a")
    story.when(commands.ReportStarted(run.number, run.epoch, 5))
    return story, len(story.journal)


def decided_in_one_append(story, since):
    """All that was decided since then came to one append."""
    appends = [*([event] for event in story.journal[:since]), story.journal[since:]]
    return redecided(story.definition, appends)


@pytest.mark.parametrize("live", [("i1", "i2", "i3"), ("i2", "i3"), ("i3",), ()], ids=len)
@pytest.mark.parametrize("then", [(), ("i3",), ("i2",), ("i2", "i3"), ("i3", "i2", "i1")], ids=len)
@pytest.mark.parametrize("has_begun_runs", [False, True], ids=["nothing begun", "begun elsewhere"])
def test_a_runner_that_is_lost_right_after_a_take_over_is_told_from_one_that_was_dead_before(
    live, then, has_begun_runs
):
    story, since = taken_over()
    story.adopt(*live)
    for instance in then:
        story.lose(instance, has_begun_runs=has_begun_runs)
    found = decided_in_one_append(story, since)
    assert (found.difference, found.redecided) == (None, len(story.journal))


def test_a_runner_of_which_only_some_runs_are_lost_right_after_a_take_over_was_not_dead_before():
    story, since = taken_over()
    story.adopt("i1", "i2", "i3")
    story.lose("i1", is_idempotent_only=True, has_begun_runs=True)
    story.succeed("b")
    story.lose("i3")
    found = decided_in_one_append(story, since)
    assert (found.difference, found.redecided) == (None, len(story.journal))


def test_work_that_is_leased_after_a_take_over_and_lost_is_not_taken_for_work_of_before():
    story, since = taken_over()
    story.adopt("i1", "i2")
    story.assign("d", instance="i2")
    story.lose("i2")
    story.lose("i1", has_begun_runs=True)
    found = decided_in_one_append(story, since)
    assert (found.difference, found.redecided) == (None, len(story.journal))


def test_two_runners_that_are_lost_in_one_append_are_lost_by_two_commands():
    story, since = taken_over()
    story.lose("i2")
    story.lose("i3", has_begun_runs=True)
    found = decided_in_one_append(story, since)
    assert (found.difference, found.redecided) == (None, len(story.journal))
