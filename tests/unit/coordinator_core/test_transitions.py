"""The executable table: every command in every situation, found breadth-first, with a ledger that must be full.

The explorer starts from a fresh execution, applies every command to every state it finds (states that look alike are
one), and checks the laws at each step. What each command may lead to in each situation is written down in `LEDGER`; an
entry that is never reached, or something reached that is not written down, fails.
"""

from collections import defaultdict

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

TRANSIENT = Error(ErrorClass.TRANSIENT, "T", "t")
PERMANENT = Error(ErrorClass.PERMANENT, "P", "p")

# Situations of an execution, in the order in which they are recognised.
NEW, FINAL, STOPPING, PAUSED, BACKOFF, RUNNING, LEASED, WAITING, READY = SITUATIONS = (
    "new", "final", "stopping", "paused", "backoff", "running", "leased", "waiting", "ready",
)  # fmt: skip
# A run may be live, and the execution is not ending.
WORKING = (PAUSED, BACKOFF, RUNNING, LEASED)
GOING_ON = (BACKOFF, RUNNING, LEASED, WAITING, READY)
OPEN = (PAUSED, *GOING_ON)

NOTHING = "nothing"


def row(*everywhere, **more):
    """A command may lead to these: the first event of the decision, a reason of refusal, or nothing. `everywhere` is
    after the start."""
    return {NEW: {"NOT_STARTED"}} | {situation: {*everywhere, *more.get(situation, ())} for situation in SITUATIONS[1:]}


def each(situations, *outcomes):
    return dict.fromkeys(situations, outcomes)


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
        final=[NOTHING, "EXECUTION_FINAL"], stopping=[NOTHING], **each(OPEN, "StopOrdered")
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


def situation(execution):
    if execution.seq == 0:
        return NEW
    if execution.is_final:
        return FINAL
    if execution.stop is not None:
        return STOPPING
    if execution.paused_by is not None:
        return PAUSED
    if execution.backoffs:
        return BACKOFF
    if execution.live:
        return RUNNING if any(run.state == "RUNNING" for run in execution.live.values()) else LEASED
    return WAITING if execution.waits else READY


def likeness(execution):
    """States with the same likeness behave alike; times and numbers of events do not count."""
    ended = [run for run in execution.runs if run.number not in execution.live]
    return (
        situation(execution),
        tuple((id, work.state, bool(work.failures)) for id, work in sorted(execution.current.items())),
        tuple((run.work.key, run.state) for run in execution.live.values()),
        (ended[-1].is_answered, ended[-1].is_late_noted) if ended else None,
    )


def concerned(execution):
    """Runs worth reporting on: those that are live, and the last one that is not."""
    ended = [run for run in execution.runs if run.number not in execution.live]
    return [*ended[-1:], *execution.live.values()]


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
    yield "cancel", Cancel()
    yield "pause", Pause(f"m{execution.seq}", "ann")
    yield "resume", Resume(f"m{execution.seq}", "ann")
    yield "retry", Retry(f"m{execution.seq}", "ann", epoch=execution.epoch + 1)
    yield "adopt", Adopt(execution.epoch + 1, "d", {"i1"})
    yield "tick", Tick(0.5)


def test_every_command_leads_in_every_situation_to_what_the_table_says():
    """Two workflows keep the state space small: runs that fail and are awaited, and a control node beside one."""
    reached: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    _explore(
        Story(
            [node("a", retry={"attempts": 2}, timeout="10s"), node("b", idempotent=True)],
            [edge("a", "b", "always")],
            timeout="100s",
        ),
        reached,
    )
    _explore(Story([node("s", "sleep@1", config={"duration": "{{ 1 }}"}), node("a", retry={"attempts": 2})]), reached)
    wanted = {(name, where, what) for name, row in LEDGER.items() for where, allowed in row.items() for what in allowed}
    found = {(name, where, what) for (name, where), whats in reached.items() for what in whats}
    assert "\n".join(map(str, sorted(found - wanted))) == "", "reached, and not in the table"
    # A repeat or a late report is possible wherever some earlier run exists; not all of those are within this depth.
    assert "\n".join(map(str, sorted(wanted - found))) == "", "in the table, and never reached"


def _explore(story, reached):
    frontier, seen = [story], set()
    while frontier:
        following = []
        for here in frontier:
            for place, (name, _) in enumerate(commands(here.execution)):
                there = here.again()
                _, command = list(commands(there.execution))[place]
                reached[name, situation(here.execution)].add(_apply(there, command, name))
                look = likeness(there.execution)
                if look not in seen:
                    seen.add(look)
                    following.append(there)
        frontier = following


def _apply(story, command, name):
    if name == "tick":
        story.now = max(story.now, story.execution.next_wake(), BEGIN)
    decision = story.when(command)
    events = decision.events
    if decision.refusal:
        return decision.refusal.reason.value
    return type(events[0]).__name__ if events else NOTHING
