"""ExplainExecution and GetExecution(as_of_seq) on a running stack."""

from __future__ import annotations

import asyncio
import shlex
import time
from pathlib import Path
from typing import Any

import pytest_asyncio

from tests.support.api import Client, new_workspace
from tests.support.command_line import windlass
from tests.support.own_runner import own_runner
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2 as pb
from windlass.api.v1 import resources_pb2

Explanation = resources_pb2.Explanation


@pytest_asyncio.fixture(loop_scope="session")
async def client(shared_stack: Stack) -> Client:
    return Client(shared_stack)


async def explained(client: Client, execution_id: str) -> Explanation:
    request = pb.ExplainExecutionRequest(execution_id=execution_id)
    response: pb.ExplainExecutionResponse = await client.call(client.executions.ExplainExecution, request)
    return response.explanation


async def blocked_by(client: Client, execution_id: str, kind: str) -> Any:
    """The blocker of this kind, once there is one."""

    async def found() -> Any:
        explanation = await explained(client, execution_id)
        return next((each for each in explanation.blockers if Explanation.Cause.Name(each.kind) == kind), None)

    return await eventually(found, 15, f"{execution_id} is not {kind}")


async def after_hint(stack: Stack, blocker: Any) -> str:
    """What the command prints that the blocker names."""
    name, *arguments = shlex.split(getattr(blocker, "try"))
    assert name == "windlass"
    done = await asyncio.to_thread(windlass, *arguments, "--home", stack.home.root)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def cancel(client: Client, execution_id: str) -> None:
    await client.call(client.executions.CancelExecution, pb.CancelExecutionRequest(execution_id=execution_id))


async def test_work_that_no_runner_can_do_names_its_module(client: Client) -> None:
    await client.apply("unknown-module", [{"id": "pay", "module": "billing.charge@9"}])
    execution = await client.start("unknown-module")
    blocker = await blocked_by(client, execution.id, "WAITING_FOR_RUNNER")
    assert (blocker.node, blocker.message) == (
        "pay",
        "pay is ready, and no runner that is connected does billing.charge@9",
    )
    await cancel(client, execution.id)
    assert not (await explained(client, execution.id)).blockers


async def test_labels_that_no_runner_has_are_named(client: Client) -> None:
    await client.apply("labelled", [{"id": "a", "module": "noop@1", "runnerLabels": {"gpu": "true"}}])
    execution = await client.start("labelled")
    blocker = await blocked_by(client, execution.id, "WAITING_FOR_RUNNER")
    assert blocker.message == "a is ready, and no runner that does noop@1 has the labels gpu=true"
    await cancel(client, execution.id)


async def test_a_runner_that_cannot_evaluate_what_ends_a_loop_is_not_called_busy(
    client: Client, shared_stack: Stack
) -> None:
    module, until = "foreign.poll@1", {"until": "output.done", "body": {"module": "foreign.poll@1"}}
    await client.apply("polled", [{"id": "poll", "module": "repeat@1", "config": until}])
    async with own_runner(shared_stack, client.metadata, module, wants_rendered=True):
        execution = await client.start("polled")
        blocker = await blocked_by(client, execution.id, "WAITING_FOR_RUNNER")
        assert blocker.message.endswith(f" is ready, and no runner that does {module} can evaluate its `until`")
        await cancel(client, execution.id)


async def test_a_queued_execution_names_the_one_that_has_the_slot(shared_stack: Stack) -> None:
    client = await new_workspace(shared_stack, "one-slot-taken", executions_max=1)
    await client.apply("slow", [{"id": "a", "module": "delay@1", "config": {"duration": "600s"}}])
    first = await client.start("slow")
    await blocked_by(client, first.id, "RUNNING")
    second = await client.start("slow")
    blocker = await blocked_by(client, second.id, "QUEUED_FOR_SLOT")
    assert first.id in blocker.message
    for each in (second, first):
        await cancel(client, each.id)


async def test_a_wait_for_a_signal_names_it_and_the_command_that_sends_it(shared_stack: Stack, client: Client) -> None:
    config = {"signal": "invoice paid", "timeout": "1h"}
    await client.apply("unpaid", [{"id": "paid", "module": "wait_signal@1", "config": config}])
    execution = await client.start("unpaid")
    blocker = await blocked_by(client, execution.id, "WAITING_FOR_SIGNAL")
    assert (blocker.node, blocker.message) == ("paid", "paid waits for the signal invoice paid")
    assert blocker.until_time.seconds - blocker.since_time.seconds == 3_600
    await after_hint(shared_stack, blocker)
    assert (await client.end_of(execution.id)).state == resources_pb2.Execution.SUCCESS


