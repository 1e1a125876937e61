"""The grant of a run."""

from typing import cast

import pytest

from services.coordinator.rpc.run_messages import run_grant
from tests.support.story import BEGIN, SECOND, Story, node
from windlass.coordinator.v1 import sessions_pb2 as pb


def granted(story: Story, now: int = BEGIN) -> pb.RunGrant:
    (effect,) = story.effects
    return cast("pb.RunGrant", run_grant(story.execution, effect, "key", now).work)


@pytest.mark.parametrize(("seconds_later", "seconds_left"), [(0, 60), (59, 1), (61, 0)])
def test_grant_says_what_is_left_of_the_executions_deadline(seconds_later: int, seconds_left: int) -> None:
    story = Story([node("a", timeout="5s")])
    story.start(deadline=BEGIN + 60 * SECOND)
    story.assign()
    grant = granted(story, BEGIN + seconds_later * SECOND)
    assert grant.HasField("execution_left")
    assert grant.execution_left.ToMicroseconds() == seconds_left * SECOND
    assert grant.timeout.ToSeconds() == 5


def test_grant_of_an_execution_without_a_deadline_says_nothing_of_one() -> None:
    story = Story([node("a", timeout="5s")])
    story.start()
    story.assign()
    assert not granted(story).HasField("execution_left")
