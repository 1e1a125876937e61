"""The executable table of what comes from people, children, the output store and circuits, as in test_transitions.py.

Each command is given in all states of a workflow with the node that it is about, perhaps beside one of a runner. Both
tables together have a row for every command.
"""

from collections import defaultdict
from typing import get_args

import pytest

from services.coordinator.core import commands as given
from services.coordinator.core.items import LoopConfig
from services.coordinator.core.values import ApprovalChoice, Error, ErrorClass, ExecutionState, FinalError, OutputRef
from tests.support.story import SECOND, Story, chain, node
from tests.support.transitions import assert_table_is_full, concerned, explore, likeness_with_all
from tests.unit.coordinator_core import test_transitions

PERMANENT = Error(ErrorClass.PERMANENT, "P", "p")
STORED = OutputRef("k", "0" * 64, 300_000)
BESIDE = node("z", retry={"attempts": 1})
BODY = {"module": "noop@1"}
# These bring the execution into its situations. What they lead to is in the other table.
MOVES = {"start", "assign", "success", "permanent", "lose", "cancel", "pause", "resume", "retry", "tick"}


def moves(execution):
    yield from ((name, command) for name, command in test_transitions.commands(execution) if name in MOVES)


def after_end(execution):
    return {"epoch": execution.epoch + 1, "holder": "d"}


def signals(execution):
    yield "signal", given.Signal(f"m{execution.seq}", "ann", "go", b"1")


def approvals(execution):
    run = next(iter(execution.approvals), 1)
    for key in ("k1", "k2"):
        yield "approve", given.DecideApproval(f"m{execution.seq}", "ann", key, "ADMIN", run, ApprovalChoice.APPROVE)
    yield "reject", given.DecideApproval(f"m{execution.seq}", "ann", "k3", "ADMIN", run, ApprovalChoice.REJECT)


def letters(execution):
    run = next(reversed(execution.dead_letters), 1)
    yield "requeue", given.Requeue(f"m{execution.seq}", "ann", run, **after_end(execution))
    yield "fix", given.MarkFixed(f"m{execution.seq}", "ann", run, b"1", **after_end(execution))
    yield "discard", given.Discard(f"m{execution.seq}", "ann", run, **after_end(execution))
    yield "quarantine", given.Quarantine(f"m{execution.seq}", "ann", max(1, len(execution.runs)))


def outside(execution):
    for run in concerned(execution):
        yield "defer", given.ReportDeferred(run.number, run.epoch)
    number = max(1, len(execution.runs))
    yield "complete", given.CompleteRun(f"m{execution.seq}", "", number, b"1")
    yield "fail", given.FailRun(f"m{execution.seq}", "", number, PERMANENT, 0.5)
    yield "heartbeat", given.HeartbeatRun(f"m{execution.seq}", "", number, 0.5)


def children(execution):
    known = [*execution.unstarted, *execution.children, *execution.uncancelled]
    child = known[-1] if known else "none"
    failure = FinalError("a", "X", "x")
    yield "child started", given.NoteChildStarted(child)
    yield "child refused", given.RefuseChild(child, "NOT_FOUND", "gone")
    yield "child cancel told", given.NoteChildCancelTold(child)
    yield "child succeeded", given.EndChild(child, ExecutionState.SUCCESS, b"1", None, 0.5)
    yield "child failed", given.EndChild(child, ExecutionState.FAILED, None, failure, 0.5)


def stores(execution):
    key = execution.definition.nodes["a"].key
    for work in execution.ready:
        # A holder that took the execution over would read a stored list again, before it grants an item of it.
        if work.loop is None or isinstance(work.loop.work.config, bytes):
            yield "assign item", given.Assign([given.AssignedRun(work, "i1", "r")])
    for run in concerned(execution):
        yield "rendered", given.ReportSuccess(run.number, run.epoch, b'{"items":[1]}')
        yield "stored", given.ReportSuccess(run.number, run.epoch, STORED)
    yield "start loop", given.StartLoop(key, LoopConfig({}, [b"1"]))
    yield "start no loop", given.StartLoop(key, None, "no list")
    yield "finish loop", given.FinishLoop(key, STORED)
    yield "finish no loop", given.FinishLoop(key, None)


