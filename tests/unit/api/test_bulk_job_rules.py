"""The rules of jobs that give one command to many executions."""

from datetime import UTC, datetime

import pytest

from services.api.core.bulk_jobs import (
    AWAY,
    SAMPLES_MAX,
    BulkAction,
    BulkAnswer,
    BulkJob,
    BulkOrder,
    BulkState,
    Tally,
    counted,
    next_turn,
    outcome,
    piece_size,
    reached,
)

NOW = datetime(2026, 11, 1, tzinfo=UTC)
NOTHING = Tally(0, {}, 0, ())
ORDER = BulkOrder(BulkAction.PAUSE, "state = RUNNING", "", "", b"")
JOB = BulkJob(
    *("a job", "team", "me", ORDER, NOW, BulkState.RUNNING, 3),
    is_counted=True,
    is_cut=False,
    tally=NOTHING,
    message="",
    create_time=NOW,
    stop_time=None,
    end_time=None,
    epoch=1,
)
WELL, AWAY_NOW = BulkAnswer("well"), BulkAnswer("away", AWAY, "nobody answers")
FINAL = BulkAnswer("final", "EXECUTION_FINAL", "it has ended")


def test_each_answer_is_counted_once_by_what_it_says() -> None:
    tally = counted(counted(NOTHING, [WELL, FINAL]), [FINAL, AWAY_NOW, BulkAnswer("bug", "INTERNAL", "oh"), WELL])
    assert (tally.done, tally.refused, tally.failed) == (2, {"EXECUTION_FINAL": 2}, 2)
    assert [each.execution_id for each in tally.samples] == ["final", "final", "away", "bug"]
    assert tally.place == 6


def test_samples_are_few_and_short() -> None:
    tally = counted(NOTHING, [BulkAnswer(str(n), "EXECUTION_FINAL", "x" * 10_000) for n in range(SAMPLES_MAX + 5)])
    assert tally.refused == {"EXECUTION_FINAL": SAMPLES_MAX + 5}
    assert [each.execution_id for each in tally.samples] == [str(n) for n in range(SAMPLES_MAX)]
    assert max(len(each.message) for each in tally.samples) == 300


def test_imported_copies_are_counted_and_leave_the_samples_to_others() -> None:
    copies = [BulkAnswer(str(n), "EXECUTION_IMPORTED", "a copy") for n in range(SAMPLES_MAX)]
    tally = counted(NOTHING, [*copies, FINAL])
    assert tally.refused == {"EXECUTION_IMPORTED": SAMPLES_MAX, "EXECUTION_FINAL": 1}
    assert tally.samples == (FINAL,)


@pytest.mark.parametrize(
    ("job", "state"),
    [
        (JOB, None),
        (JOB._replace(tally=Tally(2, {}, 1, ())), BulkState.DONE),
        (JOB._replace(tally=Tally(1, {"EXECUTION_FINAL": 2}, 0, ())), BulkState.DONE),
        (JOB._replace(matched=0, is_counted=False), None),
        (JOB._replace(matched=0), BulkState.DONE),
        (JOB._replace(stop_time=NOW), BulkState.STOPPED),
        (JOB._replace(stop_time=NOW, is_counted=False), BulkState.STOPPED),
        (JOB._replace(stop_time=NOW, tally=Tally(3, {}, 0, ())), BulkState.DONE),
    ],
)
def test_a_job_ends_when_all_are_told_or_when_it_is_stopped(job: BulkJob, state: BulkState | None) -> None:
    assert outcome(job) is state


@pytest.mark.parametrize(
    ("answers", "is_last_try", "found"),
    [
        ([WELL, FINAL], False, [WELL, FINAL]),
        ([WELL, AWAY_NOW, FINAL], False, [WELL]),
        ([WELL, AWAY_NOW, FINAL], True, [WELL]),
        ([AWAY_NOW, WELL], False, []),
        ([AWAY_NOW, WELL, AWAY_NOW], True, [AWAY_NOW, WELL]),
        ([None, WELL], True, []),
        ([WELL, None, WELL], False, [WELL]),
    ],
)
def test_only_what_comes_before_the_first_that_is_tried_again_counts(
    answers: list[BulkAnswer | None], is_last_try: bool, found: list[BulkAnswer]
) -> None:
    assert reached(answers, is_last_try=is_last_try) == found


@pytest.mark.parametrize(("per_second", "size"), [(0.1, 1), (10.0, 5), (100.0, 50), (10_000.0, 50)])
def test_a_piece_takes_half_a_second_and_is_never_large(per_second: float, size: int) -> None:
    assert piece_size(per_second) == size


def test_turns_are_apart_and_unused_ones_are_not_saved() -> None:
    first = next_turn(None, 5.0, 10.0)
    second = next_turn(first, 5.0, 10.0)
    assert (first, second) == (5.0, 5.1)
    assert next_turn(second, 9.0, 10.0) == 9.0


def test_the_command_for_an_execution_has_a_request_id_of_the_job() -> None:
    assert JOB.request_id == "job:a job"
