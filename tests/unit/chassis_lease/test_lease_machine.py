"""The rules of both sides against each other, in stories that hypothesis tells."""

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.lease_world import LeaseWorld


def test_both_sides_keep_their_promises() -> None:
    run_state_machine_as_test(LeaseWorld, settings=settings(max_examples=150, stateful_step_count=100, deadline=None))
    assert LeaseWorld.begun_in_all > 50, "stories in which nothing starts prove nothing"
    assert LeaseWorld.done_in_all > 50