async def test_a_wait_for_an_approval_says_what_is_asked_who_may_decide_and_how_many_are_missing(
    shared_stack: Stack, client: Client
) -> None:
    config = {"title": "Pay 900 EUR?", "required": 2, "assignees": ["ann", "role:ADMIN"]}
    await client.apply("undecided", [{"id": "ask", "module": "approval@1", "config": config}])
    execution = await client.start("undecided")
    blocker = await blocked_by(client, execution.id, "WAITING_FOR_APPROVAL")
    assert blocker.message == (
        'ask asks "Pay 900 EUR?": 2 approvals are missing; ann, any key of role ADMIN may decide'
    )
    await after_hint(shared_stack, blocker)
    missing = 'ask asks "Pay 900 EUR?": 1 approval is missing, after that of '

    async def is_half_approved() -> bool:
        return str((await blocked_by(client, execution.id, "WAITING_FOR_APPROVAL")).message).startswith(missing)

    await eventually(is_half_approved, 15, "the first approval")
    await cancel(client, execution.id)


async def test_a_wait_for_a_child_names_it_and_its_explanation_goes_on(shared_stack: Stack, client: Client) -> None:
    await client.apply("unheard", [{"id": "go", "module": "wait_signal@1", "config": {"signal": "go"}}])
    await client.apply("relies", [{"id": "sub", "module": "sub_workflow@1", "config": {"workflow": "unheard"}}])
    execution = await client.start("relies")

    async def blocker_of_queued_child() -> Any:
        blocker = await blocked_by(client, execution.id, "WAITING_FOR_CHILD")
        return blocker if blocker.message.endswith(" of unheard, to end") else None

    blocker = await eventually(blocker_of_queued_child, 15, "the start of the child")
    shown = await after_hint(shared_stack, blocker)
    (child,) = (
        await client.call(
            client.executions.ListExecutions, pb.ListExecutionsRequest(filter=f'parent_execution_id = "{execution.id}"')
        )
    ).executions
    assert blocker.message == f"sub waits for the execution {child.id} of unheard, to end"
    assert shown.startswith(f"{child.id} is ")
    await cancel(client, execution.id)


async def test_deferred_work_says_who_handed_it_out_and_until_when_its_token_counts(
    shared_stack: Stack, client: Client, tmp_path: Path
) -> None:
    node = {"id": "away", "module": "test.defers@1", "inputs": {"file": "{{ input.file }}"}, "timeout": "1h"}
    await client.apply("handed-out", [node])
    execution = await client.start("handed-out", input={"file": str(tmp_path / "token")})
    blocker = await blocked_by(client, execution.id, "WAITING_FOR_COMPLETION")
    (run,) = await client.runs_of(execution.id)
    assert blocker.message == (
        f"away was handed to somebody else by the runner {run.runner}; whoever has the completion token of the run"
        f" {run.id} says how it ends (windlass run complete TOKEN)"
    )
    assert 0 <= blocker.until_time.seconds - run.create_time.seconds - 3_600 <= 1
    assert run.id.rpartition(".")[0] in getattr(blocker, "try")
    await after_hint(shared_stack, blocker)
    await cancel(client, execution.id)


async def test_work_that_failed_names_its_error_and_what_inspects_it(shared_stack: Stack, client: Client) -> None:
    fails = {"id": "bad", "module": "fail@1", "config": {"type": "PERMANENT", "message": "no money"}}
    await client.apply("held", [fails], onFailure="HOLD")
    execution = await client.start("held")
    blocker = await blocked_by(client, execution.id, "WAITING_FOR_RESOLUTION")
    assert blocker.message.startswith("bad failed for good and waits for a person: ")
    assert blocker.message.endswith(": no money")
    assert "no money" in await after_hint(shared_stack, blocker)
    await cancel(client, execution.id)


async def test_a_backoff_and_a_sleep_say_until_when(shared_stack: Stack, client: Client) -> None:
    tried = {"id": "tried", "module": "fail@1", "config": {"type": "TRANSIENT", "message": "busy"}}
    retry = {"attempts": 9, "initialDelay": "24h", "factor": 1, "maxDelay": "24h", "budget": 0}
    nap = {"id": "nap", "module": "sleep@1", "config": {"duration": "1h"}}
    await client.apply("patient", [{**tried, "retry": retry}, nap])
    execution = await client.start("patient")
    backoff = await blocked_by(client, execution.id, "BACKOFF")
    assert backoff.message.startswith("tried failed and is tried again: ")
    assert backoff.until_time.seconds >= backoff.since_time.seconds
    assert "busy" in await after_hint(shared_stack, backoff)
    sleep = await blocked_by(client, execution.id, "SLEEPING")
    assert (sleep.message, getattr(sleep, "try")) == ("nap sleeps", "")
    assert sleep.until_time.seconds - sleep.since_time.seconds == 3_600
    await cancel(client, execution.id)


