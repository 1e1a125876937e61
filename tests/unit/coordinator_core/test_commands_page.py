"""docs/commands.md says what each command of a person does in each state. The core is asked the same.

What becomes of a command to a queued execution is decided by api, and compared in tests/e2e/test_commands_page.py.
"""

from typing import Any, get_args

import pytest

from services.coordinator.core.commands import (
    Cancel,
    Command,
    CompleteRun,
    DecideApproval,
    Discard,
    FailRun,
    HeartbeatRun,
    MarkFixed,
    Pause,
    PersonCommand,
    Quarantine,
    Requeue,
    Resume,
    Retry,
    Signal,
    Start,
)
from services.coordinator.core.events import CommandChangedNothing
from services.coordinator.core.forking import finished_work
from services.coordinator.core.handlers import handle
from services.coordinator.core.state import Execution
from services.coordinator.core.values import ApprovalChoice, Error, ErrorClass, ExecutionState, Origin
from tests.support.commands_page import QUEUED, table
from tests.support.story import EXECUTION_ID, Story, chain, edge, node

LEASE: Any = {"epoch": 9, "holder": "c9"}
# The runs of every story: a node that asks people, one that fails for good, and one that is under way while it is
# RUNNING or PAUSED.
ASK, BAD, OTHER = 1, 2, 3
COMMANDS: dict[str, Any] = {
    "cancel": lambda: Cancel("m", "enough", "ann"),
    "pause": lambda: Pause("m", "ann"),
    "resume": lambda: Resume("m", "ann"),
    "signal": lambda: Signal("m", "ann", "go", b"{}"),
    "decide": lambda: DecideApproval("m", "ann", "k2", "ADMIN", ASK, ApprovalChoice.REJECT),
    "complete": lambda: CompleteRun("m", "", OTHER, b"{}"),
    "fail": lambda: FailRun("m", "", OTHER, Error(ErrorClass.PERMANENT, "X", "x"), 0.5),
    "heartbeat": lambda: HeartbeatRun("m", "", OTHER, 0.5),
    "quarantine": lambda: Quarantine("m", "ann", OTHER),
    "retry": lambda: Retry("m", "ann", **LEASE),
    "requeue": lambda: Requeue("m", "ann", BAD, **LEASE),
    "fix": lambda: MarkFixed("m", "ann", BAD, b"{}", **LEASE),
    "discard": lambda: Discard("m", "ann", BAD, **LEASE),
    # It is given to the origin, and starts another execution.
    "fork": lambda: Start(1, "c9", Origin("w", "story", 1, "v", origin_execution_id=EXECUTION_ID, origin_seq=1)),
}


def running() -> Story:
    edges = [edge("other", "nap"), *chain("bad", "after")]
    nap = node("nap", "sleep@1", config={"duration": "60s"})
    ask = node("ask", "approval@1", config={"title": "Pay?"})
    story = Story([ask, node("bad", retry={"attempts": 1}), node("other"), nap, node("after")], edges, timeout="600s")
    story.start()
    story.assign("bad", "other")
    story.fail("bad")
    assert [story.run(id).number for id in ("ask", "bad", "other")] == [ASK, BAD, OTHER]
    return story


def waiting() -> Story:
    story = running()
    story.succeed("other")
    return story


def paused() -> Story:
    story = running()
    story.pause("before")
    return story


def success() -> Story:
    story = waiting()
    story.give(Requeue, BAD, message_id="before")
    story.do("bad", "after")
    return at_its_end(story)


def failed() -> Story:
    return at_its_end(waiting())


def at_its_end(story: Story) -> Story:
    story.when(DecideApproval("before2", "ann", "k1", "ADMIN", ASK, ApprovalChoice.APPROVE))
    story.wake()
    return story


def cancelled() -> Story:
    story = running()
    story.cancel()
    story.wake()
    return story


def timeout() -> Story:
    story = running()
    story.wake()
    story.wake()
    return story


STATES = {
    "RUNNING": running,
    "WAITING": waiting,
    "PAUSED": paused,
    "SUCCESS": success,
    "FAILED": failed,
    "CANCELLED": cancelled,
    "TIMEOUT": timeout,
}


def answer(story: Story, command: str) -> str:
    made = COMMANDS[command]()
    if isinstance(made, Start):
        made.finished = finished_work(story.execution, "")
        decision: Any = handle(Execution(EXECUTION_ID, story.definition), made, story.now)
    else:
        decision = story.when(made)
    if decision.refusal is not None:
        return f"`{decision.refusal.reason.value}`"
    changes = [event for event in decision.events if not isinstance(event, CommandChangedNothing)]
    return "done" if changes else "OK, no change"


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_cell_of_the_page_is_what_the_core_says(command: str, state: str) -> None:
    story = STATES[state]()
    assert story.state == state
    assert table()[command][state] == answer(story, command)


def test_the_page_has_every_command_of_people_and_every_state() -> None:
    rows = table()
    assert list(rows) == list(COMMANDS)
    for cells in rows.values():
        assert list(cells) == [QUEUED, *STATES] == [state.value for state in ExecutionState]
    of_people = {kind for kind in get_args(Command) if issubclass(kind, PersonCommand)}
    assert {type(make()) for make in COMMANDS.values()} == {*of_people, Cancel, Start}
