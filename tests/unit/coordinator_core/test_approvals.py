"""approval@1: people decide, each once, and the approval is decided once."""

import json

import pytest

from services.coordinator.core.approvals import may_decide
from services.coordinator.core.commands import DecideApproval
from services.coordinator.core.decision import RefusalReason
from services.coordinator.core.events import ApprovalRequested
from services.coordinator.core.values import ApprovalChoice, ApprovalState
from tests.support.story import BEGIN, SECOND, begun, edge, names, node, started

APPROVE, REJECT = ApprovalChoice


def approval(**config):
    return node("ask", "approval@1", config={"title": "Pay?", **config})


def asked(**config):
    """An approval with a node on each branch."""
    edges = [edge("ask", "pay", "approved"), edge("ask", "refund", "rejected")]
    return started(approval(**config), node("pay"), node("refund"), edges=edges)


def decide(story, decision=APPROVE, key="k1", caller="ann", role="WORKFLOW", form=b"{}", run=1, comment=""):
    message_id = f"m{len(story.journal)}"
    return story.when(DecideApproval(message_id, caller, key, role, run, decision, form, comment))


def state_of(story):
    return story.execution.approvals[1].state


def test_an_approval_waits_for_people():
    story = asked(form={"type": "object"}, assignees=["ann", "role:ADMIN"], required=2, timeout="1h")
    (requested,) = (event for event in story.journal if isinstance(event, ApprovalRequested))
    assert (requested.title, json.loads(requested.form)) == ("Pay?", {"type": "object"})
    assert (requested.assignees, requested.required) == (("ann", "role:ADMIN"), 2)
    found = story.execution.approvals[1]
    assert (found.state, found.node, found.expire_time) == (ApprovalState.PENDING, "ask", BEGIN + 3600 * SECOND)
    assert story.state == "WAITING"


@pytest.mark.parametrize(
    ("decision", "state", "next_node"),
    [(APPROVE, ApprovalState.APPROVED, "pay"), (REJECT, ApprovalState.REJECTED, "refund")],
)
def test_one_decision_takes_its_branch(decision, state, next_node):
    story = asked()
    made = decide(story, decision, form=b'{"why":"ok"}', comment="fine")
    assert names(made)[:3] == ["ApprovalDecided", "WaitEnded", "RunSucceeded"]
    assert (state_of(story), story.ready) == (state, [next_node])
    output = json.loads(story.work("ask").output)
    assert (output["decision"], output["form"]) == (state.value, {"why": "ok"})
    (shown,) = output["decisions"]
    assert shown == {
        "caller": "ann", "decision": decision.value, "form": {"why": "ok"}, "comment": "fine",
        "time": "2027-01-15T08:00:00Z",
    }  # fmt: skip


def test_four_eyes_are_those_of_two_keys():
    story = asked(required=2)
    assert names(decide(story)) == ["ApprovalDecided"]
    assert (state_of(story), story.state) == (ApprovalState.PENDING, "WAITING")
    for decision in (APPROVE, REJECT):
        assert decide(story.again(), decision).refusal.reason is RefusalReason.ALREADY_DECIDED
    decide(story, key="k2", caller="bob")
    assert (state_of(story), story.ready) == (ApprovalState.APPROVED, ["pay"])
    assert [each["caller"] for each in json.loads(story.work("ask").output)["decisions"]] == ["ann", "bob"]


def test_one_rejection_is_enough_where_two_have_to_approve():
    story = asked(required=2)
    decide(story)
    decide(story, REJECT, key="k2")
    assert (state_of(story), story.ready) == (ApprovalState.REJECTED, ["refund"])


def test_an_approval_is_decided_once():
    story = asked()
    decide(story)
    for decision in (APPROVE, REJECT):
        assert decide(story, decision, key="k2").refusal.reason is RefusalReason.ALREADY_RESOLVED
        assert decide(story, decision).refusal.reason is RefusalReason.ALREADY_RESOLVED


def test_only_assignees_decide():
    story = asked(assignees=["ann", "role:ADMIN"])
    assert decide(story, caller="eve").refusal.reason is RefusalReason.NOT_AN_ASSIGNEE
    assert decide(story.again(), caller="eve", role="ADMIN").refusal is None
    assert decide(story, caller="ann").refusal is None


@pytest.mark.parametrize(
    ("assignees", "title", "role", "may"),
    [
        ((), "eve", "WORKFLOW", True),
        (("ann",), "ann", "WORKFLOW", True),
        (("ann",), "", "WORKFLOW", False),
        (("role:ADMIN",), "ann", "ADMIN", True),
        (("role:ADMIN",), "role:ADMIN", "WORKFLOW", False),
        (("role:ADMIN",), "ann", "WORKFLOW", False),
    ],
)
def test_a_title_that_looks_like_a_role_gives_no_right(assignees, title, role, may):
    assert may_decide(assignees, title, role) is may


@pytest.mark.parametrize(
    ("action", "ready", "state"),
    [
        ({"onTimeout": "APPROVE"}, ["pay"], "RUNNING"),
        ({"onTimeout": "REJECT"}, ["refund"], "RUNNING"),
        ({}, [], "FAILED"),
    ],
)
def test_an_approval_that_nobody_decides_ends_as_its_node_says(action, ready, state):
    story = asked(timeout="1h", **action)
    story.wake()
    assert (state_of(story), story.ready, story.state) == (ApprovalState.EXPIRED, ready, state)
    if ready:
        output = json.loads(story.work("ask").output)
        assert (output["form"], output["decisions"]) == (None, [])
    else:
        assert story.run("ask").error.type == "APPROVAL_TIMEOUT"
    assert decide(story).refusal.reason is RefusalReason.ALREADY_RESOLVED


def test_an_expired_approval_shows_the_decisions_that_were_made():
    story = asked(required=2, timeout="1h", onTimeout="REJECT")
    decide(story)
    story.wake()
    output = json.loads(story.work("ask").output)
    assert (output["decision"], [each["decision"] for each in output["decisions"]]) == ("REJECTED", ["APPROVE"])


def test_a_cancel_ends_the_approval():
    story = asked()
    story.cancel()
    assert (state_of(story), story.state) == (ApprovalState.CANCELLED, "CANCELLED")
    assert decide(story).refusal.reason is RefusalReason.ALREADY_RESOLVED


def test_a_run_that_asks_nobody_cannot_be_decided():
    story = begun(node("a"), approval())
    assert decide(story, run=2).refusal.reason is RefusalReason.APPROVAL_NOT_FOUND
    assert decide(story, run=9).refusal.reason is RefusalReason.APPROVAL_NOT_FOUND


@pytest.mark.parametrize(
    "config",
    [b"{}", b'{"title":""}', b'{"title":"t","form":7}', b'{"title":"t","assignees":"ann"}',
     b'{"title":"t","assignees":[7]}', b'{"title":"t","assignees":%s}' % json.dumps(["a"] * 51).encode(),
     b'{"title":"t","required":0}', b'{"title":"t","required":11}', b'{"title":"t","required":true}',
     b'{"title":"t","required":"2"}', b'{"title":"t","onTimeout":"WAIT"}'],
)  # fmt: skip
def test_a_rendered_config_that_makes_no_sense_fails_the_node(config):
    story = begun(approval(assignees=["{{ input.who }}"]))
    story.succeed("ask", config)
    assert (story.state, story.run("ask").error.type) == ("FAILED", "INVALID_CONFIG")
