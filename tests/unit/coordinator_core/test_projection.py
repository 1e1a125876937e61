"""The rows that show an execution and its runs."""

from services.coordinator.core.commands import Discard
from services.coordinator.core.projection import (
    DEAD_LETTER_COLUMNS,
    EXECUTION_CHANGING,
    EXECUTION_COLUMNS,
    EXECUTION_REOPENED,
    RUN_CHANGING,
    RUN_COLUMNS,
    RUN_LEASE,
    RUN_RESULT,
    dead_letter_row,
    execution_change,
    execution_reopened,
    execution_row,
    is_plain_lease,
    is_plain_result,
    run_change,
    run_lease,
    run_result,
    run_row,
)
from services.coordinator.core.values import ErrorClass, OutputRef
from tests.support.story import EXECUTION_ID, Story, begun, node, started


def shown(story, id):
    return dict(zip(RUN_COLUMNS, run_row(story.execution, story.run(id)), strict=True))


def test_row_of_a_successful_run_has_its_output_and_measures():
    story = begun(node("a"))
    story.succeed("a")
    row = shown(story, "a")
    assert (row["execution_id"], row["number"]) == (EXECUTION_ID, 1)
    assert (row["node"], row["module"], row["attempt"], row["epoch"]) == ("a", "noop@1", 1, 2)
    assert (row["state"], row["output"], row["output_key"]) == ("SUCCESS", b'{"ok":true}', None)
    assert (row["start_time"], row["end_time"], row["create_time"]) == (story.now - 2, story.now - 1, story.now)
    assert (row["inputs_hash"], row["cost_tokens"], row["error_type"]) == (b"i" * 32, 3, None)


def test_row_of_a_run_has_its_error_or_where_its_output_is_kept():
    story = begun(node("a"), node("b"))
    story.fail("a", ErrorClass.TRANSIENT)
    story.succeed("b", OutputRef("key", "ff", 300_000))
    a, b = shown(story, "a"), shown(story, "b")
    assert (a["state"], a["error_class"], a["error_type"]) == ("FAILED", "TRANSIENT", "BOOM")
    assert len(a["error_fingerprint"]) == 16
    assert a["retry_time"] == story.now + 1_000_000
    assert (b["output"], b["output_key"], b["output_sha256"], b["output_bytes"]) == (None, "key", "ff", 300_000)


def shown_execution(story):
    return dict(zip(EXECUTION_COLUMNS, execution_row(story.execution), strict=True))


def test_row_of_an_execution_follows_it_to_its_end():
    story = Story([node("a")])
    story.start(priority=4)
    row = shown_execution(story)
    assert (row["state"], row["priority"], row["last_seq"], row["epoch"]) == ("RUNNING", 4, 1, 1)
    assert (row["end_time"], row["deadline_time"], row["output"], row["error_type"]) == (None,) * 4
    story.assign()
    story.fail("a")
    row = shown_execution(story)
    assert (row["state"], row["error_node"], row["error_type"], row["runs"]) == ("FAILED", "a", "BOOM", 1)


def test_a_change_is_the_changing_part_of_a_row():
    story = started()
    story.do("a")
    change = dict(zip(RUN_CHANGING, run_change(story.execution, story.run("a")), strict=True))
    assert change.items() <= shown(story, "a").items()
    change = dict(zip(EXECUTION_CHANGING, execution_change(story.execution), strict=True))
    assert change.items() <= shown_execution(story).items()


def test_a_plain_lease_is_the_row_without_its_defaults():
    story = begun(node("a"))
    run = story.run("a")
    assert is_plain_lease(run)
    whole = shown(story, "a")
    plain = dict(zip(RUN_LEASE, run_lease(story.execution, run), strict=True))
    assert plain.items() <= whole.items()
    left = {column: value for column, value in whole.items() if column not in plain}
    assert left.pop("state") == "LEASED"
    assert not any(left.values())
    story.fail("a", ErrorClass.TRANSIENT)
    assert not is_plain_lease(story.run("a"))


def test_a_plain_result_is_the_change_without_its_defaults():
    story = begun(node("a"), node("b"), node("c"))
    before = shown(story, "a")
    story.succeed("a")
    run = story.run("a")
    assert is_plain_result(run)
    result = dict(zip(RUN_RESULT, run_result(story.execution, run), strict=True))
    assert {**before, **result} == shown(story, "a")
    story.succeed("b", OutputRef("key", "ff", 300_000))
    story.fail("c", ErrorClass.TRANSIENT)
    assert not is_plain_result(story.run("b"))
    assert not is_plain_result(story.run("c"))


def test_row_of_a_reopened_execution_has_its_new_deadline_and_no_end():
    story = begun(timeout="10s")
    story.fail("a")
    story.later(60)
    story.retry()
    changed = dict(zip(EXECUTION_REOPENED, execution_reopened(story.execution), strict=True))
    assert (changed["state"], changed["end_time"], changed["error_type"]) == ("RUNNING", None, None)
    assert changed["deadline_time"] == story.now + 10_000_000 == shown_execution(story)["deadline_time"]


def test_row_of_a_dead_letter_has_its_error_and_what_a_person_decided():
    story = begun()
    story.fail("a")
    story.give(Discard, 1, "not needed")
    row = dict(zip(DEAD_LETTER_COLUMNS, dead_letter_row(story.execution, story.execution.dead_letters[1]), strict=True))
    assert (row["execution_id"], row["number"], row["workspace"], row["node"]) == (EXECUTION_ID, 1, "default", "a")
    assert (row["reason"], row["error_type"], row["attempts"]) == ("PERMANENT_ERROR", "BOOM", 1)
    assert (row["quarantine_time"], row["resolve_time"]) == (story.now, story.now)
    assert (row["resolution"], row["reviewer"], row["notes"]) == ("DISCARDED", "ann", "not needed")
