"""The stories of the golden journals. `python -m tests.golden.write` plays those that are not stored yet."""

from collections.abc import Callable
from typing import NamedTuple

from services.coordinator.core.commands import (
    CompleteRun,
    DecideApproval,
    Discard,
    EndChild,
    FailRun,
    FinishedWork,
    FinishLoop,
    HeartbeatRun,
    HeldWork,
    HoldBack,
    MarkFixed,
    NoteChildCancelTold,
    NoteChildStarted,
    Quarantine,
    RefuseChild,
    ReportDeferred,
    ReportProgress,
    ReportStarted,
    ReportStopped,
    ReportSuccess,
    Requeue,
    Signal,
    StartLoop,
)
from services.coordinator.core.items import LoopConfig
from services.coordinator.core.values import (
    ApprovalChoice,
    Error,
    ErrorClass,
    ExecutionState,
    FinalError,
    OutputRef,
    ReleaseReason,
    WorkKey,
)
from tests.support.story import EXECUTION_ID, Document, Story, chain, edge, node


class Scene(NamedTuple):
    document: Document
    play: Callable[[Story], None]


def _well(story: Story) -> None:
    """Everything that may happen before a good end."""
    story.start(input=b'{"wait":"7s"}', labels=(("region", "eu"), ("team", "a")), caller="ann", priority=5)
    story.assign("fetch")
    story.when(ReportStarted(1, story.run("fetch").epoch, story.now))
    story.when(ReportProgress(1, story.run("fetch").epoch, 0.4, "half way", b'{"row":7}'))
    story.fail("fetch", ErrorClass.TRANSIENT)
    story.wake()
    story.assign("fetch")
    story.lose()
    zombie = story.run("fetch")
    story.assign("fetch", instance="i2", is_idempotent=True)
    story.when(ReportSuccess(zombie.number, zombie.epoch, b'"too late"'))
    story.release("fetch", ReleaseReason.DRAINED, may_have_begun=True)
    story.adopt("i2", epoch=3)
    story.do("fetch")
    story.assign("choose")
    story.succeed("choose", branch="left")
    story.assign("left")
    story.succeed("left", OutputRef("outputs/ab/cd", "ab" * 32, 300_000))
    story.assign("nap")
    story.succeed("nap", b'{"duration":"7s"}')
    story.wake()
    story.do("$output")


def _failed(story: Story) -> None:
    story.start()
    story.assign("bad", "deadly", "saved")
    story.fail("saved")
    story.fail("bad")
    story.do("rescue")
    for number in (1, 2):
        story.lose(f"i{number}")
        story.assign("deadly", instance=f"i{number + 1}")
    story.lose("i3")
    story.do("finally")


def _lost_together(story: Story) -> None:
    story.start()
    story.assign()
    story.when(ReportStarted(1, story.run("busy").epoch, story.now))
    story.lose(has_begun_runs=True)
    story.do("busy", "fresh")


def _cancelled(story: Story) -> None:
    story.start()
    story.assign("a", "b", "d")
    story.fail("d", ErrorClass.TRANSIENT)
    story.cancel()
    run = story.run("a")
    story.when(ReportStopped(run.number, run.epoch, start_time=story.now - 5, end_time=story.now))
    story.wake()


def _out_of_time(story: Story) -> None:
    story.start()
    story.later(120)
    story.tick()


def _asleep(story: Story) -> None:
    story.start()
    story.wake()


def _rendered_elsewhere(story: Story) -> None:
    story.start(input=b'{"n":7}')
    story.assign("a", is_rendering=True)
    story.succeed("a", b'{"config":{},"inputs":{"x":7}}')
    story.assign("a", instance="i2")
    story.succeed("a")


def _compensated(story: Story) -> None:
    """Three nodes are undone: one well, one at the second attempt, and one not."""
    story.start()
    story.do("pay", "pack", "note")
    story.assign("ship")
    story.fail("ship")
    story.do("note$undo")
    story.assign("pack$undo")
    story.fail("pack$undo", ErrorClass.TRANSIENT)
    story.cancel()
    story.wake()
    story.do("pack$undo")
    story.assign("pay$undo")
    story.fail("pay$undo")


