"""Random workflows for the tests of the core, and a way to bring any execution of them to its end."""

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from services.coordinator.core.commands import (
    Assign,
    AssignedRun,
    Command,
    CompleteRun,
    DecideApproval,
    Discard,
    EndChild,
    FinishLoop,
    LetThrough,
    ReportSuccess,
    Resume,
    Signal,
    StartLoop,
    Tick,
)
from services.coordinator.core.events import WaitKind
from services.coordinator.core.items import LoopConfig
from services.coordinator.core.state import Wait
from services.coordinator.core.values import ApprovalChoice, ExecutionState, OutputRef
from tests.support.story import Document, Story

WHENS = ("success", "success", "success", "failure", "always", "left", "right", "approved")
MODULES = ["noop@1"] * 4 + ["join@1", "sleep@1", "for_each@1", "for_each@1", "repeat@1", "state.set@1"]
MODULES += ["sub_workflow@1"] * 2 + ["wait_signal@1", "approval@1"]
# What every work reports: an output for anybody, and also the config of a control node that was to be rendered.
OUTPUT = (
    b'{"duration":"3s","items":[1,2,3],"maxParallel":2,"maxIterations":3,"delay":"2s",'
    b'"signal":"paid","title":"Pay?","config":{"workflow":"child"},"inputs":{}}'
)
KEPT = OutputRef("k", "0" * 64, 300_000)
LIST = LoopConfig({"maxParallel": 2}, [b"1", b"2", b"3"])
_ROUNDS_MAX = 200


@st.composite
def documents(draw: Any, min_size: int = 0) -> Document:
    size = draw(st.integers(min_size, 7))
    nodes = [_node(draw, number) for number in range(size)]
    edges = [
        {"from": f"n{source}", "to": f"n{target}", "when": draw(st.sampled_from(WHENS))}
        for target in range(size)
        for source in range(target)
        if draw(st.integers(0, 2)) == 0
    ]
    document: Document = {"nodes": nodes, "edges": edges, "recordInputs": draw(st.booleans())}
    if draw(st.booleans()):
        document["output"] = {"x": "{{ nodes }}"}
    if draw(st.integers(0, 2)) == 0:
        document["onFailure"] = draw(st.sampled_from(["FAIL_FAST", "HOLD"]))
    if draw(st.integers(0, 3)) == 0:
        document["timeout"] = "90s"
    return document


def _node(draw: Any, number: int) -> Document:
    module = draw(st.sampled_from(MODULES))
    node: Document = {"id": f"n{number}", "module": module, "retry": {"attempts": draw(st.integers(1, 3))}}
    if module == "sub_workflow@1" and draw(st.booleans()):
        del node["retry"]
    node |= _OF_MODULE.get(module, lambda draw, number: {})(draw, number)
    if draw(st.integers(0, 2)) == 0:
        node["compensate"] = {"module": "noop@1", "inputs": {"why": "{{ error.type }}"}}
    return node


def _noop(draw: Any, number: int) -> Document:
    found: Document = {"idempotent": draw(st.booleans()), "join": draw(st.sampled_from(["ALL", "ALL", "ANY"]))}
    return found | ({"timeout": "20s"} if draw(st.booleans()) else {})


def _sleep(draw: Any, number: int) -> Document:
    return {"config": {"duration": draw(st.sampled_from(["5s", "{{ 5 }}s"]))}}


def _state_set(draw: Any, number: int) -> Document:
    value = "{{ 7 }}" if draw(st.booleans()) else 7
    return {"inputs": {"key": draw(st.integers(0, 1)), f"n{number}": value}}


def _for_each(draw: Any, number: int) -> Document:
    items = st.one_of(st.lists(st.integers(0, 9), max_size=5), st.just("{{ input.ids }}"))
    config = {
        "items": draw(items),
        "maxParallel": draw(st.integers(1, 3)),
        "onItemFailure": draw(st.sampled_from(["FAIL", "CONTINUE"])),
        "body": draw(st.sampled_from([{"module": "noop@1"}, {"workflow": "child", "inputs": {}}])),
    }
    return {"config": config}


