"""A second, naive reading of the rules of graphs, loops and compensation. It judges stories that the core has told."""

import json
from collections.abc import Iterator

from services.coordinator.core.definition import Edge, Node
from services.coordinator.core.events import (
    CompensationStarted,
    ExecutionFinished,
    RunFailed,
    RunLost,
    RunSucceeded,
    StopOrdered,
)
from services.coordinator.core.values import WorkKey
from tests.support.story import Story


def assert_in_order(story: Story, event: RunSucceeded) -> None:
    """The output of a loop over a list has one place for each item, in their order."""
    execution = story.execution
    node, iteration, generation = event.key
    items = [work for key, work in execution.work.items() if (key.node, key.generation) == (node, generation)]
    items = [work for work in items if work.loop is not None]
    has_ended = all(work.state.value in ("SUCCEEDED", "FAILED") for work in items)
    if iteration or not items or execution.definition.nodes[node].module != "for_each@1":
        return
    # A person may have put another output in the place of that of a loop that failed.
    if has_ended and isinstance(event.output, bytes) and event.output.startswith(b"["):
        in_order = sorted(items, key=lambda work: work.key.iteration)
        places = [isinstance(place, dict) and "error" in place for place in json.loads(event.output)]
        assert places == [work.state.value == "FAILED" for work in in_order]


def _edges_into(story: Story, node: Node) -> Iterator[tuple[Node, Edge]]:
    for source in story.definition.nodes.values():
        yield from ((source, edge) for edge in source.edges if edge.target == node.id)


def _arrived(story: Story, source: Node, edge: Edge) -> str | None:
    """The naive reading of an edge, from the end of its source. None: the source has not ended."""
    when = edge.label or edge.when.name.lower()
    match story.states[source.id]:
        case "SUCCEEDED":
            taken = when in ("success", "always") or when == story.run(source.id).branch
            return "taken" if taken else "skipped"
        case "FAILED":
            if when in ("failure", "always"):
                return "taken"
            return "skipped" if any(e.when.name == "FAILURE" for e in source.edges) else "blocked"
        case "SKIPPED":
            return "skipped"
        case "BLOCKED":
            return {"always": "taken", "failure": "skipped"}.get(when, "blocked")
        case _:
            return None


def assert_join_holds(story: Story, node: Node) -> None:
    if node.id == "$output":
        return
    arrived = [_arrived(story, source, edge) for source, edge in _edges_into(story, node)]
    if node.join.value == "ANY":
        assert not arrived or "taken" in arrived, "S10"
    else:
        assert not arrived or (None not in arrived and "blocked" not in arrived and "taken" in arrived), "S10"


def assert_states_follow(story: Story) -> None:
    """Every node that did not run had a reason not to."""
    if any(isinstance(event, StopOrdered) for event in story.journal):
        return
    for node in story.definition.graph:
        state = story.states[node.id]
        arrived = [_arrived(story, source, edge) for source, edge in _edges_into(story, node)]
        assert None not in arrived
        if state in ("SKIPPED", "BLOCKED"):
            assert state == ("BLOCKED" if "blocked" in arrived else "SKIPPED")
            assert arrived
            assert "taken" not in arrived or ("blocked" in arrived and node.join.value == "ALL")
        else:
            assert state in ("SUCCEEDED", "FAILED")
    unhandled = [
        node.id
        for node in story.definition.nodes.values()
        if story.states[node.id] == "FAILED" and not node.is_failure_handled
    ]
    assert story.state == ("FAILED" if unhandled else "SUCCESS")


def assert_undone_in_reverse(story: Story) -> None:
    """Before an end that is not good, all that succeeded and can be undone is undone: each once, the last one first."""
    done: list[str] = []
    undoing: list[WorkKey] = []
    for event in story.journal:
        match event:
            case CompensationStarted():
                assert [key.node for key in event.works] == done[::-1]
                done, undoing = [], [*event.works]
            case RunSucceeded() if event.key in undoing or f"{event.key.node}$undo" in story.definition.nodes:
                if event.key in undoing:
                    assert undoing.pop(0) == event.key
                elif not event.key.iteration:
                    done.append(f"{event.key.node}$undo")
            case RunFailed() | RunLost() if event.key in undoing and event.reason is not None:
                assert undoing.pop(0) == event.key
            case ExecutionFinished():
                assert not undoing
                assert not done or event.state == "SUCCESS"
            case _:
                pass


def assert_all_laws(story: Story) -> None:
    """Of an execution that has ended."""
    assert story.execution.is_final
    assert_states_follow(story)
    assert_undone_in_reverse(story)