def _state_set(story: Story) -> None:
    story.start()
    story.assign("right")
    story.succeed("right", b'{"v":2}')
    story.assign()
    story.do("rescue")
    story.succeed("first")


def _for_each(story: Story) -> None:
    """Items that succeed, fail, die and are handed back; then an output that is too large to be inline."""
    story.start(input=b'{"ids":[1,2,3,4]}')
    story.assign("each")
    story.succeed("each", OutputRef("outputs/12/34", "ef" * 32, 300_000))
    members = {"maxParallel": 2, "onItemFailure": "CONTINUE"}
    story.when(StartLoop(WorkKey("each"), LoopConfig(members, [b"1", b"2", b"3", b"4"])))
    story.assign()
    story.succeed("each", b'"one"', item=1)
    story.fail("each", ErrorClass.TRANSIENT, item=2)
    story.wake()
    story.assign_works(list(story.execution.ready)[:1])
    story.lose()
    story.assign(instance="i2")
    story.adopt("i2", epoch=9)
    story.fail("each", item=2)
    story.release_run(story.run("each", 3))
    story.assign()
    story.succeed("each", OutputRef("outputs/ab/cd", "ab" * 32, 300_000), item=3)
    story.succeed("each", b'"four"', item=4)
    story.when(FinishLoop(WorkKey("each"), OutputRef("outputs/ef/01", "cd" * 32, 300_100)))
    story.assign()
    story.fail("strict", ErrorClass.TRANSIENT, item=3)
    story.fail("strict", item=1)


def _repeat(story: Story) -> None:
    story.start()
    for branch in ("false", "false", "true"):
        story.assign()
        story.succeed("poll", b'{"status":"new"}', branch, item=story.execution.loops[WorkKey("poll")].begun)
        if branch == "false":
            story.wake()
    story.do("more")
    story.assign()
    story.cancel()
    story.wake()


def _signalled(story: Story) -> None:
    story.start()
    story.when(Signal("s1", "ann", "paid", b'{"amount":7}'))
    story.when(Signal("s2", "ann", "other", b"null"))
    story.do("a")
    story.wake()
    story.when(Signal("s3", "bob", "shipped", b'"box 9"'))


def _approved(story: Story) -> None:
    story.start()
    run = story.run("pay").number
    story.when(DecideApproval("m1", "ann", "k1", "ADMIN", run, ApprovalChoice.APPROVE, b'{"why":"ok"}', "fine"))
    story.when(DecideApproval("m2", "bob", "k2", "WORKFLOW", run, ApprovalChoice.APPROVE))
    story.when(DecideApproval("m3", "bob", "k2", "WORKFLOW", story.run("ship").number, ApprovalChoice.REJECT))
    story.wake()
    story.cancel()


def _deferred(story: Story) -> None:
    story.start()
    story.assign()
    for id in ("a", "b", "c"):
        run = story.run(id)
        story.when(ReportDeferred(run.number, run.epoch, start_time=story.now, end_time=story.now, cost_tokens=5))
    story.when(HeartbeatRun("m1", "", story.run("a").number, 0.5, "half way"))
    story.when(CompleteRun("m2", "", story.run("a").number, b'{"paid":true}', "left"))
    story.when(FailRun("m3", "", story.run("b").number, Error(ErrorClass.TRANSIENT, "BOOM", "it went wrong"), 0.5))
    story.wake()
    story.assign("b")
    story.when(FailRun("m4", "", story.run("b").number, Error(ErrorClass.PERMANENT, "BOOM", "it went wrong"), 0.5))


def _set_apart(story: Story) -> None:
    """Work that no runner has: it was deferred, is to be tried again, is held back by a circuit, or is ready again."""
    story.start()
    story.assign()
    deferred = story.run("deferred")
    story.when(ReportDeferred(deferred.number, deferred.epoch, start_time=story.now, cost_tokens=5))
    story.fail("tried", ErrorClass.TRANSIENT)
    story.hold_back("held", "crm", story.now + 30_000_000)
    story.release("ready")
    for id in ("deferred", "tried", "held", "ready"):
        story.when(Quarantine(f"q-{id}", "ann", story.run(id).number, "not needed"))


