"""The two tables of graph.py, in another form."""

import itertools

import pytest

from services.coordinator.core.definition import Edge, JoinRule, When
from services.coordinator.core.events import Resolution
from services.coordinator.core.graph import JoinVerdict, Outcome, join_verdict, resolve

T, S, B = Resolution.TAKEN, Resolution.SKIPPED, Resolution.BLOCKED


@pytest.mark.parametrize(
    ("outcome", "success", "failure", "always", "matching", "other"),
    [
        (Outcome.SUCCEEDED, T, S, T, T, S),
        (Outcome.HANDLED, S, T, T, S, S),
        (Outcome.FAILED, B, T, T, B, B),
        (Outcome.SKIPPED, S, S, S, S, S),
        (Outcome.BLOCKED, B, S, T, B, B),
    ],
)
def test_each_kind_of_edge_resolves_by_the_outcome_of_its_source(outcome, success, failure, always, matching, other):
    def on(when, label=""):
        return resolve(outcome, Edge("target", when, label), "left")

    assert (on(When.SUCCESS), on(When.FAILURE), on(When.ALWAYS)) == (success, failure, always)
    assert (on(When.LABEL, "left"), on(When.LABEL, "right")) == (matching, other)


@pytest.mark.parametrize(("unresolved", "taken", "blocked"), list(itertools.product((0, 1), repeat=3)))
def test_join_waits_starts_skips_or_blocks_by_the_edges_that_resolved(unresolved, taken, blocked):
    if unresolved:
        assert join_verdict(JoinRule.ALL, unresolved, taken, blocked) is JoinVerdict.WAIT
        assert join_verdict(JoinRule.ANY, unresolved, taken, blocked) is (
            JoinVerdict.START if taken else JoinVerdict.WAIT
        )
    elif blocked:
        assert join_verdict(JoinRule.ALL, unresolved, taken, blocked) is JoinVerdict.BLOCK
        assert join_verdict(JoinRule.ANY, unresolved, taken, blocked) is (
            JoinVerdict.START if taken else JoinVerdict.BLOCK
        )
    else:
        expected = JoinVerdict.START if taken else JoinVerdict.SKIP
        assert {join_verdict(join, unresolved, taken, blocked) for join in JoinRule} == {expected}
