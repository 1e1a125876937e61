"""The executable table: every command in every situation, found breadth-first, with a ledger that must be full.

The explorer starts from a fresh execution, applies every command to every state it finds (states that look alike are
one), and checks the laws at each step. What each command may lead to in each situation is written down in `LEDGER`; an
entry that is never reached, or something reached that is not written down, fails.
"""

from services.coordinator.core.commands import (
    Adopt,
    Assign,
    AssignedRun,
    Cancel,
    LoseRunner,
    Pause,
    Release,
    ReportFailure,
    ReportProgress,
    ReportStarted,
    ReportStopped,
    ReportSuccess,
    Resume,
    Retry,
    Start,
    Tick,
)
from services.coordinator.core.values import Error, ErrorClass, Origin, ReleaseReason
from tests.support.story import BEGIN, Story, edge, node
from tests.support.transitions import (
    BACKOFF,
    FINAL,
    GOING_ON,
    LEASED,
    NEW,
    NOTHING,
    OPEN,
    PAUSED,
    READY,
    RUNNING,
    STOPPING,
    WAITING,
    WORKING,
    assert_table_is_full,
    concerned,
    each,
    explore,
    row,
)

TRANSIENT = Error(ErrorClass.TRANSIENT, "T", "t")
PERMANENT = Error(ErrorClass.PERMANENT, "P", "p")


def report(*while_working, stopping):
    """Any report may be a repeat or late."""
    late = "LEASE_ENDED"
    return row(
        NOTHING, final=["EXECUTION_FINAL"], stopping=[late, *stopping],
        **each((WAITING, READY), late), **each(WORKING, late, *while_working),
    )  # fmt: skip


LEDGER = {
    "start": row("ALREADY_STARTED") | {NEW: {"ExecutionStarted"}},
    "assign": row(
        final=["EXECUTION_FINAL"], stopping=["EXECUTION_STOPPING"], paused=["EXECUTION_PAUSED"],
        **each(GOING_ON, "NOT_READY", "RunLeased"),
    ),
    "success": report("RunSucceeded", "ControlRendered", stopping=["RunSucceeded", "RunCancelled"]),
    "transient": report("RunFailed", stopping=["RunFailed"]),
    "permanent": report("RunFailed", stopping=["RunFailed"]),
    "started": report("RunStarted", stopping=["RunStarted"]),
    "progress": report("RunProgressed", stopping=["RunProgressed"]),
    "stopped": report("RunFailed", stopping=["RunCancelled"]),
    "drained": report("RunReleased", stopping=["RunReleased"]),
    # The coordinator itself does this. It may do it at any time, so it is never late.
    "withdrawn": row(NOTHING, **each((STOPPING, *WORKING), "RunReleased")),
    "lose": row(
        **each((FINAL, WAITING, READY), NOTHING), **each((STOPPING, RUNNING, LEASED), "RunLost"),
        **each((PAUSED, BACKOFF), NOTHING, "RunLost"),
    ),
    "cancel": row(
        final=[NOTHING, "EXECUTION_FINAL"], stopping=["CommandChangedNothing"], **each(OPEN, "StopOrdered")
    ),
    "pause": row(
        **each((FINAL, STOPPING), "EXECUTION_FINAL"), paused=["CommandChangedNothing"],
        **each(GOING_ON, "ExecutionPaused"),
    ),
    "resume": row(
        **each((FINAL, STOPPING), "EXECUTION_FINAL"), paused=["ExecutionResumed"],
        **each(GOING_ON, "EXECUTION_NOT_PAUSED"),
    ),
    "retry": row(
        "EXECUTION_NOT_FAILED", final=["ExecutionReopened"], stopping=["EXECUTION_FINAL"],
        **each((PAUSED, BACKOFF, RUNNING, LEASED, READY), "ExecutionReopened", "NODE_NOT_ENDED"),
        waiting=["ExecutionReopened"],
    ),
    "adopt": row(final=["EXECUTION_FINAL"], **each((STOPPING, *OPEN), "ExecutionAdopted")),
    "tick": row(
        final=[NOTHING], stopping=["RunCancelled"], paused=[NOTHING, "RunFailed", "StopOrdered"],
        backoff=["BackoffEnded"], waiting=["WaitEnded"],
        **each((RUNNING, LEASED), NOTHING, "RunFailed", "StopOrdered", "WaitEnded"),
        ready=[NOTHING, "StopOrdered"],
    ),
}  # fmt: skip


def commands(execution):
    yield "start", Start(1, "c", Origin("w", "f", 1, "v", create_time=BEGIN))
    for id in list(execution.definition.nodes)[:2]:
        yield "assign", Assign([AssignedRun(execution.target_of(id), "i1", "r")])
    runs = [(run.number, run.epoch) for run in concerned(execution)]
    for n, e in runs or [(1, 1)] * (execution.seq == 0):
        yield "success", ReportSuccess(n, e, b'{"duration":"60s"}')
        yield "transient", ReportFailure(n, e, TRANSIENT, 0.5)
        yield "permanent", ReportFailure(n, e, PERMANENT, 0.5)
        yield "started", ReportStarted(n, e, 5)
        yield "progress", ReportProgress(n, e, 0.5)
        yield "stopped", ReportStopped(n, e)
        yield "drained", Release(n, e, ReleaseReason.DRAINED)
        yield "withdrawn", Release(n, e, ReleaseReason.WITHDRAWN)
    yield "lose", LoseRunner("i1")
    yield "cancel", Cancel(f"m{execution.seq}#{'0' * 32}")
    yield "pause", Pause(f"m{execution.seq}", "ann")
    yield "resume", Resume(f"m{execution.seq}", "ann")
    yield "retry", Retry(f"m{execution.seq}", "ann", epoch=execution.epoch + 1)
    yield "adopt", Adopt(execution.epoch + 1, "d", {"i1"})
    yield "tick", Tick(0.5)


def test_every_command_leads_in_every_situation_to_what_the_table_says():
    """Two workflows keep the state space small: runs that fail and are awaited, and a control node beside one."""
    reached = explore(
        Story(
            [node("a", retry={"attempts": 2}, timeout="10s"), node("b", idempotent=True)],
            [edge("a", "b", "always")],
            timeout="100s",
        ),
        commands,
    )
    sleep = node("s", "sleep@1", config={"duration": "{{ 1 }}"})
    explore(Story([sleep, node("a", retry={"attempts": 2})]), commands, reached)
    assert_table_is_full(LEDGER, reached)
