"""What a fork takes over, and when two requests ask for the same one."""

from typing import Any

import pytest

from services.api.app.starts import ForkOf, PreparedStart, StartCommand
from services.api.core.forking import taken_over_seq


@pytest.mark.parametrize(
    ("state", "from_node", "has_new_input", "seq"),
    [
        ("FAILED", "", False, 9),
        ("CANCELLED", "", False, 9),
        ("TIMEOUT", "", False, 9),
        ("RUNNING", "", False, 9),
        # Everything was done well: the fork begins at the beginning.
        ("SUCCESS", "", False, 0),
        ("SUCCESS", "b", False, 9),
        # What was done with another input does not fit, unless the caller says with which node the fork begins.
        ("FAILED", "", True, 0),
        ("FAILED", "b", True, 9),
        ("SUCCESS", "b", True, 9),
    ],
)
def test_what_is_taken_over_follows_from_what_was_asked(
    state: str, from_node: str, has_new_input: bool, seq: int
) -> None:
    assert taken_over_seq(state, 9, from_node, has_new_input=has_new_input) == seq


def prepared(fork: ForkOf | None, **more: Any) -> PreparedStart:
    command = StartCommand("w", 1, {"n": 1}, "key", {}, 3, 0, fork)._replace(**more)
    return PreparedStart(command, None, "default", "id", b"", 0, 0)  # type: ignore[arg-type] # only the command counts


def test_two_forks_are_the_same_when_the_caller_asked_for_the_same() -> None:
    fork = ForkOf("origin", "b", 0, None)
    same = prepared(fork).request_hash
    assert prepared(fork, version=2, input={"n": 2}, labels={"a": "b"}).request_hash == same, "all this is the origin's"
    others = [ForkOf("other", "b", 0, None), ForkOf("origin", "", 0, None), ForkOf("origin", "b", 1, None)]
    others += [ForkOf("origin", "b", 0, {})]
    hashes = {prepared(each).request_hash for each in (*others, None)}
    assert len(hashes) == 5
    assert same not in hashes