def circuits(execution):
    key, until = execution.definition.nodes["a"].key, 2 * SECOND
    for run in concerned(execution):
        yield "report held back", given.ReportHeldBack(run.number, run.epoch, "t", until)
    yield "hold back", given.HoldBack([given.HeldWork(key, "t", until)])
    yield "let through", given.LetThrough([key])


LOOP = {"items": "{{ input.items }}", "body": BODY}
# The workflows in which each family of commands is given.
WORKFLOWS = {
    signals: [Story([node("a", "wait_signal@1", config={"signal": "go", "timeout": "60s"}), BESIDE])],
    approvals: [Story([node("a", "approval@1", config={"title": "Pay?", "required": 2, "timeout": "60s"}), BESIDE])],
    letters: [Story([node("a", retry={"attempts": 2})], onFailure=each) for each in ("CONTINUE", "HOLD")],
    outside: [Story([node("a", timeout="60s", retry={"attempts": 2})])],
    children: [Story([node("a", "sub_workflow@1", config={"workflow": "w"}), BESIDE])],
    stores: [Story([node("a", "for_each@1", config=LOOP)])],
    circuits: [Story([node("a", retry={"attempts": 2})])],
}
# For each command: what it may lead to, as in the other table, and the situations in which it may.
LEDGER = {
    signals: {
        "signal": {
            "NOT_STARTED": "new", "EXECUTION_FINAL": "final stopping",
            "SignalReceived": "paused leased waiting ready",
        },
    },
    approvals: {
        "approve": {
            "NOT_STARTED": "new", "ALREADY_RESOLVED": "final stopping ready",
            "ALREADY_DECIDED ALREADY_RESOLVED ApprovalDecided": "paused leased waiting",
        },
        "reject": {
            "NOT_STARTED": "new", "ALREADY_RESOLVED": "final stopping ready",
            "ALREADY_RESOLVED ApprovalDecided": "paused leased waiting",
        },
    },
    letters: {
        "requeue": {
            "NOT_STARTED": "new", "ALREADY_RESOLVED DEAD_LETTER_NOT_FOUND ExecutionReopened nothing": "final",
            "ALREADY_RESOLVED CommandChangedNothing DEAD_LETTER_NOT_FOUND": "stopping leased ready",
            "ALREADY_RESOLVED CommandChangedNothing DEAD_LETTER_NOT_FOUND ExecutionReopened": "paused",
            "ExecutionReopened": "waiting",
        },
        "fix": {
            "NOT_STARTED": "new", "ALREADY_RESOLVED DEAD_LETTER_NOT_FOUND ExecutionReopened nothing": "final",
            "ALREADY_RESOLVED DEAD_LETTER_NOT_FOUND": "stopping leased ready",
            "ALREADY_RESOLVED DEAD_LETTER_NOT_FOUND ExecutionReopened": "paused", "ExecutionReopened": "waiting",
        },
        "discard": {
            "NOT_STARTED": "new", "ALREADY_RESOLVED DEAD_LETTER_NOT_FOUND DeadLetterResolved nothing": "final",
            "ALREADY_RESOLVED CommandChangedNothing DEAD_LETTER_NOT_FOUND": "stopping leased ready",
            "ALREADY_RESOLVED CommandChangedNothing DEAD_LETTER_NOT_FOUND DeadLetterResolved": "paused",
            "DeadLetterResolved": "waiting",
        },
        "quarantine": {
            "NOT_STARTED": "new", "EXECUTION_FINAL": "final stopping",
            "CommandChangedNothing RUN_ENDED RUN_NOT_FOUND RunQuarantined": "paused ready",
            "RunQuarantined": "leased", "CommandChangedNothing": "waiting",
        },
    },
    outside: {
        "complete": {
            "NOT_STARTED": "new", "RUN_ENDED": "final backoff ready", "OutsideAnswered": "stopping leased waiting",
            "OutsideAnswered RUN_ENDED": "paused",
        },
        "fail": {
            "NOT_STARTED": "new", "RUN_ENDED": "final backoff ready", "OutsideAnswered": "stopping leased waiting",
            "OutsideAnswered RUN_ENDED": "paused",
        },
        "heartbeat": {
            "NOT_STARTED": "new", "RUN_ENDED": "final backoff ready", "RunProgressed": "stopping leased waiting",
            "RUN_ENDED RunProgressed": "paused",
        },
        "defer": {
            "EXECUTION_FINAL nothing": "final", "LEASE_ENDED RunCancelled nothing": "stopping",
            "LEASE_ENDED RunDeferred nothing": "paused leased", "LEASE_ENDED nothing": "backoff ready",
            "nothing": "waiting",
        },
    },
    children: {
        "child started": {
            "NOT_STARTED": "new", "nothing": "final", "ChildStarted nothing": "stopping paused leased waiting ready",
        },
        "child refused": {
            "NOT_STARTED": "new", "nothing": "final", "ChildRefused nothing": "stopping paused leased waiting ready",
        },
        "child cancel told": {
            "NOT_STARTED": "new", "nothing": "final ready",
            "ChildCancelTold nothing": "stopping paused leased waiting",
        },
        "child succeeded": {
            "NOT_STARTED": "new", "nothing": "final stopping ready", "WaitEnded nothing": "paused leased waiting",
        },
        "child failed": {
            "NOT_STARTED": "new", "nothing": "final stopping ready", "WaitEnded nothing": "paused leased waiting",
        },
    },
    stores: {
        "start loop": {"NOT_STARTED": "new", "nothing": "final stopping leased", "ItemsRead nothing": "paused ready"},
        "start no loop": {
            "NOT_STARTED": "new", "nothing": "final stopping leased", "ItemsRead nothing": "paused ready",
        },
        "finish loop": {
            "NOT_STARTED": "new", "nothing": "final stopping leased", "LoopClosed nothing": "paused ready",
        },
        "finish no loop": {
            "NOT_STARTED": "new", "nothing": "final stopping leased", "LoopClosed nothing": "paused ready",
        },
        "assign item": {"EXECUTION_PAUSED": "paused", "RunLeased": "ready"},
        "rendered": {
            "EXECUTION_FINAL nothing": "final", "LEASE_ENDED RunCancelled RunSucceeded nothing": "stopping",
            "ControlRendered LEASE_ENDED RunSucceeded nothing": "paused leased", "LEASE_ENDED nothing": "ready",
        },
        "stored": {
            "EXECUTION_FINAL nothing": "final", "LEASE_ENDED RunCancelled RunSucceeded nothing": "stopping",
            "ControlRendered LEASE_ENDED RunSucceeded nothing": "paused leased", "LEASE_ENDED nothing": "ready",
        },
    },
    circuits: {
        "hold back": {
            "NOT_STARTED": "new", "EXECUTION_STOPPING": "final stopping", "WorkHeldBack nothing": "paused ready",
            "nothing": "leased",
        },
        "let through": {
            "NOT_STARTED": "new", "nothing": "final stopping leased", "WorkLetThrough nothing": "paused ready",
        },
        "report held back": {
            "EXECUTION_FINAL nothing": "final", "LEASE_ENDED RunReleased nothing": "stopping",
            "LEASE_ENDED WorkHeldBack nothing": "paused leased", "LEASE_ENDED nothing": "ready",
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("family", LEDGER, ids=lambda family: family.__name__)
def test_each_of_them_leads_in_every_situation_to_what_the_table_says(family):
    def commands(execution):
        yield from moves(execution)
        yield from family(execution)

    reached = None
    for story in WORKFLOWS[family]:
        reached = explore(story, commands, reached, likeness_with_all)
    rows = {name: _by_situation(outcomes) for name, outcomes in LEDGER[family].items()}
    assert_table_is_full(rows, reached)


def turns(execution):
    for work in list(execution.ready):
        yield "assign turn", given.Assign([given.AssignedRun(work, "i1", "r")])
    for run in concerned(execution):
        yield "goes on", given.ReportSuccess(run.number, run.epoch, b"{}", "false")
        yield "done", given.ReportSuccess(run.number, run.epoch, b"{}", "true")


def settings(execution):
    for run in concerned(execution):
        yield "rendered", given.ReportSuccess(run.number, run.epoch, b'{"k":1}')
        yield "rendered badly", given.ReportSuccess(run.number, run.epoch, b"[1]")


def branches(execution):
    return ()


TURNS = {"until": "output.done", "maxIterations": 2, "delay": "10s", "body": BODY}
# The nodes that other nodes, runners and timers move. What happens to the node `a` is said in full: its events.
NODES = {
    turns: Story([node("a", "repeat@1", config=TURNS)]),
    settings: Story([node("a", "state.set@1", inputs={"k": "{{ input.k }}"})]),
    branches: Story([node("y", retry={"attempts": 1}), node("a", "join@1")], chain("y", "a")),
}
ANYWHERE = "final stopping paused leased ready"
LEDGER_OF_NODES = {
    turns: {
        "start": {"LoopStarted": "new", "nothing": f"waiting {ANYWHERE}"},
        "assign turn": {"nothing": "paused", "RunLeased": "ready"},
        "goes on": {
            "nothing": f"waiting {ANYWHERE}", "LateReportRejected": "stopping paused leased ready",
            "RunSucceeded": "stopping paused", "RunSucceeded+WaitStarted": "leased",
            "RunSucceeded+LoopClosed+RunFailed": "leased",
        },
        "done": {
            "nothing": f"waiting {ANYWHERE}", "LateReportRejected": "stopping paused leased ready",
            "RunSucceeded": "stopping paused", "RunSucceeded+LoopClosed+RunSucceeded": "leased",
        },
        "permanent": {
            "nothing": f"new waiting {ANYWHERE}", "LateReportRejected": "stopping paused leased ready",
            "RunFailed": "stopping paused", "RunFailed+LoopClosed+RunFailed": "leased",
        },
        "resume": {
            "nothing": f"new waiting {ANYWHERE}",
            "WaitStarted LoopClosed+RunFailed": "paused",
        },
        "cancel": {"nothing": "new final stopping", "RunCancelled": "paused leased waiting ready"},
        "retry": {"nothing": f"new waiting {ANYWHERE}", "LoopStarted": "final"},
        "tick": {
            "nothing": "new final paused leased ready", "WaitEnded+LoopContinued": "waiting",
            "RunCancelled": "stopping",
        },
    },
    settings: {
        "rendered": {
            "nothing": ANYWHERE, "LateReportRejected": "stopping paused leased ready", "RunCancelled": "stopping",
            "ControlRendered": "paused", "ControlRendered+RunSucceeded": "leased",
        },
        "rendered badly": {
            "nothing": ANYWHERE, "LateReportRejected": "stopping paused leased ready", "RunCancelled": "stopping",
            "ControlRendered": "paused", "ControlRendered+RunFailed": "leased",
        },
        "resume": {"nothing": f"new {ANYWHERE}", "RunSucceeded": "paused"},
    },
    branches: {
        "success": {"nothing": f"new {ANYWHERE}", "RunSucceeded": "leased"},
        "permanent": {"nothing": f"new {ANYWHERE}", "WorkBlocked": "paused leased"},
        "resume": {"nothing": f"new {ANYWHERE}", "RunSucceeded": "paused"},
        "retry": {"nothing": f"new {ANYWHERE}", "RunSucceeded": "final"},
    },
}  # fmt: skip


@pytest.mark.parametrize("family", LEDGER_OF_NODES, ids=lambda family: family.__name__)
def test_what_happens_to_a_control_node_in_every_situation_is_what_the_table_says(family):
    def commands(execution):
        yield from moves(execution)
        yield from family(execution)

    reached = explore(NODES[family], commands, None, likeness_with_all, "a")
    rows = {name: _by_situation(outcomes) for name, outcomes in LEDGER_OF_NODES[family].items()}
    assert_table_is_full(rows, reached)


def _by_situation(outcomes):
    found: defaultdict[str, set[str]] = defaultdict(set)
    for whats, wheres in outcomes.items():
        for where in wheres.split():
            found[where] |= {*whats.split()}
    return found


def test_no_command_is_without_a_row():
    story = Story([node("a", "for_each@1", config=LOOP)])
    story.start()
    story.assign()
    seen = {type(command) for _, command in test_transitions.commands(story.execution)}
    for family, rows in LEDGER.items():
        in_rows = [command for name, command in family(story.execution) if name in rows]
        seen |= {type(command) for command in in_rows}
    assert seen == set(get_args(given.Command))
