"""Completions that do not depend on each other commute: in whichever order two runs end, the execution ends alike.

Some things depend on the order by design, and are left out:

- FAIL_FAST: the first failure ends all other work.
- A node with `join: ANY` sees the workflow's state of the path that came first, so no workflow here has both it and
  `state.set@1`.
- Two items of the same loop: the first failure of one stops the others, and the items that follow begin in turn.
- The error of the execution is that of the first failure. So is what undoes its work told of it, and it is undone in
  reverse.
- Signals: the node that has waited longest takes one.
- The numbers of runs, and what is named by them.
"""

from itertools import combinations
from typing import Any

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from services.coordinator.core.commands import ReportFailure, ReportSuccess
from services.coordinator.core.state import Work
from services.coordinator.core.summary import summary
from services.coordinator.core.values import Error, ErrorClass
from tests.support.random_workflows import OUTPUT, documents, going_well
from tests.support.story import Document, Story, chain, edge, node

BRANCHES = ["", "left", "right", "true"]


def depends_on_order(document: Document) -> bool:
    has_state = any(each["module"] == "state.set@1" for each in document["nodes"])
    has_first_path = any(each.get("join") == "ANY" for each in document["nodes"])
    return document.get("onFailure") == "FAIL_FAST" or (has_state and has_first_path)


# How a run ends: the class of its error, or None, and the branch that it takes if it succeeds.
End = tuple[ErrorClass | None, str]
ENDS = st.tuples(st.sampled_from([None, None, None, *ErrorClass]), st.sampled_from(BRANCHES))


def are_apart(one: Work, other: Work) -> bool:
    return one.loop is None or one.loop is not other.loop


def end(story: Story, number: int, how: End) -> None:
    error, branch = how
    run = story.execution.live[number]
    if error is None:
        # Each says who it is, so that an output in the wrong place is seen.
        output = OUTPUT[:-1] + f',"of":"{run.work.key}"}}'.encode()
        story.when(ReportSuccess(number, run.epoch, output, branch))
    else:
        story.when(ReportFailure(number, run.epoch, Error(error, "X", "x"), 0.5))


def present(story: Story) -> Any:
    execution = story.execution
    ready = {work.key for work in execution.ready}
    waiting = {key: (wait.kind, wait.due) for key, wait in execution.waits.items()}
    return story.state, story.states, ready, waiting, set(execution.backoffs), execution.next_wake()


def ended(story: Story) -> Any:
    for command in going_well(story):
        story.when(command)
    execution = story.execution
    works = {key: (work.state, work.output, work.failures) for key, work in execution.work.items()}
    return story.state, story.states, execution.output, summary(execution), works


@given(documents(min_size=3), st.lists(ENDS, max_size=8), st.tuples(ENDS, ENDS), st.data())
@example(
    {"nodes": [*map(node, "abc")], "edges": [edge("a", "c"), edge("b", "c")]}, [], ((None, ""), (None, "")), None
).via("two nodes before a join")
@settings(max_examples=80, suppress_health_check=list(HealthCheck))
def test_independent_completions_commute(
    document: Document, before: list[End], ends: tuple[End, End], data: Any
) -> None:
    assume(not depends_on_order(document))
    story = Story(**document)
    story.start()
    for how in before:
        story.assign()
        if story.execution.live:
            end(story, next(iter(story.execution.live)), how)
    story.assign()
    live = list(story.execution.live.values())
    pairs = [pair for pair in combinations(live, 2) if are_apart(pair[0].work, pair[1].work)]
    assume(pairs)
    one, other = pairs[0] if data is None else data.draw(st.sampled_from(pairs))
    twins = story.again(), story.again()
    for twin, order in zip(twins, ((0, 1), (1, 0)), strict=True):
        for place in order:
            end(twin, (one.number, other.number)[place], ends[place])
    assert present(twins[0]) == present(twins[1])
    assert ended(twins[0]) == ended(twins[1])


def test_a_join_sees_the_outputs_of_both_whichever_came_first() -> None:
    def outputs(order: str) -> Any:
        nodes = [node("a"), node("b"), node("c", inputs={"of": "{{ nodes }}"})]
        story = Story(nodes, [*chain("a", "c"), edge("b", "c")])
        story.start()
        story.assign()
        for id in order:
            story.succeed(id, f'"{id}"'.encode())
        story.assign("c")
        return story.effects[0].outputs

    assert outputs("ab") == outputs("ba")