def _held_child(story: Story) -> None:
    """The child of a held node is done again, and succeeds."""
    story.start()
    (child,) = story.execution.children
    story.when(NoteChildStarted(child))
    story.when(EndChild(child, ExecutionState.FAILED, None, FinalError("pay", "BOOM", "no"), 0.5))
    story.when(EndChild(child, ExecutionState.SUCCESS, b'{"paid":7}', None, 0.5))
    story.do("after")


def _woken(story: Story) -> None:
    """It was parked, and waited for a slot after a signal had woken it."""
    story.start()
    story.later(100)
    story.adopt(wake_time=story.now - 60_000_000, grant_time=story.now - 1_000_000)
    story.when(Signal("m1", "ann", "go", b"{}"))


def _paused(story: Story) -> None:
    story.start()
    story.assign("a")
    story.pause()
    story.fail("a", ErrorClass.TRANSIENT)
    story.resume("resume1")
    story.resume("resume2")
    story.wake()
    story.assign("a")
    story.pause("pause2")
    story.succeed("a")
    story.resume("resume3")
    story.wake()


def _answered(story: Story) -> None:
    """A command that is refused, and one that has nothing to change."""
    story.start()
    story.resume("resume1")
    story.pause("pause1")
    story.pause("pause2")
    story.resume("resume2")
    story.pause("pause2")
    story.do("a")


def _with_children(story: Story) -> None:
    """The first child fails, the second does the same work well, and the last is cancelled with its parent."""
    story.start(input=b'{"n":7}', parent_execution_id=EXECUTION_ID, depth=3)
    story.assign("bill")
    story.succeed("bill", b'{"config":{"workflow":"billing","version":2},"inputs":{"n":7}}')
    (first,) = story.execution.children
    story.when(NoteChildStarted(first))
    error = FinalError("charge", "CARD_DECLINED", "no money")
    story.when(EndChild(first, ExecutionState.FAILED, None, error, 0.5))
    story.wake()
    story.assign("bill")
    story.succeed("bill", b'{"config":{"workflow":"billing","version":2},"inputs":{"n":7}}')
    (second,) = story.execution.children
    story.when(NoteChildStarted(second))
    story.when(EndChild(second, ExecutionState.SUCCESS, b'{"paid":7}', None, 0.5))
    story.when(RefuseChild(next(iter(story.execution.children)), "WORKFLOW_NOT_FOUND", "there is no workflow 'mail'"))
    story.assign("busy")
    (third,) = story.execution.children
    story.cancel()
    story.when(NoteChildCancelTold(third))
    story.wake()


def _reopened(story: Story) -> None:
    story.start()
    story.assign("a", "bad")
    story.succeed("a")
    story.fail("bad")
    story.later(5)
    story.retry(bad=b'{"x":7}')
    story.do("bad", "after")
    story.retry("a", "retry2")
    story.assign("a")
    story.cancel()
    story.wake()


def _forked(story: Story) -> None:
    ref = OutputRef("outputs/ab/cd", "ab" * 32, 300_000)
    story.start(
        origin_execution_id="01931f3c-0000-7c3d-8e4f-1234567890ab",
        origin_seq=12,
        from_node="last",
        finished={
            "choose": FinishedWork(("noop@1", ""), 1, b'{"n":1}', "left", ""),
            "left": FinishedWork(("noop@1", ""), 3, ref, "", ""),
            "either": FinishedWork(("join@1", ""), 4, b"{}", "", "left"),
        },
    )
    story.do("last")


def _held_back(story: Story) -> None:
    story.start()
    story.assign("call")
    story.hold_back("call", "crm", story.now + 30_000_000)
    story.when(HoldBack([HeldWork(story.work("fetch").key, "http.request@1 example.org:443", story.now + 30_000_000)]))
    story.adopt(epoch=2)
    story.later(30)
    story.let_through("call", is_probe=True)
    story.do("call")
    story.let_through("fetch")
    story.assign("fetch")
    story.fail("fetch", ErrorClass.TRANSIENT)
    story.wake()
    story.when(HoldBack([HeldWork(story.work("fetch").key, "http.request@1 example.org:443", story.now + 60_000_000)]))
    story.wake()


