"""Executions that start others: `sub_workflow@1` from the definition to the result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from tests.support.api import Client, new_workspace
from tests.support.command_line import windlass
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import dead_letters_pb2, executions_pb2, resources_pb2, workflows_pb2
from windlass.api.v1.dead_letters_pb2_grpc import DeadLetterServiceStub
from windlass.definition.limits import CHILD_DEPTH_MAX

Execution = resources_pb2.Execution
WAITS = [{"id": "long", "module": "test.waits@1"}]


@pytest_asyncio.fixture(loop_scope="session")
async def client(shared_stack: Stack) -> Client:
    return Client(shared_stack)


def sub(workflow: str, id: str = "child", **more: Any) -> dict[str, Any]:
    config = {"workflow": workflow} | more.pop("config", {})
    return {"id": id, "module": "sub_workflow@1", "config": config, **more}


async def children_of(client: Client, execution: Execution) -> list[Execution]:
    """Oldest first."""
    request = executions_pb2.ListExecutionsRequest(
        filter=f'parent_execution_id = "{execution.id}"', order_by="create_time"
    )
    return list((await client.call(client.executions.ListExecutions, request)).executions)


async def child_in(client: Client, execution: Execution, state: Any) -> Execution:
    """The only child, once it is in this state."""

    async def found() -> Execution | None:
        children = await children_of(client, execution)
        assert len(children) <= 1
        return children[0] if children and children[0].state == state else None

    return await eventually(found, 20.0, f"a child in state {state}")


async def test_the_output_of_a_child_is_the_output_of_the_node(client: Client) -> None:
    double = [{"id": "twice", "module": "transform@1", "inputs": {"n": "{{ input.n * 2 }}"}}]
    await client.apply("double", double, output={"n": "{{ nodes.twice.output.n }}"})
    plus = {"id": "plus", "module": "transform@1", "inputs": {"n": "{{ nodes.child.output.n + 1 }}"}}
    nodes = [sub("double", inputs={"n": "{{ input.n + 1 }}"}), plus]
    await client.apply("parent", nodes, edges=[{"from": "child", "to": "plus"}])
    execution = await client.run("parent", input={"n": 3})
    assert execution.state == Execution.SUCCESS, execution.error
    assert execution.output["plus"] == {"n": 9}
    (child,) = await children_of(client, execution)
    assert (child.workflow, child.state, child.parent_execution_id) == ("double", Execution.SUCCESS, execution.id)
    assert child.trace_id == execution.trace_id


async def test_the_version_of_a_child_is_the_one_that_the_node_names(client: Client) -> None:
    for version in ("one", "two"):
        await client.apply("versions", [{"id": "a", "module": "transform@1", "inputs": {"v": version}}])
    nodes = [sub("versions", "first", config={"version": 1}), sub("versions", "newest")]
    await client.apply("both-versions", nodes)
    output: Any = (await client.run("both-versions")).output
    assert [output[id]["a"]["v"] for id in ("first", "newest")] == ["one", "two"]


@pytest.mark.parametrize(
    ("workflow", "reason"),
    [("nobody-has-this", "WORKFLOW_NOT_FOUND"), ("strict", "INPUT_MISMATCH"), ("put-away", "WORKFLOW_ARCHIVED")],
)
async def test_a_child_that_cannot_be_started_fails_its_node(client: Client, workflow: str, reason: str) -> None:
    schema = {"type": "object", "required": ["amount"]}
    await client.apply("strict", [{"id": "a", "module": "noop@1"}], inputSchema=schema)
    if reason == "WORKFLOW_ARCHIVED":
        await client.apply("put-away", [{"id": "a", "module": "noop@1"}])
        await client.call(client.workflows.ArchiveWorkflow, workflows_pb2.ArchiveWorkflowRequest(workflow="put-away"))
    await client.apply("asks", [sub(workflow)])
    execution = await client.run("asks")
    assert (execution.state, execution.error.node, execution.error.type) == (Execution.FAILED, "child", reason)
    assert await children_of(client, execution) == []


async def test_the_failure_of_a_child_reaches_its_parent(client: Client) -> None:
    fails = {"id": "bad", "module": "fail@1", "config": {"type": "PERMANENT", "message": "no money"}}
    await client.apply("fails", [fails])
    await client.apply("relies", [sub("fails")])
    execution = await client.run("relies")
    (child,) = await children_of(client, execution)
    assert (execution.error.node, execution.error.type) == ("child", "PERMANENT")
    assert execution.error.message == f"execution {child.id}: no money"


async def test_a_retry_of_the_node_is_another_child(client: Client) -> None:
    fails = {"id": "bad", "module": "fail@1", "config": {"type": "PERMANENT", "message": "no money"}}
    await client.apply("fails", [fails])
    await client.apply("insists", [sub("fails", retry={"attempts": 3, "initialDelay": "10ms"})])
    execution = await client.run("insists")
    assert execution.state == Execution.FAILED
    assert len({child.id for child in await children_of(client, execution)}) == 3
    assert [run.attempt for run in await client.runs_of(execution.id)] == [1, 2, 3]


async def test_recursion_ends_at_the_greatest_depth(client: Client) -> None:
    await client.apply("endless", [sub("endless")])
    execution = await client.run("endless")
    assert execution.error.type == "CHILD_TOO_DEEP"
    request = executions_pb2.ListExecutionsRequest(filter='workflow = "endless"', page_size=100)
    found = (await client.call(client.executions.ListExecutions, request)).executions
    assert len(found) == 1 + CHILD_DEPTH_MAX


async def test_definition_warns_of_unknown_workflows_and_of_recursion(client: Client) -> None:
    request = workflows_pb2.ValidateWorkflowRequest()
    nodes = [sub("unheard-of", "a"), sub("myself", "b"), sub("known", "c"), sub("{{ input.which }}", "d")]
    await client.apply("known", [])
    request.definition.update({"name": "myself", "nodes": nodes})
    answer = await client.call(client.workflows.ValidateWorkflow, request)
    assert not answer.faults
    assert [(each.path, each.reason) for each in answer.warnings] == [
        ("nodes[0].config.workflow", "WORKFLOW_NOT_FOUND"),
        ("nodes[1].config.workflow", "SELF_REFERENCE"),
    ]


async def test_parents_and_children_take_turns_in_the_only_slot(shared_stack: Stack) -> None:
    """Each of three parents waits for a child, which waits for a child. Two slots at once would be one too many."""
    free = await new_workspace(shared_stack, "one-slot", executions_max=1)
    await free.apply("leaf", [{"id": "a", "module": "noop@1"}])
    await free.apply("middle", [sub("leaf", "one"), sub("leaf", "two")])
    await free.apply("top", [sub("middle", "one"), sub("middle", "two")])
    for execution in await free.start_many("top", 3):
        assert (await free.end_of(execution.id)).state == Execution.SUCCESS
    request = executions_pb2.ListExecutionsRequest(page_size=100)
    found = (await free.call(free.executions.ListExecutions, request)).executions
    assert len(found) == 3 * (1 + 2 * (1 + 2))
    assert {each.state for each in found} == {Execution.SUCCESS}


async def test_a_cancel_of_the_parent_ends_a_child_that_is_going(client: Client) -> None:
    await client.apply("waits-long", WAITS)
    await client.apply("patient", [sub("waits-long")])
    execution = await client.start("patient")
    child = await child_in(client, execution, Execution.RUNNING)
    await client.cancel(execution.id)
    assert (await client.end_of(execution.id)).state == Execution.CANCELLED
    ended = await client.end_of(child.id)
    assert (ended.state, execution.id in ended.error.message) == (Execution.CANCELLED, True)


async def test_a_cancel_of_the_parent_ends_a_child_that_is_queued(shared_stack: Stack) -> None:
    full = await new_workspace(shared_stack, "full-slot", executions_max=1)
    await full.apply("waits-long", WAITS)
    await full.apply("patient", [sub("waits-long")])
    parent, other = await full.start("patient"), await full.start("waits-long")
    child = await child_in(full, parent, Execution.PENDING)
    await full.cancel(parent.id)
    assert (await full.end_of(parent.id)).state == Execution.CANCELLED
    assert (await full.end_of(child.id)).state == Execution.CANCELLED
    await full.cancel(other.id)


async def test_a_child_that_is_abandoned_goes_on_without_its_parent(client: Client) -> None:
    await client.apply("waits-long", WAITS)
    await client.apply("careless", [sub("waits-long", config={"onParentEnd": "ABANDON"})])
    execution = await client.start("careless")
    child = await child_in(client, execution, Execution.RUNNING)
    await client.cancel(execution.id)
    assert (await client.end_of(execution.id)).state == Execution.CANCELLED
    assert (await client.get(child.id)).state == Execution.RUNNING
    await client.cancel(child.id)
    assert (await client.end_of(child.id)).state == Execution.CANCELLED


async def test_the_deadline_of_the_parent_ends_its_child(client: Client) -> None:
    await client.apply("waits-long", WAITS)
    await client.apply("hurried", [sub("waits-long")], timeout="300ms")
    execution = await client.run("hurried")
    assert execution.state == Execution.TIMEOUT
    (child,) = await children_of(client, execution)
    assert (await client.end_of(child.id)).state == Execution.CANCELLED


async def test_the_timeout_of_the_node_is_that_of_its_child(client: Client) -> None:
    await client.apply("waits-long", WAITS)
    await client.apply("limited", [sub("waits-long", timeout="300ms")])
    execution = await client.run("limited")
    assert (execution.state, execution.error.type) == (Execution.FAILED, "TIMEOUT")
    (child,) = await children_of(client, execution)
    assert child.state == Execution.TIMEOUT


@pytest.mark.parametrize("slots", [1, 5])
async def test_items_of_a_list_are_children(shared_stack: Stack, slots: int) -> None:
    few = await new_workspace(shared_stack, f"list-{slots}", executions_max=slots)
    square = [{"id": "n", "module": "transform@1", "inputs": {"n": "{{ input.item * input.item + input.index }}"}}]
    await few.apply("square", square, output="{{ nodes.n.output.n }}")
    config = {"items": "{{ input.numbers }}", "maxParallel": 3, "body": {"workflow": "square"}}
    await few.apply("squares", [{"id": "each", "module": "for_each@1", "config": config}])
    execution = await few.run("squares", input={"numbers": [1, 2, 3, 4, 5, 6, 7]})
    assert execution.state == Execution.SUCCESS, execution.error
    output: Any = execution.output["each"]
    assert list(output) == [1, 5, 11, 19, 29, 41, 55]
    assert len(await children_of(few, execution)) == 7


async def test_a_child_that_fails_cancels_the_other_children_of_its_list(client: Client) -> None:
    nodes: list[dict[str, Any]] = [
        {"id": "which", "module": "condition@1", "config": {"expression": "input.item == 'bad'"}},
        {"id": "bad", "module": "fail@1", "config": {"type": "PERMANENT", "message": "a bad item"}},
        {"id": "long", "module": "test.waits@1"},
    ]
    edges = [{"from": "which", "to": "bad", "when": "true"}, {"from": "which", "to": "long", "when": "false"}]
    await client.apply("picky", nodes, edges=edges)
    config = {"items": ["good", "good", "bad"], "body": {"workflow": "picky"}}
    rescue = {"id": "rescue", "module": "noop@1"}
    each: dict[str, Any] = {"id": "each", "module": "for_each@1", "config": config}
    await client.apply("pickers", [each, rescue], edges=[{"from": "each", "to": "rescue", "when": "failure"}])
    execution = await client.run("pickers")
    assert execution.state == Execution.SUCCESS, execution.error
    children = await children_of(client, execution)
    ends = sorted([(await client.end_of(child.id)).state for child in children])
    assert ends == sorted([Execution.FAILED, Execution.CANCELLED, Execution.CANCELLED])


async def test_command_line_shows_the_children_that_an_execution_waits_for(shared_stack: Stack, client: Client) -> None:
    await client.apply("waits-long", WAITS)
    await client.apply("patient", [sub("waits-long")])
    execution = await client.start("patient")
    child = await child_in(client, execution, Execution.RUNNING)
    shown = await asyncio.to_thread(windlass, "get", execution.id, "--home", shared_stack.home.root)
    assert (shown.returncode, child.id in shown.stdout.partition("children")[2]) == (0, True), shown.stderr
    await client.cancel(execution.id)
    await client.end_of(execution.id)
    shown = await asyncio.to_thread(windlass, "get", execution.id, "--home", shared_stack.home.root)
    assert child.id not in shown.stdout


async def test_a_child_may_end_while_its_parent_is_paused(client: Client) -> None:
    nap = {"id": "nap", "module": "sleep@1", "config": {"duration": "1s"}}
    await client.apply("short-nap", [nap])
    after = {"id": "after", "module": "noop@1"}
    await client.apply("pausable", [sub("short-nap"), after], edges=[{"from": "child", "to": "after"}])
    execution = await client.start("pausable")
    await child_in(client, execution, Execution.WAITING)
    request = executions_pb2.PauseExecutionRequest(execution_id=execution.id)
    await client.call(client.executions.PauseExecution, request)
    await child_in(client, execution, Execution.SUCCESS)

    async def has_heard() -> bool:
        return any(run.state == resources_pb2.Run.SUCCESS for run in await client.runs_of(execution.id))

    await eventually(has_heard, 20.0, "the parent to hear of the end")
    assert (await client.get(execution.id)).state == Execution.PAUSED
    await client.call(
        client.executions.ResumeExecution, executions_pb2.ResumeExecutionRequest(execution_id=execution.id)
    )
    assert (await client.end_of(execution.id)).state == Execution.SUCCESS


async def test_a_retry_of_the_parent_starts_another_child(client: Client) -> None:
    fails = {"id": "bad", "module": "fail@1", "config": {"type": "PERMANENT", "message": "no money"}}
    await client.apply("mended", [fails])
    await client.apply("retried", [sub("mended", inputs={"n": 1})])
    execution = await client.run("retried")
    assert execution.state == Execution.FAILED
    await client.apply("mended", [{"id": "good", "module": "transform@1", "inputs": {"n": "{{ input.n }}"}}])
    request = executions_pb2.RetryExecutionRequest(execution_id=execution.id)
    request.input_overrides.update({"child": {"n": 7}})
    await client.call(client.executions.RetryExecution, request)
    await eventually(lambda: is_over(client, execution.id), 20.0, "the second end")
    first, second = await children_of(client, execution)
    assert (first.state, second.state, second.version) == (Execution.FAILED, Execution.SUCCESS, 2)
    output: Any = (await client.get(execution.id)).output
    assert output["child"]["good"] == {"n": 7}


async def is_over(client: Client, execution_id: str) -> bool:
    return (await client.get(execution_id)).state == Execution.SUCCESS


CHECK = {"id": "check", "module": "test.check@1", "inputs": {"n": "{{ input.n }}"}}
AFTER = {"id": "after", "module": "transform@1", "inputs": {"n": "{{ nodes.child.output.check.n }}"}}


async def retry(client: Client, execution: Execution, **overrides: Any) -> None:
    request = executions_pb2.RetryExecutionRequest(execution_id=execution.id)
    request.input_overrides.update(overrides)
    await client.call(client.executions.RetryExecution, request)


async def letter_of(shared_stack: Stack, client: Client, execution: Execution) -> dead_letters_pb2.DeadLetter:
    """Its only dead letter, once it has one."""
    stub: Any = DeadLetterServiceStub(shared_stack.channel())
    request = dead_letters_pb2.ListDeadLettersRequest(filter=f'execution_id = "{execution.id}"')

    async def found() -> Any:
        return (await client.call(stub.ListDeadLetters, request)).dead_letters

    (letter,) = await eventually(found, 20.0, "the dead letter")
    return letter  # type: ignore[no-any-return]


async def test_a_child_that_is_held_and_requeued_ends_the_wait_of_its_parent(
    shared_stack: Stack, client: Client
) -> None:
    await client.apply("held-child", [CHECK], onFailure="HOLD")
    nodes = [sub("held-child", inputs={"n": -1}), AFTER]
    await client.apply("waits-for-held", nodes, edges=[{"from": "child", "to": "after"}])
    execution = await client.start("waits-for-held")
    child = await child_in(client, execution, Execution.WAITING)
    letter = await letter_of(shared_stack, client, child)
    stub: Any = DeadLetterServiceStub(shared_stack.channel())
    request = dead_letters_pb2.RequeueDeadLetterRequest(dead_letter_id=letter.id)
    request.input_overrides.update({"n": 7})
    await client.call(stub.RequeueDeadLetter, request)
    ended = await client.end_of(execution.id)
    output: Any = ended.output
    assert (ended.state, output["after"]) == (Execution.SUCCESS, {"n": 7})


async def test_a_held_parent_goes_on_when_its_child_is_retried_and_succeeds(
    shared_stack: Stack, client: Client
) -> None:
    await client.apply("checked", [CHECK])
    nodes = [sub("checked", inputs={"n": -1}), AFTER]
    await client.apply("held-parent", nodes, edges=[{"from": "child", "to": "after"}], onFailure="HOLD")
    execution = await client.start("held-parent")
    child = await child_in(client, execution, Execution.FAILED)
    pending = await letter_of(shared_stack, client, execution)
    assert pending.resolution == dead_letters_pb2.DeadLetter.PENDING
    await retry(client, child, check={"n": 7})
    ended = await client.end_of(execution.id)
    output: Any = ended.output
    assert (ended.state, output["after"]) == (Execution.SUCCESS, {"n": 7})
    letter = await letter_of(shared_stack, client, execution)
    assert (letter.resolution, letter.reviewer) == (dead_letters_pb2.DeadLetter.FIXED, f"execution {child.id}")
    assert len(await children_of(client, execution)) == 1


async def test_a_retried_child_changes_nothing_in_a_parent_whose_node_has_failed(
    shared_stack: Stack, client: Client
) -> None:
    """Another branch of the parent is still under way when the child succeeds."""
    await client.apply("checked", [CHECK])
    go = {"id": "go", "module": "wait_signal@1", "config": {"signal": "go"}}
    edges = [{"from": "child", "to": "after"}]
    await client.apply("two-branches", [sub("checked", inputs={"n": -1}), AFTER, go], edges=edges)
    execution = await client.start("two-branches")
    child = await child_in(client, execution, Execution.FAILED)
    await letter_of(shared_stack, client, execution)
    await retry(client, child, check={"n": 7})
    await eventually(lambda: is_over(client, child.id), 20.0, "the second end of the child")
    request = executions_pb2.SignalExecutionRequest(execution_id=execution.id, signal="go")
    await client.call(client.executions.SignalExecution, request)
    ended = await client.end_of(execution.id)
    assert (ended.state, list(ended.summary.blocked)) == (Execution.FAILED, ["after"])
    letter = await letter_of(shared_stack, client, execution)
    assert letter.resolution == dead_letters_pb2.DeadLetter.PENDING, "a person may still mark it as fixed"


async def test_an_end_that_the_parent_does_not_wait_for_changes_nothing(client: Client) -> None:
    """The child failed, and so did its parent. Then a person has the child done again."""
    nodes = [{"id": "which", "module": "fail@1", "config": {"type": "PERMANENT", "message": "bad"}}]
    await client.apply("again", nodes)
    await client.apply("gone", [sub("again")])
    execution = await client.run("gone")
    (child,) = await children_of(client, execution)
    request = executions_pb2.RetryExecutionRequest(execution_id=child.id)
    await client.call(client.executions.RetryExecution, request)

    async def has_failed_again() -> bool:
        return (await client.get(child.id)).last_seq > child.last_seq and (
            await client.get(child.id)
        ).state == Execution.FAILED

    await eventually(has_failed_again, 20.0, "the second end of the child")
    assert (await client.get(execution.id)).last_seq == execution.last_seq
