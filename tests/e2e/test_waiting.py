"""Executions that wait for signals, for people, and for work that somebody else finishes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.chassis.grpc.errors import RemoteError, remote_error
from tests.support.api import Client, new_workspace
from tests.support.command_line import windlass
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import approvals_pb2, executions_pb2, resources_pb2, runs_pb2, workspaces_pb2
from windlass.api.v1.workspaces_pb2_grpc import ApiKeyServiceStub
from windlass.definition.parsing import Format, parse

Execution = resources_pb2.Execution
Approval = resources_pb2.Approval
FORM = {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "integer", "maximum": 900}}}
TWO_SIGNALS: list[dict[str, Any]] = [
    {"id": "paid", "module": "wait_signal@1", "config": {"signal": "paid"}},
    {"id": "shipped", "module": "wait_signal@1", "config": {"signal": "shipped"}},
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(shared_stack: Stack) -> Client:
    made = Client(shared_stack)
    await made.apply("two-signals", TWO_SIGNALS, edges=[{"from": "paid", "to": "shipped"}])
    late = {"id": "late", "module": "wait_signal@1", "config": {"signal": "x", "timeout": "200ms"}}
    await made.apply("late-signal", [late])
    branches = [{"from": "ask", "to": "pay", "when": "approved"}, {"from": "ask", "to": "file", "when": "rejected"}]
    nodes = [{"id": name, "module": "noop@1"} for name in ("pay", "file")]
    for name, config in {
        "one-eye": {"title": "Pay?", "form": FORM},
        "four-eyes": {"title": "Pay {{ input.n }}?", "required": 2, "assignees": ["ann", "bob", "role:ADMIN"]},
        "late-approval": {"title": "Pay?", "timeout": "200ms", "onTimeout": "REJECT"},
    }.items():
        ask = {"id": "ask", "module": "approval@1", "config": config}
        await made.apply(name, [ask, *nodes], edges=branches)
    deferring = {"id": "away", "module": "test.defers@1", "inputs": {"file": "{{ input.file }}"}}
    await made.apply("deferred", [{**deferring, "retry": {"attempts": 2, "initialDelay": 0}}])
    await made.apply("deferred-briefly", [{**deferring, "timeout": "1s", "retry": {"attempts": 1}}])
    return made


def struct(value: dict[str, Any]) -> Struct:
    return json_format.ParseDict(value, Struct())


def plain(message: Any) -> Any:
    return json_format.MessageToDict(message)


async def sent(client: Client, execution_id: str, name: str, payload: Any = None, request_id: str = "") -> Any:
    request = executions_pb2.SignalExecutionRequest(
        execution_id=execution_id, signal=name, payload=struct(payload or {}), request_id=request_id
    )
    return await client.call(client.executions.SignalExecution, request)


async def signal(client: Client, execution_id: str, name: str, payload: Any = None, request_id: str = "") -> Execution:
    answer = await sent(client, execution_id, name, payload, request_id)
    return answer.execution  # type: ignore[no-any-return]


async def refusal_of(refused: Awaitable[Any]) -> RemoteError:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await refused
    return remote_error(error.value)


async def waiting(client: Client, execution_id: str) -> None:
    async def is_waiting() -> bool:
        return (await client.get(execution_id)).state == Execution.WAITING

    await eventually(is_waiting, 20.0, "the execution to wait")


# ── signals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_signal_wakes_its_node_and_an_early_one_is_kept(client: Client) -> None:
    execution = await client.start("two-signals")
    await waiting(client, execution.id)
    await signal(client, execution.id, "shipped", {"box": 9})
    assert (await client.get(execution.id)).state == Execution.WAITING
    await signal(client, execution.id, "paid", {"amount": 7})
    ended = await client.end_of(execution.id)
    assert (ended.state, plain(ended.output)) == (Execution.SUCCESS, {"shipped": {"box": 9}})


async def test_the_answer_says_whether_a_node_has_taken_the_signal(client: Client) -> None:
    answers = executions_pb2.SignalExecutionResponse
    execution = await client.start("two-signals")
    await waiting(client, execution.id)
    for name, delivery in (("shipped", answers.KEPT), ("paid", answers.TAKEN)):
        for _ in range(2):
            answer = await sent(client, execution.id, name, request_id=name)
            assert answers.Delivery.Name(answer.delivery) == answers.Delivery.Name(delivery)
    assert (await client.end_of(execution.id)).state == Execution.SUCCESS
    assert (await sent(client, execution.id, "paid", request_id="paid")).delivery == answers.TAKEN


async def test_a_signal_is_delivered_once_for_each_request_id(client: Client) -> None:
    execution = await client.start("two-signals")
    await waiting(client, execution.id)
    for _ in range(2):
        await signal(client, execution.id, "paid", {"n": 1}, request_id="pay-1")
    refused = await refusal_of(signal(client, execution.id, "paid", {"n": 2}, request_id="pay-1"))
    assert (refused.code, refused.reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED")
    await signal(client, execution.id, "shipped")
    assert (await client.end_of(execution.id)).state == Execution.SUCCESS
    again = await signal(client, execution.id, "paid", {"n": 1}, request_id="pay-1")
    assert again.state == Execution.SUCCESS, "a repeat gets the first answer"
    refused = await refusal_of(signal(client, execution.id, "paid", {"n": 1}))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "EXECUTION_FINAL")


async def test_a_signal_waits_for_an_execution_that_is_queued(shared_stack: Stack) -> None:
    client = await new_workspace(shared_stack, "one-signal", executions_max=1)
    await client.apply("slow", [{"id": "a", "module": "delay@1", "config": {"duration": "1s"}}])
    await client.apply("two-signals", TWO_SIGNALS, edges=[{"from": "paid", "to": "shipped"}])
    await client.start("slow")
    queued = await client.start("two-signals")
    answer = await sent(client, queued.id, "paid")
    assert (answer.execution.state, answer.delivery) == (Execution.PENDING, type(answer).UNDER_WAY)
    await signal(client, queued.id, "shipped", {"box": 1})
    assert plain((await client.end_of(queued.id)).output) == {"shipped": {"box": 1}}


async def test_a_wait_for_a_signal_that_is_late_fails(client: Client) -> None:
    ended = await client.run("late-signal")
    assert (ended.state, ended.error.type, ended.error.node) == (Execution.FAILED, "SIGNAL_TIMEOUT", "late")


async def test_a_payload_that_is_too_large_is_refused(client: Client) -> None:
    execution = await client.start("two-signals")
    refused = await refusal_of(signal(client, execution.id, "paid", {"x": "y" * 256 * 1024}))
    assert (refused.reason, refused.violations[0].reason) == ("INVALID_REQUEST", "TOO_LARGE")
    await client.cancel(execution.id)


# ── approvals ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def approvals(client: Client, filter_: str) -> list[Approval]:
    request = approvals_pb2.ListApprovalsRequest(filter=filter_)
    return list((await client.call(client.approvals.ListApprovals, request)).approvals)


async def asked(client: Client, workflow: str, **more: Any) -> Approval:
    """Start the workflow. Returns the approval that it asks for."""
    execution = await client.start(workflow, **more)

    async def look() -> Any:
        found = await approvals(client, f'execution_id = "{execution.id}"')
        return found[0] if found else None

    return await eventually(look, 20.0, "the approval")


async def decide(
    client: Client, approval: Approval, choice: str = "APPROVE", form: Any = None, request_id: str = ""
) -> Approval:
    request = approvals_pb2.DecideApprovalRequest(
        approval_id=approval.id, decision=Approval.Choice.Value(choice), comment="looks good", request_id=request_id
    )
    if form is not None:
        request.form.CopyFrom(struct(form))
    return (await client.call(client.approvals.DecideApproval, request)).approval  # type: ignore[no-any-return]


async def member(stack: Stack, title: str, role: workspaces_pb2.Role.ValueType) -> Client:
    request = workspaces_pb2.CreateApiKeyRequest(workspace="default", role=role, title=title)
    made = await ApiKeyServiceStub(stack.channel()).CreateApiKey(request, metadata=stack.metadata())
    return Client(stack, made.key)


async def test_an_approval_is_found_decided_with_a_form_and_takes_its_branch(client: Client) -> None:
    approval = await asked(client, "one-eye")
    assert (approval.title, approval.state, approval.required, approval.node) == ("Pay?", Approval.PENDING, 1, "ask")
    assert plain(approval.form)["required"] == ["amount"]
    for form in (None, {}, {"amount": 901}):
        refused = await refusal_of(decide(client, approval, form=form))
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "FORM_MISMATCH")
        assert refused.violations[0].field.startswith("form")
    decided = await decide(client, approval, form={"amount": 900})
    (decision,) = decided.decisions
    assert (decided.state, decision.comment, plain(decision.form)) == (Approval.APPROVED, "looks good", {"amount": 900})
    ended = await client.end_of(approval.execution_id)
    assert (ended.state, sorted(ended.summary.skipped)) == (Execution.SUCCESS, ["file"])
    again = await decide(client, approval, form={"amount": 1})
    assert again.state == Approval.APPROVED, "the same decision again"
    refused = await refusal_of(decide(client, approval, "REJECT"))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "ALREADY_RESOLVED")


async def test_four_eyes_are_two_different_keys(shared_stack: Stack, client: Client) -> None:
    ann = await member(shared_stack, "ann", workspaces_pb2.WORKFLOW)
    eve = await member(shared_stack, "eve", workspaces_pb2.WORKFLOW)
    approval = await asked(client, "four-eyes", input=struct({"n": 7}))
    assert (approval.title, list(approval.assignees)) == ("Pay 7?", ["ann", "bob", "role:ADMIN"])
    refused = await refusal_of(decide(eve, approval))
    assert (refused.code, refused.reason) == (grpc.StatusCode.PERMISSION_DENIED, "NOT_AN_ASSIGNEE")
    for _ in range(2):
        assert (await decide(ann, approval)).state == Approval.PENDING, "the same decision again"
    for choice, request_id in (("REJECT", ""), ("APPROVE", "another")):
        refused = await refusal_of(decide(ann, approval, choice, request_id=request_id))
        assert (refused.code, refused.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ALREADY_DECIDED")
    decided = await decide(client, approval)
    assert (decided.state, len(decided.decisions), decided.decisions[0].caller) == (Approval.APPROVED, 2, "ann")
    refused = await refusal_of(decide(ann, approval, request_id="another"))
    assert refused.reason == "ALREADY_DECIDED", "the first answer"
    refused = await refusal_of(decide(ann, approval, form={"other": 1}, request_id="another"))
    assert (refused.code, refused.reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED")
    ended = await client.end_of(approval.execution_id)
    assert (ended.state, list(ended.summary.skipped)) == (Execution.SUCCESS, ["file"])


async def test_an_approval_is_decided_once_when_many_decide_at_once(client: Client) -> None:
    approval = await asked(client, "one-eye")
    choices = [(choice, f"{choice}-{number}") for number in range(5) for choice in ("APPROVE", "REJECT")]
    deciding = [decide(client, approval, choice, {"amount": 1}, request_id) for choice, request_id in choices]
    answers = await asyncio.gather(*deciding, return_exceptions=True)
    decided = (await approvals(client, f'execution_id = "{approval.execution_id}"'))[0]
    assert len(decided.decisions) == 1
    same = [each for each in answers if isinstance(each, Approval)]
    assert {each.state for each in same} == {decided.state}
    others = [remote_error(each).reason for each in answers if isinstance(each, grpc.aio.AioRpcError)]
    assert len(same) == 5
    assert others == ["ALREADY_RESOLVED"] * 5


async def test_an_approval_that_nobody_decides_ends_as_its_node_says(client: Client) -> None:
    approval = await asked(client, "late-approval")
    ended = await client.end_of(approval.execution_id)
    assert (ended.state, list(ended.summary.skipped)) == (Execution.SUCCESS, ["pay"])
    (expired,) = await approvals(client, f'execution_id = "{approval.execution_id}"')
    assert expired.state == Approval.EXPIRED
    assert (await refusal_of(decide(client, approval))).reason == "ALREADY_RESOLVED"


async def test_approvals_are_listed_by_what_they_are(shared_stack: Stack, client: Client) -> None:
    approval = await asked(client, "four-eyes", input=struct({"n": 8}))
    await client.cancel(approval.execution_id)
    await client.end_of(approval.execution_id)
    own = f'execution_id = "{approval.execution_id}"'
    for filter_ in (
        "state = CANCELLED",
        'workflow = "four-eyes"',
        'assignee = "bob" AND assignee:"role:ADMIN"',
        'NOT assignee = "eve"',
        'title = "Pay*" AND node = ask',
        'create_time > "2026-01-01T00:00:00Z" AND NOT expire_time:*',
    ):
        assert [each.id for each in await approvals(client, f"{own} AND {filter_}")] == [approval.id], filter_
    for filter_ in ("state = PENDING", 'assignee = "eve"', 'assignee != "bob"', "expire_time:*"):
        assert await approvals(client, f"{own} AND {filter_}") == [], filter_
    refused = await refusal_of(approvals(client, "labels.x = y"))
    assert (refused.reason, refused.violations[0].reason) == ("INVALID_REQUEST", "BAD_FILTER")
    rival = await new_workspace(shared_stack, "approvals-rival", executions_max=1)
    assert await approvals(rival, "") == []
    request = approvals_pb2.GetApprovalRequest(approval_id=approval.id)
    refused = await refusal_of(rival.call(rival.approvals.GetApproval, request))
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "APPROVAL_NOT_FOUND")


async def test_approvals_have_pages(client: Client) -> None:
    started = [(await asked(client, "one-eye")).id for _ in range(3)]
    seen: list[str] = []
    request = approvals_pb2.ListApprovalsRequest(filter='workflow = "one-eye" AND state = PENDING', page_size=2)
    while True:
        answer = await client.call(client.approvals.ListApprovals, request)
        assert len(answer.approvals) <= 2
        seen += [each.id for each in answer.approvals]
        request.page_token = answer.next_page_token
        if not request.page_token:
            break
    assert seen[:3] == started[::-1]
    for id_ in started:
        await client.cancel(id_.partition(".")[0])


# ── work that somebody else finishes ─────────────────────────────────────────────────────────────────────────────────


async def token_in(file: Path, other_than: str = "") -> str:
    def read() -> Any:
        found = file.read_text() if file.exists() else ""
        return found if found not in ("", other_than) else None

    return await eventually(lambda: asyncio.to_thread(read), 20.0, "the token")


def by_token(client: Client, name: str, **fields: Any) -> Any:
    """A call without a key."""
    request = getattr(runs_pb2, f"{name}Request")(**fields)
    return getattr(client.runs, name)(request, timeout=client.call_seconds)


async def test_work_that_was_deferred_is_completed_by_its_token_alone(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "token"
    execution = await client.start("deferred", input=struct({"file": str(file)}))
    token = await token_in(file)
    await waiting(client, execution.id)
    (run,) = await client.runs_of(execution.id)
    assert run.state == resources_pb2.Run.RUNNING
    assert (await by_token(client, "HeartbeatRun", token=token, progress=0.5, message="half")).run_id == run.id

    async def is_half_done() -> bool:
        return (await client.runs_of(execution.id))[0].progress.message == "half"

    await eventually(is_half_done, 20.0, "the progress")
    for _ in range(2):
        answer = await by_token(client, "CompleteRun", token=token, output=struct({"paid": True}))
        assert answer.run_id == run.id
    ended = await client.end_of(execution.id)
    assert (ended.state, plain(ended.output)) == (Execution.SUCCESS, {"away": {"paid": True}})
    for name in ("FailRun", "HeartbeatRun"):
        refused = await refusal_of(by_token(client, name, token=token))
        assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "RUN_ENDED")


async def test_a_retried_attempt_has_a_token_of_its_own(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "token"
    execution = await client.start("deferred", input=struct({"file": str(file)}))
    first = await token_in(file)
    await by_token(client, "FailRun", token=first, type="BANK", message="closed", retryable=True)
    second = await token_in(file, first)
    assert (await refusal_of(by_token(client, "CompleteRun", token=first))).reason == "RUN_ENDED"
    await by_token(client, "FailRun", token=second, type="BANK", message="broke")
    ended = await client.end_of(execution.id)
    assert (ended.state, ended.error.type, ended.error.message) == (Execution.FAILED, "BANK", "broke")
    assert len(await client.runs_of(execution.id)) == 2


async def test_the_timeout_of_the_node_ends_work_that_was_deferred(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "token"
    ended = await client.run("deferred-briefly", input=struct({"file": str(file)}))
    assert (ended.state, ended.error.type) == (Execution.FAILED, "NODE_TIMEOUT")
    assert (await refusal_of(by_token(client, "CompleteRun", token=file.read_text()))).reason == "RUN_ENDED"


async def test_a_token_that_nobody_gave_out_opens_nothing(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "token"
    execution = await client.start("deferred", input=struct({"file": str(file)}))
    token = await token_in(file)
    other = token[:-1] + ("0" if token[-1] != "0" else "1")
    unknown = token.replace(token[:8], "00000000")
    for forged in (other, unknown, token.partition(".")[0], token.upper(), "x", f"{execution.id}.1."):
        for name in ("CompleteRun", "FailRun", "HeartbeatRun"):
            refused = await refusal_of(by_token(client, name, token=forged))
            assert (refused.code, refused.reason) == (grpc.StatusCode.UNAUTHENTICATED, "TOKEN_INVALID")
    await client.cancel(execution.id)
    await client.end_of(execution.id)
    assert (await refusal_of(by_token(client, "CompleteRun", token=token))).reason == "RUN_ENDED"


# ── the page and the command line ────────────────────────────────────────────────────────────────────────────────────


PAGE = Path(__file__).resolve().parents[2] / "docs" / "definitions.md"
EXAMPLES = {
    text.partition("\n")[0].removeprefix("name: "): parse(text, Format.YAML).document
    for text in re.findall(r"```yaml\n(name: [^`]*)```", PAGE.read_text())
}


async def shown(stack: Stack, *arguments: str, **environment: str) -> str:
    """What the command prints. It succeeds."""
    words = (*arguments, "--home", str(stack.options.home))
    done = await asyncio.to_thread(windlass, *words, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_the_example_of_a_signal_works_as_the_page_says(shared_stack: Stack, client: Client) -> None:
    await client.apply(**EXAMPLES["paid-order"])
    execution = await client.start("paid-order", input=struct({"order": 7}))
    await waiting(client, execution.id)
    told = await shown(shared_stack, "signal", execution.id, "paid-7", "--payload", '{"amount": 90}')
    assert execution.id in told
    ended = await client.end_of(execution.id)
    assert (ended.state, list(ended.summary.skipped)) == (Execution.SUCCESS, ["remind"])
    assert plain(ended.output) == {"ship": {"to": 7, "amount": 90}}


async def test_the_example_of_an_approval_works_as_the_page_says(shared_stack: Stack, client: Client) -> None:
    await client.apply(**EXAMPLES["pay-invoice"])
    approval = await asked(client, "pay-invoice", input=struct({"amount": 900, "to": "ann"}))
    assert approval.title == "Pay 900 EUR to ann?"
    books = await member(shared_stack, "bookkeeping", workspaces_pb2.WORKFLOW)
    await decide(books, approval, form={"account": "4711"})
    listed = await shown(shared_stack, "approvals", "list", "--filter", 'state = PENDING AND assignee = "role:ADMIN"')
    assert approval.id in listed
    assert "1 of 2" in listed
    decision = ("approvals", "decide", approval.id, "approve", "--form", '{"account": "0815"}')
    assert "APPROVED" in await shown(shared_stack, *decision, "--comment", "as agreed")
    assert "as agreed" in await shown(shared_stack, "approvals", "get", approval.id)
    ended = await client.end_of(approval.execution_id)
    assert plain(ended.output) == {"pay": {"from": "0815"}}


async def test_deferred_work_is_ended_on_the_command_line_without_a_key(
    shared_stack: Stack, client: Client, tmp_path: Path
) -> None:
    file, reference = tmp_path / "token", '{"reference": "B-12"}'
    execution = await client.start("deferred", input=struct({"file": str(file)}))
    token = await token_in(file)
    address = shared_stack.member("api").grpc
    for words in (("heartbeat", "--progress", "0.5"), ("complete", "--output", reference)):
        done = await asyncio.to_thread(windlass, "run", *words, "--address", address, WINDLASS_TOKEN=token)
        assert done.returncode == 0, done.stderr
    assert plain((await client.end_of(execution.id)).output) == {"away": {"reference": "B-12"}}
    late = ("run", "fail", "--token-file", str(file), "--address", address)
    assert "RUN_ENDED" in (await asyncio.to_thread(windlass, *late)).stderr
