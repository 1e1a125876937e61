"""docs/commands.md says what each command of a person does in each state. The core is asked the same."""

from pathlib import Path
from typing import Any

import pytest

from services.coordinator.core.commands import (
    Cancel,
    Discard,
    MarkFixed,
    Pause,
    Quarantine,
    Requeue,
    Resume,
    Retry,
    Signal,
)
from tests.support.story import Story, chain, edge, node

PAGE = Path(__file__).resolve().parents[3] / "docs/commands.md"
LEASE: Any = {"epoch": 9, "holder": "c9"}
# Every story has the dead letter of run 1, and, while it goes on, the live run 2.
COMMANDS: dict[str, Any] = {
    "cancel": lambda: Cancel("m", "enough", "ann"),
    "pause": lambda: Pause("m", "ann"),
    "resume": lambda: Resume("m", "ann"),
    "signal": lambda: Signal("m", "ann", "go", b"{}"),
    "retry": lambda: Retry("m", "ann", **LEASE),
    "requeue": lambda: Requeue("m", "ann", 1, **LEASE),
    "fix": lambda: MarkFixed("m", "ann", 1, b"{}", **LEASE),
    "discard": lambda: Discard("m", "ann", 1, **LEASE),
    "quarantine": lambda: Quarantine("m", "ann", 2),
}


def running() -> Story:
    edges = [edge("other", "nap"), *chain("bad", "after")]
    nap = node("nap", "sleep@1", config={"duration": "60s"})
    story = Story([node("bad", retry={"attempts": 1}), node("other"), nap, node("after")], edges, timeout="600s")
    story.start()
    story.assign("bad", "other")
    story.fail("bad")
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
    story = Story([node("bad"), node("other")])
    story.start()
    story.assign("bad", "other")
    story.fail("bad")
    story.succeed("other")
    story.give(Requeue, 1, message_id="before")
    story.do("bad")
    return story


def failed() -> Story:
    story = waiting()
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
    decision = story.when(COMMANDS[command]())
    if decision.refusal is not None:
        return f"`{decision.refusal.reason.value}`"
    return "done" if decision.events else "OK, no change"


def table() -> dict[tuple[str, str], str]:
    """The first table of the page."""
    (first,) = [part for part in PAGE.read_text().split("\n\n") if part.startswith("| command |")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in first.splitlines()]
    head, _, *body = rows
    cells = [(row[0].strip("`"), zip(head[1:], row[1:], strict=True)) for row in body]
    return {(command, state.strip("`")): cell for command, row in cells for state, cell in row}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_cell_of_the_page_is_what_the_core_says(command: str, state: str) -> None:
    story = STATES[state]()
    assert story.state == state
    assert table()[command, state] == answer(story, command)