def _dead_letters(story: Story) -> None:
    story.start()
    story.assign("bad", "worse", "hung")
    story.fail("bad")
    story.fail("worse")
    story.when(Quarantine("q1", "ann", story.run("hung").number, "it hangs"))
    story.give(Discard, 2, "not needed", message_id="d2")
    story.give(Requeue, 1, "smaller", b'{"n":1}', message_id="r1")
    story.assign("bad")
    story.fail("bad")
    story.give(MarkFixed, 4, b'"by hand"', "done by hand", message_id="f4")
    story.do("after")
    story.cancel()


STORIES = {
    "everything_well": Scene(
        {
            "nodes": [
                node("fetch", "http.request@1", timeout="30s", retry={"attempts": 3}),
                node("choose", "switch@1"),
                node("left"),
                node("right"),
                node("nap", "sleep@1", config={"duration": "{{ input.wait }}"}),
                node("all", "join@1"),
            ],
            "edges": [
                *chain("fetch", "choose"),
                edge("choose", "left", "left"),
                edge("choose", "right", "right"),
                *chain("left", "nap", "all"),
                *chain("right", "all"),
            ],
            "output": {"x": "{{ nodes.fetch.output }}"},
            "timeout": "1h",
        },
        _well,
    ),
    "failed": Scene(
        {
            "nodes": [node(id) for id in ("bad", "after", "finally", "deadly", "saved", "rescue")],
            "edges": [
                *chain("bad", "after"),
                edge("after", "finally", "always"),
                edge("saved", "rescue", "failure"),
                *chain("deadly", "after"),
            ],
        },
        _failed,
    ),
    "for_each": Scene(
        {
            "nodes": [
                node("each", "for_each@1", config={"items": "{{ input.ids }}", "body": {"module": "noop@1"}}),
                node("strict", "for_each@1", config={"items": ["a", "b", "c"], "body": {"module": "noop@1"}}),
                node("none", "for_each@1", config={"items": [], "body": {"module": "noop@1"}}),
            ],
            "edges": chain("none", "each", "strict"),
        },
        _for_each,
    ),
    "repeat": Scene(
        {
            "nodes": [
                node("poll", "repeat@1", config={"until": "output.x", "delay": "20s", "body": {"module": "noop@1"}}),
                node("more"),
                node("last", "repeat@1", config={"until": "output.x", "body": {"module": "noop@1"}}),
            ],
            "edges": chain("poll", "more", "last"),
        },
        _repeat,
    ),
    "lost_together": Scene({"nodes": [node("busy"), node("fresh")]}, _lost_together),
    "cancelled": Scene({"nodes": [*map(node, "abcd"), node("s", "sleep@1", config={"duration": "60s"})]}, _cancelled),
    "children": Scene(
        {
            "nodes": [
                node(
                    "bill",
                    "sub_workflow@1",
                    config={"workflow": "billing", "version": 2},
                    inputs={"n": "{{ input.n }}"},
                    retry={"attempts": 2},
                ),
                node("mail", "sub_workflow@1", config={"workflow": "mail"}),
                node("ship", "sub_workflow@1", config={"workflow": "shipping"}, timeout="1h"),
                node("busy"),
            ],
            "edges": [*chain("bill", "mail"), edge("mail", "ship", "always"), edge("mail", "busy", "always")],
        },
        _with_children,
    ),
    "out_of_time": Scene(
        {
            "nodes": [node("s", "sleep@1", config={"duration": "60s"}), node("j", "join@1"), node("rescue"), node("z")],
            "edges": [*chain("s", "j"), edge("s", "rescue", "failure"), *chain("rescue", "z")],
            "timeout": "90s",
        },
        _out_of_time,
    ),
    "join": Scene(
        {"nodes": [node("j", "join@1"), node("k", "join@1", join="ANY")], "edges": chain("j", "k")},
        lambda story: story.start(),
    ),
    "signalled": Scene(
        {
            "nodes": [
                node("a"),
                node("paid", "wait_signal@1", config={"signal": "paid"}),
                node("late", "wait_signal@1", config={"signal": "late", "timeout": "1h", "onTimeout": "CONTINUE"}),
                node("shipped", "wait_signal@1", config={"signal": "shipped"}),
            ],
            "edges": chain("a", "paid", "late", "shipped"),
        },
        _signalled,
    ),
    "approved": Scene(
        {
            "nodes": [
                node("pay", "approval@1", config={"title": "Pay?", "assignees": ["bob", "role:ADMIN"], "required": 2}),
                node("ship", "approval@1", config={"title": "Ship?", "form": {"type": "object"}}),
                node("late", "approval@1", config={"title": "Late?", "timeout": "1h", "onTimeout": "REJECT"}),
                node("never", "approval@1", config={"title": "Never?"}),
                node("done"),
            ],
            "edges": [edge("pay", "done", "approved")],
        },
        _approved,
    ),
    "deferred": Scene({"nodes": [*map(node, "ab"), node("c", timeout="60s", retry={"attempts": 1})]}, _deferred),
    "set_apart": Scene(
        {"nodes": [node("deferred"), node("tried", retry={"attempts": 3}), node("held"), node("ready")]}, _set_apart
    ),
    "held_child": Scene(
        {
            "nodes": [node("bill", "sub_workflow@1", config={"workflow": "billing"}), node("after")],
            "edges": chain("bill", "after"),
            "onFailure": "HOLD",
        },
        _held_child,
    ),
    "woken": Scene({"nodes": [node("go", "wait_signal@1", config={"signal": "go"})]}, _woken),
    "compensated": Scene(
        {
            "nodes": [
                node("pay", compensate={"module": "shop.refund@1", "inputs": {"of": "{{ nodes.pay.output }}"}}),
                node("pack", compensate={"module": "noop@1", "retry": {"attempts": 2}}),
                node("note", compensate={"module": "noop@1"}),
                node("ship"),
            ],
            "edges": [*chain("pay", "ship"), *chain("pack", "ship")],
        },
        _compensated,
    ),
    "answered": Scene({"nodes": [node("a")]}, _answered),
    "paused": Scene(
        {
            "nodes": [node("a", retry={"attempts": 2}), node("s", "sleep@1", config={"duration": "60s"})],
            "edges": chain("a", "s"),
        },
        _paused,
    ),
    "reopened": Scene(
        {
            "nodes": [node("a"), node("bad"), node("after")],
            "edges": [*chain("a", "after"), *chain("bad", "after")],
            "timeout": "1h",
        },
        _reopened,
    ),
    "forked": Scene(
        {
            "nodes": [node("choose"), node("left"), node("right"), node("either", "join@1", join="ANY"), node("last")],
            "edges": [
                edge("choose", "left", "left"),
                edge("choose", "right", "right"),
                *chain("left", "either", "last"),
                *chain("right", "either"),
            ],
        },
        _forked,
    ),
    "held_back": Scene(
        {
            "nodes": [
                node("call", "x.y@1"),
                node("fetch", "http.request@1", config={"url": "https://example.org/"}, retry={"budget": "100s"}),
            ]
        },
        _held_back,
    ),
    "dead_letters": Scene(
        {
            "nodes": [node(id) for id in ("bad", "worse", "hung", "after", "last")],
            "edges": [*chain("bad", "after"), *chain("worse", "last")],
            "onFailure": "HOLD",
        },
        _dead_letters,
    ),
    "rendered_elsewhere": Scene({"nodes": [node("a", inputs={"x": "{{ input.n }}"})]}, _rendered_elsewhere),
    "state_set": Scene(
        {
            "nodes": [
                node("left", "state.set@1", inputs={"v": 1}),
                node("right", "state.set@1", inputs={"v": "{{ 2 }}"}),
                node("first", join="ANY"),
                node("both"),
                node("rescue"),
            ],
            "edges": [
                *chain("left", "first"),
                *chain("right", "first"),
                *chain("left", "both"),
                *chain("right", "both"),
                edge("both", "rescue", "failure"),
            ],
            "initialState": {"w": 0},
        },
        _state_set,
    ),
    "sleep": Scene(
        {"nodes": [node("s", "sleep@1", config={"duration": "90s"}), node("j", "join@1")], "edges": chain("s", "j")},
        _asleep,
    ),
}
