"""The end of a child, on its way from its coordinator to its parent."""

from __future__ import annotations

from typing import Any

import pytest

from services.coordinator.core.commands import EndChild
from services.coordinator.core.values import ExecutionState, FinalError, OutputRef, Value
from services.coordinator.peers.children import end_command, end_message
from tests.support.story import EXECUTION_ID, Story, node
from windlass.coordinator.v1.children_pb2 import ChildOutcome
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage

PARENT_ID = "01931f3c-0000-7000-8000-000000000001"


def child(output: Value = b'{"paid":7}') -> Story:
    story = Story([node("a")], output="{{ nodes.a.output }}")
    story.start(parent_execution_id=PARENT_ID)
    story.do("a")
    story.assign("$output")
    story.succeed("$output", output)
    return story


def arrived(story: Story) -> EndChild:
    message = end_message(story.execution)
    assert message.execution_id == PARENT_ID
    command = end_command(message.child_ended)
    assert command is not None
    assert 0 <= command.random < 1
    command.random = 0.5
    return command


@pytest.mark.parametrize("output", [b'{"paid":7}', b"null", OutputRef("outputs/ab", "ab" * 32, 300_000)])
def test_the_output_arrives_as_it_is(output: Value) -> None:
    assert arrived(child(output)) == EndChild(EXECUTION_ID, ExecutionState.SUCCESS, output, None, 0.5)


def test_the_error_arrives_as_it_is() -> None:
    story = Story([node("a")])
    story.start(parent_execution_id=PARENT_ID)
    story.assign("a")
    story.fail("a")
    error = FinalError("a", "BOOM", "a went wrong 42 times")
    assert arrived(story) == EndChild(EXECUTION_ID, ExecutionState.FAILED, None, error, 0.5)


def test_an_execution_that_ends_again_says_so_again() -> None:
    """The mailbox takes a message once for each id."""
    story = child()
    first = end_message(story.execution)
    assert first.message_id == end_message(story.again().execution).message_id
    story.retry("a")
    story.do("a", "$output")
    assert end_message(story.execution).message_id != first.message_id


def test_a_child_that_is_a_dead_letter_has_failed() -> None:
    ended = ExecutionMessage.ChildEnded(child_execution_id=EXECUTION_ID)
    ended.given_up.reason, ended.given_up.message = "DEFINITION_CORRUPT", "it is damaged"
    command = end_command(ended)
    assert command is not None
    assert (command.state, command.output) == (ExecutionState.FAILED, None)
    assert command.error == FinalError("", "ADMISSION", "DEFINITION_CORRUPT: it is damaged")


@pytest.mark.parametrize("outcome", [None, ChildOutcome(), ChildOutcome(state=99)])  # type: ignore[arg-type]
def test_an_end_of_a_newer_version_stays_in_the_mailbox(outcome: Any) -> None:
    ended = ExecutionMessage.ChildEnded(child_execution_id=EXECUTION_ID)
    if outcome is not None:
        ended.outcome = outcome.SerializeToString()
    assert end_command(ended) is None
