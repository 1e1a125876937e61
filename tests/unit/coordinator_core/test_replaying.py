"""A journal is folded again and compared with the rows that were recorded: the first difference is named."""

import json

import pytest

from services.coordinator.core.events import Event, RunLeased, RunSucceeded
from services.coordinator.core.recorded_rows import columns_of, folded_rows, hidden_instance, value_text
from services.coordinator.core.replaying import NotReplayable, Replay
from tests.support.golden import JOURNALS, read_json, stored_journal
from tests.support.steps import done
from tests.support.story import EXECUTION_ID, Story, chain, node
from tests.unit.coordinator.test_golden_journals import definition_of


def ended():
    story = Story([node("a"), node("b")], chain("a", "b"))
    story.start()
    story.do("a", "b")
    assert story.execution.is_final
    return story


def recorded(story):
    """The rows as they were stored: JSON by name, in their order."""
    return [(name, json.loads(value_text(columns))) for name, columns in folded_rows(story.execution)]


def replayed(story, rows, journal=None):
    replay = Replay(EXECUTION_ID, story.definition)
    for seq, event in enumerate(journal or story.journal, 1):
        done(replay.take(seq, event))
    done(replay.finish())
    comparison = replay.comparison()
    for name, columns in rows:
        done(comparison.take(name, columns))
    return done(comparison.result())


def seq_of(story, kind, run):
    return next(seq for seq, each in enumerate(story.journal, 1) if isinstance(each, kind) and each.run == run)


def test_a_journal_that_adds_up_has_the_hash_that_was_recorded():
    story = ended()
    result = replayed(story, recorded(story))
    assert (result.execution_id, result.events) == (EXECUTION_ID, len(story.journal))
    assert len(result.recorded_hash) == 64
    assert result.recorded_hash == result.replayed_hash
    assert result.first_difference is None


def test_a_run_that_was_recorded_otherwise_is_named_by_the_last_event_about_it():
    story = ended()
    rows = recorded(story)
    rows[2][1]["state"], rows[1][1]["branch"] = "FAILED", "left"
    result = replayed(story, rows)
    found = result.first_difference
    assert (found.seq, found.event_type) == (seq_of(story, RunSucceeded, 1), "RunSucceeded")
    assert (found.field, found.recorded, found.replayed) == ("runs.1.branch", '"left"', '""')
    assert result.recorded_hash != result.replayed_hash


def test_a_difference_of_the_execution_is_named_by_its_last_event():
    story = ended()
    rows = recorded(story)
    rows[0][1]["state"] = "FAILED"
    found = replayed(story, rows).first_difference
    assert (found.seq, found.event_type, found.field) == (len(story.journal), "ExecutionFinished", "executions.state")


def test_a_row_that_is_missing_or_was_added_differs():
    story = ended()
    rows = recorded(story)
    missing = replayed(story, rows[:1] + rows[2:]).first_difference
    assert (missing.field, missing.recorded, missing.replayed) == ("runs.1", '"is missing"', '"is there"')
    at_the_end = replayed(story, rows[:2]).first_difference
    assert (at_the_end.field, at_the_end.recorded) == ("runs.2", '"is missing"')
    added = replayed(story, [*rows, (("runs", 9), {"state": "SUCCESS"})]).first_difference
    assert (added.field, added.recorded, added.replayed) == ("runs.9", '"is there"', '"is missing"')


def test_a_column_that_is_not_known_any_more_differs_and_one_that_was_added_since_does_not():
    story = ended()
    rows = recorded(story)
    del rows[1][1]["branch"]
    assert replayed(story, rows).first_difference is None
    rows[1][1]["colour"] = "red"
    found = replayed(story, rows).first_difference
    assert (found.field, found.recorded, found.replayed) == ("runs.1.colour", '"red"', "")


def test_an_event_that_cannot_be_folded_is_the_first_difference():
    story = ended()
    journal = list(story.journal)
    place = seq_of(story, RunLeased, 2)
    journal[place - 1].run = 7
    result = replayed(story, recorded(story), journal)
    found = result.first_difference
    assert (found.seq, found.event_type, found.field, found.recorded) == (place, "RunLeased", "", '"folded"')
    assert (result.events, result.replayed_hash) == (len(journal), "")


def test_what_is_not_in_its_place_is_no_journal():
    story = ended()
    with pytest.raises(NotReplayable, match="after event 0 comes 2"):
        done(Replay(EXECUTION_ID, story.definition).take(2, story.journal[0]))
    rows = recorded(story)
    with pytest.raises(NotReplayable, match=r"the row runs\.1 is not in its place"):
        replayed(story, [*rows, rows[1]])
    with pytest.raises(NotReplayable, match="no table 'people'"):
        replayed(story, [(("people", 1), {})])


def test_without_rows_nothing_is_compared():
    story = ended()
    result = replayed(story, [])
    assert (result.recorded_hash, result.first_difference) == ("", None)
    assert result.replayed_hash == replayed(story, recorded(story)).replayed_hash
    assert done(Replay(EXECUTION_ID, story.definition).uncompared()).replayed_hash == ""


def test_an_old_dead_letter_may_have_been_deleted():
    folder = JOURNALS / "dead_letters"
    replay = golden(folder)
    rows = [(name, columns) for name, columns in folded_rows(replay.execution) if name[0] != "dead_letters"]
    assert len(rows) < len(list(folded_rows(replay.execution)))
    comparison = replay.comparison()
    for row in rows:
        done(comparison.take(*row))
    result = done(comparison.result())
    assert (result.first_difference, result.recorded_hash) == (None, result.replayed_hash)


def golden(folder):
    journal = stored_journal(folder)
    replay = Replay(journal[0].execution_id, definition_of(folder))
    for stored in journal:
        assert isinstance(stored.event, Event)
        done(replay.take(stored.seq, stored.event))
    done(replay.finish())
    return replay


_BYTES = {"input", "output", "inputs_hash", "config_hash", "form"}


def of_golden(table, written):
    """A row of a golden journal, as it would have been recorded."""
    row = {
        name: bytes.fromhex(value) if name in _BYTES and isinstance(value, str) else value
        for name, value in written.items()
    }
    return columns_of(table, tuple(row.values()), tuple(row))


@pytest.mark.parametrize("folder", sorted(JOURNALS.iterdir()), ids=lambda folder: folder.name)
def test_a_golden_journal_replays_to_the_rows_it_gave(folder):
    written, replay = read_json(folder / "rows.json"), golden(folder)
    comparison = replay.comparison()
    done(comparison.take(("executions", 0), of_golden("executions", written["execution"])))
    for table in ("runs", "approvals"):
        for row in sorted(written.get(table, []), key=lambda row: row["number"]):
            done(comparison.take((table, row["number"]), of_golden(table, row)))
    result = done(comparison.result())
    assert result.first_difference is None
    assert result.recorded_hash == result.replayed_hash != ""


def test_the_instance_of_a_runner_is_hidden_once():
    hidden = hidden_instance("secret")
    assert hidden.startswith("sha256:")
    assert "secret" not in hidden
    assert (hidden_instance(hidden), hidden_instance("")) == (hidden, "")
