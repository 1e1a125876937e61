"""The rules of jobs that give one command to many executions.

    RUNNING ──each has got the command, or refused it──► DONE
       ├──a person stops it──► STOPPED
       └──it cannot go on──► FAILED

The executions of a job have places, from 0. The counts of a tally are together the place that the job has come to, so
they are its cursor too. An api that takes a job over begins there. It gives the command once more to the few executions
behind that place which had it already, under the same message id, so these change nothing and give the first answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

# A job takes the oldest of the executions that match. Their ids are 1.6 MB in the database while it runs.
EXECUTIONS_MAX: Final = 100_000
# The jobs of one workspace that may run at once.
JOBS_MAX: Final = 3
SAMPLES_MAX: Final = 10
# No command of a piece begins later than this, because a stop is noticed after a piece.
PIECE_SECONDS: Final = 0.5
_PIECE_MAX: Final = 50
_MESSAGE_CHARACTERS_MAX: Final = 300
# These say nothing about the execution.
AWAY: Final = "DEPENDENCY_UNAVAILABLE"
_FAULTS: Final = frozenset({"INTERNAL", AWAY})
# Every imported copy refuses every command. Copies are counted, but would leave no room for samples that tell more.
_IMPORTED: Final = "EXECUTION_IMPORTED"


class BulkAction(StrEnum):
    CANCEL = "CANCEL"
    PAUSE = "PAUSE"
    RESUME = "RESUME"
    RETRY = "RETRY"


class BulkState(StrEnum):
    RUNNING = "RUNNING"
    DONE = "DONE"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


class BulkOrder(NamedTuple):
    """The order of a caller, for all executions that match."""

    # One of BulkAction, unless a newer version has other actions and took the order.
    action: str
    filter: str
    reason: str
    from_node: str
    # Canonical JSON; empty: none.
    input_overrides: bytes


class BulkAnswer(NamedTuple):
    """The answer of one execution to the command."""

    execution_id: str
    # "": it has got it.
    reason: str = ""
    message: str = ""


class Tally(NamedTuple):
    done: int
    refused: Mapping[str, int]
    failed: int
    samples: tuple[BulkAnswer, ...]

    @property
    def place(self) -> int:
        """The number of executions that the job is done with."""
        return self.done + self.failed + sum(self.refused.values())


class BulkJob(NamedTuple):
    job_id: str
    workspace: str
    # The title of the key that asked.
    caller: str
    order: BulkOrder
    # Executions that were created later do not match.
    as_of_time: datetime
    state: BulkState
    matched: int
    is_counted: bool
    is_cut: bool
    tally: Tally
    message: str
    create_time: datetime
    stop_time: datetime | None
    end_time: datetime | None
    epoch: int

    @property
    def request_id(self) -> str:
        """Each execution is given the command under this id. So one that is given it twice carries it out once."""
        return f"job:{self.job_id}"


def outcome(job: BulkJob) -> BulkState | None:
    """The state in which the job ends now. None: it goes on."""
    if job.is_counted and job.tally.place >= job.matched:
        return BulkState.DONE
    return None if job.stop_time is None else BulkState.STOPPED


def reached(answers: Sequence[BulkAnswer | None], *, is_last_try: bool) -> list[BulkAnswer]:
    """The answers up to the first execution that did not get the command (None), or could not be told because something
    was away. These are tried again, unless the first one is at its last try: then it counts as it is."""
    found: list[BulkAnswer] = []
    for answer in answers:
        is_final = answer is not None and (answer.reason != AWAY or (is_last_try and not found))
        if answer is None or not is_final:
            break
        found.append(answer)
    return found


def counted(tally: Tally, answers: Iterable[BulkAnswer]) -> Tally:
    """The tally after these answers too."""
    done, failed, refused, samples = tally.done, tally.failed, dict(tally.refused), list(tally.samples)
    for answer in answers:
        if not answer.reason:
            done += 1
            continue
        if answer.reason in _FAULTS:
            failed += 1
        else:
            refused[answer.reason] = refused.get(answer.reason, 0) + 1
        if answer.reason != _IMPORTED and len(samples) < SAMPLES_MAX:
            samples.append(answer._replace(message=answer.message[:_MESSAGE_CHARACTERS_MAX]))
    return Tally(done, refused, failed, tuple(samples))


def piece_size(per_second: float) -> int:
    """How many executions get the command before the job's progress is stored."""
    return max(1, min(_PIECE_MAX, round(per_second * PIECE_SECONDS)))


def next_turn(previous: float | None, now: float, per_second: float) -> float:
    """The time at which a workspace may give the next command, after `previous`. What it has not used is not saved."""
    return now if previous is None else max(now, previous + 1.0 / per_second)
