"""A snapshot and the events after it add up to what all events add up to."""

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from deploy.audit.states import differences
from services.coordinator.app.ports import Snapshot, SnapshotDamaged
from services.coordinator.core.fold import apply
from services.coordinator.core.state import Execution
from services.coordinator.core.values import OutputRef, Value
from services.coordinator.store import snapshots
from services.coordinator.store.snapshots import JournalSnapshotLog, restored, whole
from services.coordinator.store.state_shape import In, Out, form_of
from tests.support.golden import JOURNALS, stored_journal
from tests.support.snapshots import FollowedSnapshots
from tests.support.story import EXECUTION_ID, Story, node
from tests.unit.coordinator.test_golden_journals import definition_of

FOLDERS = sorted(JOURNALS.iterdir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_snapshot_after_each_event_of_a_stored_journal_has_the_whole_state(folder):
    journal = stored_journal(folder)
    execution = Execution(journal[0].execution_id, definition_of(folder))
    followed = FollowedSnapshots(execution)
    for stored in journal:
        event: Any = stored.event
        apply(execution, event)
        followed.appended(execution, [event])
    assert len(followed.records) == len(journal)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("objects_max", [1, 3])
def test_a_snapshot_in_several_records_has_the_whole_state(folder, objects_max, monkeypatch):
    """Between them, the execution goes on, and holders die before they have written the last one."""
    monkeypatch.setattr(snapshots, "OBJECTS_MAX", objects_max)
    journal = stored_journal(folder)
    definition = definition_of(folder)
    execution = Execution(journal[0].execution_id, definition)
    log = JournalSnapshotLog(execution, 2)
    records: list[Snapshot] = []
    compared = 0
    for place, stored in enumerate(journal, 1):
        event: Any = stored.event
        apply(execution, event)
        log.note(execution, [event])
        if record := log.due(execution):
            records.append(record)
            if record.is_whole:
                assert differences(execution, restored(execution.execution_id, definition, records)) == []
                compared += 1
        if place % 11 == 0:
            execution, log = taken_over(execution.execution_id, definition, records, journal[:place])
    assert compared


def taken_over(execution_id, definition, records, journal):
    """From what is stored."""
    found = whole(records)
    if not found:
        execution = Execution(execution_id, definition)
        for stored in journal:
            apply(execution, stored.event)
        return execution, JournalSnapshotLog(execution, 2)
    execution = restored(execution_id, definition, found)
    log = JournalSnapshotLog(execution, 2, execution.seq)
    for stored in journal[execution.seq :]:
        apply(execution, stored.event)
        log.note(execution, [stored.event])
    return execution, log


def journal_of_a_loop(items):
    """A loop that has begun, and its rows."""
    story = Story([node("a", "for_each@1", config={"items": list(range(items)), "body": {"module": "noop@1"}})])
    story.start()
    while story.execution.ready and not story.execution.is_final:
        story.assign()
        story.succeed("a", item=story.execution.runs[-1].work.key.iteration)
    return story


def test_a_damaged_snapshot_is_not_read():
    story = journal_of_a_loop(3)
    records = story.snapshots.records
    for place in (0, 2, 10, len(records[-1].data) - 1):
        damaged = bytearray(records[-1].data)
        damaged[place] ^= 4
        with pytest.raises(SnapshotDamaged):
            restored(EXECUTION_ID, story.definition, [*records[:-1], records[-1]._replace(data=bytes(damaged))])


def test_a_snapshot_that_lacks_a_record_is_not_read():
    story = journal_of_a_loop(3)
    with pytest.raises(SnapshotDamaged):
        restored(EXECUTION_ID, story.definition, story.snapshots.records[-1:])


# A value of each plain type that no field has by itself.
SAMPLES = {int: 4_711, float: 0.125, str: "other", bytes: b"\x00\xff{", bool: True}
LEFT_OUT = {"execution_id"}


def test_every_plain_field_of_the_state_is_stored():
    """A field that somebody adds takes part too."""
    story = Story([node("a", "for_each@1", config={"items": [1, 2], "body": {"module": "noop@1"}})])
    story.start()
    story.assign()
    execution = story.execution
    parts = [execution, execution.runs[-1], execution.runs[-1].work, next(iter(execution.loops.values()))]
    changed = 0
    for part in parts:
        hints = get_type_hints(type(part))
        for name in {each.name for each in fields(part)} - LEFT_OUT:
            if hints[name] in SAMPLES and name not in ("seq", "number"):
                before = getattr(part, name)
                sample = SAMPLES[hints[name]]
                setattr(part, name, not before if sample is True else sample)
                (record,) = filter(None, [JournalSnapshotLog(execution, 1).due(execution)])
                again = restored(EXECUTION_ID, story.definition, [record])
                assert differences(execution, again) == [], name
                setattr(part, name, before)
                assert differences(execution, again), f"{name} was not compared"
                changed += 1
    assert changed > 40


def test_a_type_without_a_form_is_refused():
    with pytest.raises(TypeError, match="has no form"):
        form_of(complex)


def test_a_value_that_is_none_is_not_an_empty_one() -> None:
    form = form_of(Value | None)
    assert form.put is not None
    assert form.take is not None
    into = In(definition_of(min(JOURNALS.iterdir())))
    for value in (None, b"", b"{}", OutputRef("key", "sha", 3)):
        assert form.take(form.put(value, Out()), into) == value