async def test_work_behind_a_circuit_names_its_target(shared_stack: Stack, client: Client) -> None:
    target = "http.request@1 never.example:443"
    home = ("--home", shared_stack.home.root)
    opened = await asyncio.to_thread(windlass, "circuits", "open", target, "--for", "1h", *home)
    assert opened.returncode == 0, opened.stderr
    await client.apply(
        "calls", [{"id": "call", "module": "http.request@1", "config": {"url": "https://never.example/"}}]
    )
    execution = await client.start("calls")

    async def probed() -> Any:
        found = await blocked_by(client, execution.id, "CIRCUIT_OPEN")
        return found if found.until_time.seconds > found.since_time.seconds + 1_800 else None

    # Any coordinator answers, and each reads once a second which circuits others have opened.
    blocker = await eventually(probed, 15, "the time of the probe, which is later than the next look of the work")
    assert blocker.message == f"call waits, because the circuit of {target} is open"
    assert target in await after_hint(shared_stack, blocker)
    await cancel(client, execution.id)
    await asyncio.to_thread(windlass, "circuits", "reset", target, *home)


async def test_a_pause_names_who_and_why_and_the_command_that_ends_it(shared_stack: Stack, client: Client) -> None:
    await client.apply("slow", [{"id": "a", "module": "delay@1", "config": {"duration": "600s"}}])
    execution = await client.start("slow")
    request = pb.PauseExecutionRequest(execution_id=execution.id, reason="look first")
    await client.call(client.executions.PauseExecution, request)
    blocker = await blocked_by(client, execution.id, "PAUSED")
    assert blocker.message.endswith(" has paused it: look first")
    await after_hint(shared_stack, blocker)

    async def goes_on() -> bool:
        return "PAUSED" not in (await explained(client, execution.id)).text.partition("Its time")[0]

    await eventually(goes_on, 15, "the execution to go on")
    await cancel(client, execution.id)


def micros_at(explanation: Explanation, cause: str) -> int:
    parts = [each for each in explanation.time_split if Explanation.Cause.Name(each.cause) == cause]
    return sum(int(part.duration.ToMicroseconds()) for part in parts)


async def test_an_execution_that_is_woken_waits_for_a_slot_again(shared_stack: Stack) -> None:
    client = await new_workspace(shared_stack, "one-slot-again", executions_max=1)
    await client.apply("slow", [{"id": "a", "module": "delay@1", "config": {"duration": "600s"}}])
    await client.apply("wakes", [{"id": "go", "module": "wait_signal@1", "config": {"signal": "go"}}])
    woken = await client.start("wakes")
    await blocked_by(client, woken.id, "WAITING_FOR_SIGNAL")
    other = await client.start("slow")
    await blocked_by(client, other.id, "RUNNING")
    signal = pb.SignalExecutionRequest(execution_id=woken.id, signal="go")
    await client.call(client.executions.SignalExecution, signal)
    blocker = await blocked_by(client, woken.id, "QUEUED_FOR_SLOT")
    assert other.id in blocker.message
    asked = time.time_ns() // 1_000
    explanation = await explained(client, woken.id)
    told = micros_at(explanation, "QUEUED_FOR_SLOT")
    assert told >= asked - blocker.since_time.ToMicroseconds() > 0, "all the time since it was woken"
    assert abs(sum(each.share for each in explanation.time_split) - 1) < 1e-6
    await cancel(client, other.id)
    assert (await client.end_of(woken.id)).state == resources_pb2.Execution.SUCCESS
    explanation = await explained(client, woken.id)
    assert micros_at(explanation, "QUEUED_FOR_SLOT") >= told
    assert abs(sum(each.share for each in explanation.time_split) - 1) < 1e-6


async def test_the_time_of_an_execution_that_has_ended_adds_up(client: Client) -> None:
    nodes: list[dict[str, Any]] = [
        {"id": "a", "module": "noop@1"},
        {"id": "nap", "module": "sleep@1", "config": {"duration": "300ms"}},
    ]
    await client.apply("short-nap", nodes, edges=[{"from": "a", "to": "nap"}])
    execution = await client.run("short-nap")
    explanation = await explained(client, execution.id)
    shares = {Explanation.Cause.Name(each.cause): each.share for each in explanation.time_split}
    assert abs(sum(shares.values()) - 1) < 1e-6
    assert max(shares, key=lambda cause: shares[cause]) == "SLEEPING"
    assert explanation.text.startswith(f"{execution.id} ended as SUCCESS.")


async def test_an_execution_is_shown_as_it_was_after_an_event(client: Client) -> None:
    await client.apply("past", [{"id": "a", "module": "noop@1"}, {"id": "b", "module": "noop@1"}])
    execution = await client.run("past")

    async def as_of(seq: int) -> Any:
        request = pb.GetExecutionRequest(execution_id=execution.id, as_of_seq=seq)
        return (await client.call(client.executions.GetExecution, request)).execution

    first, last = await as_of(1), await as_of(execution.last_seq + 10)
    assert (first.last_seq, first.state, list(first.summary.succeeded)) == (1, resources_pb2.Execution.RUNNING, [])
    assert list(first.summary.cancelled) == [], "nothing had ended, and nothing was cancelled"
    assert first.metrics.duration.ToMicroseconds() == 0, "its first event had just started it"
    assert (last.last_seq, last.state) == (execution.last_seq, resources_pb2.Execution.SUCCESS)
    assert sorted(last.summary.succeeded) == ["a", "b"]
