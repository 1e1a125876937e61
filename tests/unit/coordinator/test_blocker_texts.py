"""What people are told about each blocker, and which command inspects or mends it."""

import json
import shlex
from typing import Any

from services.coordinator.app.blocker_texts import text_of
from services.coordinator.core.commands import DecideApproval, NoteChildStarted, Pause, ReportDeferred, ReportProgress
from services.coordinator.core.explaining import blockers
from services.coordinator.core.values import ApprovalChoice, ErrorClass
from tests.support.story import EXECUTION_ID, SECOND, Story, begun, node, started


def texts(story: Story, *live: str) -> list[tuple[str, str]]:
    """Sentence and command of each blocker. `ID` stands for the execution."""
    found = [
        text_of(story.execution, each, lambda workspace, work: f"nobody in {workspace} does {work.node.module}")
        for each in blockers(story.execution, {}, live)
    ]
    return [(each.sentence, each.command.replace(EXECUTION_ID, "ID")) for each in found]


def asked(**config):
    return started(node("ask", "approval@1", config={"title": "Pay?", **config}))


def test_work_of_runners():
    story = started(node("a"), node("b"), node("c", "gpu.train@1"), node("d", retry={"attempts": 2}))
    story.assign("a", instance="i1")
    story.assign("b", instance="i2")
    story.assign("d", instance="i1")
    story.fail("d", ErrorClass.TRANSIENT)
    assert texts(story, "i1") == [
        ("a is being done by the runner runner of i1", "windlass runs ID"),
        ("the runner runner of i2 has b and is silent; when its lease ends, another one gets it", "windlass runs ID"),
        ("c is ready, and nobody in default does gpu.train@1", "windlass status"),
        ("d failed and is tried again: BOOM: d went wrong 42 times", "windlass runs ID"),
    ]


def test_a_run_that_tells_its_progress():
    story = begun()
    run = story.run("a")
    story.when(ReportProgress(run.number, run.epoch, 0.5, "half"))
    ((sentence, _),) = texts(story, "i1")
    assert sentence == "a is being done by the runner runner of i1, 50% done"


def test_items_say_how_far_their_loop_has_come():
    config = {"items": [1, 2, 3], "maxParallel": 1, "body": {"module": "noop@1"}}
    story = started(node("each", "for_each@1", config=config))
    story.assign()
    story.succeed("each", item=1)
    ((sentence, _),) = texts(story)
    assert sentence.startswith("each[2] (1 of 3 done) is ready")


def test_a_circuit_names_its_target():
    story = begun()
    story.hold_back("a", "crm", story.now + 30 * SECOND)
    assert texts(story) == [
        ("a waits, because the circuit of noop@1 crm is open", "windlass circuits get 'noop@1 crm'")
    ]


def test_a_signal_is_named_and_quoted():
    story = started(node("go", "wait_signal@1", config={"signal": "go on"}))
    assert texts(story) == [("go waits for the signal go on", "windlass signal ID 'go on'")]


def test_an_approval_says_who_may_decide_and_how_many_are_missing():
    story = asked(required=3, assignees=["ann", "role:ADMIN"])
    who = "ann, any key of role ADMIN may decide"
    command = "windlass approvals decide ID.1 APPROVE"
    assert texts(story) == [(f'ask asks "Pay?": 3 approvals are missing; {who}', command)]
    for number, caller in enumerate(("ann", "bob")):
        yes = ApprovalChoice.APPROVE
        story.when(DecideApproval(f"m{number}", caller, key_id=caller, role="ADMIN", run=1, decision=yes))
    assert texts(story) == [(f'ask asks "Pay?": 1 approval is missing, after that of ann, bob; {who}', command)]


def test_an_approval_with_a_form_names_the_members_that_are_asked_for():
    kinds = {"paid": "boolean", "cents": ["integer", "null"], "why": "string", "lines": "array"}
    properties: dict[str, Any] = {name: {"type": kind} for name, kind in kinds.items()}
    properties |= {"how": {"enum": ["cash", "card"]}, "terms": {"const": "it's ours"}, "any": True}
    ((_, command),) = texts(asked(form={"type": "object", "properties": properties}))
    *decide, option, form = shlex.split(command)
    assert (decide, option) == (["windlass", "approvals", "decide", "ID.1", "APPROVE"], "--form")
    assert json.loads(form) == {
        "paid": True, "cents": 0, "why": "…", "lines": [], "how": "cash", "terms": "it's ours", "any": "…",
    }  # fmt: skip
    ((_, command),) = texts(asked(form={"properties": properties, "required": ["why", "other"]}))
    assert json.loads(shlex.split(command)[-1]) == {"why": "…", "other": "…"}
    ((_, command),) = texts(asked(form={"properties": [1], "required": {"a": 1}, "enum": 3}))
    assert command.endswith(" APPROVE --form '{}'")


def test_an_approval_without_assignees_and_one_with_many():
    ((sentence, _),) = texts(asked())
    assert sentence == 'ask asks "Pay?": 1 approval is missing; everybody whose key may write may decide'
    ((sentence, _),) = texts(asked(assignees=[f"p{n}" for n in range(7)]))
    assert sentence.endswith("p0, p1, p2, p3, p4 and 2 more may decide")


def test_a_child_is_named_before_and_after_it_is_queued():
    story = started(node("sub", "sub_workflow@1", config={"workflow": "billing"}, timeout="60s"))
    (child,) = story.execution.children
    assert texts(story) == [
        (f"sub waits for the execution {child} of billing, which is not queued yet", f"windlass explain {child}")
    ]
    story.when(NoteChildStarted(child))
    ((sentence, _),) = texts(story)
    assert sentence == f"sub waits for the execution {child} of billing, to end"


def test_deferred_work_names_the_run_of_its_token():
    story = begun()
    run = story.run("a")
    story.when(ReportDeferred(run.number, run.epoch))
    ((sentence, command),) = texts(story)
    assert sentence.replace(EXECUTION_ID, "ID") == (
        "a was handed to somebody else by the runner runner of i1; whoever has the completion token of the run ID.1"
        " says how it ends (windlass run complete TOKEN)"
    )
    assert command == "windlass runs ID"


def test_held_work_and_a_sleep():
    story = begun(node("a"), node("nap", "sleep@1", config={"duration": "60s"}), onFailure="HOLD")
    story.fail("a")
    assert sorted(texts(story)) == [
        ("a failed for good and waits for a person: BOOM: a went wrong 42 times", "windlass dead-letters get ID.2"),
        ("nap sleeps", ""),
    ]


def test_a_pause_says_who_and_why():
    story = begun()
    story.when(Pause("m1", "ann", "lunch"))
    assert texts(story, "i1")[0] == ("ann has paused it: lunch", "windlass resume ID")
    story = begun()
    story.when(Pause("m1", "ann"))
    assert texts(story, "i1")[0][0] == "ann has paused it"