def _repeat(draw: Any, number: int) -> Document:
    config = {
        "until": "output.done",
        "maxIterations": draw(st.integers(1, 4)),
        "delay": draw(st.sampled_from(["0s", "5s", "{{ input.wait }}"])),
        "body": {"module": "noop@1"},
    }
    # The timeout and the retries of the node are those of each turn.
    return {"config": config} | ({"timeout": "20s"} if draw(st.booleans()) else {})


def _sub_workflow(draw: Any, number: int) -> Document:
    config = {"workflow": "child", "onParentEnd": draw(st.sampled_from(["CANCEL", "ABANDON"]))}
    return {"config": config, "inputs": draw(st.sampled_from([{}, {"n": "{{ input.n }}"}]))}


def _wait_signal(draw: Any, number: int) -> Document:
    config = {"signal": draw(st.sampled_from(["paid", "paid", "go", "{{ input.signal }}"]))}
    return {"config": config | _ends(draw, ["FAIL", "CONTINUE"])}


def _approval(draw: Any, number: int) -> Document:
    config = {
        "title": draw(st.sampled_from(["Pay?", "{{ input.title }}"])),
        "required": draw(st.integers(1, 2)),
        "assignees": draw(st.sampled_from([[], ["role:ADMIN"]])),
    }
    return {"config": config | _ends(draw, ["FAIL", "APPROVE", "REJECT"])}


def _ends(draw: Any, actions: list[str]) -> Document:
    return {"timeout": "7s", "onTimeout": draw(st.sampled_from(actions))} if draw(st.booleans()) else {}


_OF_MODULE: dict[str, Any] = {
    "noop@1": _noop,
    "sleep@1": _sleep,
    "state.set@1": _state_set,
    "for_each@1": _for_each,
    "repeat@1": _repeat,
    "sub_workflow@1": _sub_workflow,
    "wait_signal@1": _wait_signal,
    "approval@1": _approval,
}


def going_well(story: Story) -> Iterator[Command]:
    """What an execution needs to end: all work succeeds, all that is waited for comes, and time passes. Each command is
    to be given before the next one is asked for."""
    for _ in range(_ROUNDS_MAX):
        if story.execution.is_final:
            return
        yield from _of_runs(story)
        yield from _of_others(story)
        for wait in list(story.execution.waits.values()):
            yield from _end_of(wait, f"well{len(story.journal)}")
        if not story.execution.is_final and story.execution.next_wake():
            story.now = max(story.now, story.execution.next_wake())
            yield Tick(0.5)
    raise AssertionError("it never ends")


def _of_runs(story: Story) -> Iterator[Command]:
    execution = story.execution
    if execution.paused_by is not None:
        yield Resume(f"well{len(story.journal)}", "bob")
    if execution.held_back:
        yield LetThrough(list(execution.held_back))
    if execution.ready:
        yield Assign([AssignedRun(work, "i1", "runner of i1") for work in execution.ready])
    for run in list(execution.live.values()):
        yield ReportSuccess(run.number, run.epoch, OUTPUT, "true")


def _of_others(story: Story) -> Iterator[Command]:
    execution = story.execution
    for key in list(execution.unread):
        yield StartLoop(key, LIST)
    for key in list(execution.unstored):
        yield FinishLoop(key, KEPT)
    for child in list(execution.children):
        yield EndChild(child, ExecutionState.SUCCESS, b"{}", None, 0.5)


def _end_of(wait: Wait, message_id: str) -> Iterator[Command]:
    """What ends the wait, if it does not end by time alone."""
    assert wait.work.run is not None
    number = wait.work.run.number
    if wait.kind is WaitKind.PERSON:
        yield Discard(message_id, "ann", number, epoch=1_000, holder="c3")
    elif wait.kind is WaitKind.SIGNAL:
        yield Signal(message_id, "ann", wait.name, b'{"n":1}')
    elif wait.kind is WaitKind.APPROVAL:
        yield DecideApproval(message_id, "ann", message_id, "ADMIN", number, ApprovalChoice.APPROVE)
    elif wait.kind is WaitKind.OUTSIDE:
        yield CompleteRun(message_id, "", number, OUTPUT, "true")
