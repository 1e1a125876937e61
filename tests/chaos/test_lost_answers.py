"""The answer of each RPC that changes something is lost after the commit. The repeat gets the same answer."""

import asyncio
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import json_format
from google.protobuf.message import Message

from tests.support.api import CHANGING, METHODS, method_on
from tests.support.probe import eventually
from tests.support.proxy import answer_lost
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import (
    approvals_pb2,
    circuits_pb2,
    dead_letters_pb2,
    executions_pb2,
    exports_pb2,
    resources_pb2,
    runs_pb2,
    workflows_pb2,
    workspaces_pb2,
)
from windlass.api.v1.exports_pb2_grpc import ExportServiceStub

CALL_SECONDS = 10.0
# These fields depend on the moment of the answer, not on the change.
_MOMENTARY = {"existing", "updateTime", "change", "windowStartTime"}
# An execution or a job goes on between two answers, but these fields stay.
_LASTING = {"id", "workflow", "version", "input", "requestId", "createTime", "labels", "action", "filter", "caller"}


class Calls:
    """Calls the methods of one stack by their names."""

    def __init__(self, stack: Stack) -> None:
        self.address = stack.member("api").grpc
        self._keys = {name: stack.metadata(name) for name in ("admin", "system")}
        self._near = stack.channel()
        self.stack = stack

    async def __call__(self, method: str, request: Message, channel: grpc.aio.Channel | None = None) -> Any:
        key = "system" if METHODS[method].containing_service.name == "WorkspaceService" else "admin"
        call = method_on(channel or self._near, METHODS[method])
        return await call(request.SerializeToString(), metadata=self._keys[key], timeout=CALL_SECONDS)

    async def unheard(self, method: str, request: Message) -> None:
        """The call is carried out to its end, and its answer is lost."""
        async with answer_lost(self.address) as door:
            options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(door.address, options=options) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await self(method, request, channel)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            assert door.swallowed == 1

    async def changes(self) -> int:
        """The number of changes that the audit has."""
        ((count,),) = await self.stack.rows("SELECT count(*) FROM api.audit")
        return int(count)


@dataclass(frozen=True)
class Case:
    """A call that changes something, and how often its result exists after it was called twice."""

    request: Callable[[Calls], Any]
    count: Callable[[Calls, Any], Any] | None = None


def _name(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


NAP: dict[str, Any] = {"module": "sleep@1", "config": {"duration": "1h"}}


def _definition(name: str, node: dict[str, Any] = NAP) -> workflows_pb2.ApplyWorkflowRequest:
    request = workflows_pb2.ApplyWorkflowRequest()
    json_format.ParseDict({"name": name, "nodes": [{"id": "nap", **node}]}, request.definition)
    return request


async def _workflow(calls: Calls) -> str:
    name = _name("lost")
    await calls("ApplyWorkflow", _definition(name))
    return name


async def _start(calls: Calls) -> executions_pb2.StartExecutionRequest:
    return executions_pb2.StartExecutionRequest(workflow=await _workflow(calls), request_id=uuid.uuid4().hex)


async def _batch(calls: Calls) -> executions_pb2.BatchStartExecutionsRequest:
    workflow = await _workflow(calls)
    one = executions_pb2.StartExecutionRequest
    requests = [one(workflow=workflow, request_id=uuid.uuid4().hex) for _ in range(3)]
    return executions_pb2.BatchStartExecutionsRequest(requests=requests)


async def _executions(calls: Calls, request: Any) -> int:
    workflow = getattr(request, "workflow", "") or request.requests[0].workflow
    listing = executions_pb2.ListExecutionsRequest(filter=f'workflow = "{workflow}"')
    return len((await calls("ListExecutions", listing)).executions) // len(getattr(request, "requests", [request]))


async def _cancel(calls: Calls) -> executions_pb2.CancelExecutionRequest:
    started = await calls("StartExecution", await _start(calls))
    return executions_pb2.CancelExecutionRequest(execution_id=started.execution.id, reason="enough")


async def _apply(calls: Calls) -> workflows_pb2.ApplyWorkflowRequest:
    """A change under an etag. After the call whose answer is lost, the etag is old."""
    request = _definition(_name("lost"))
    request.etag = (await calls("ApplyWorkflow", request)).workflow.etag
    request.definition["description"] = "new"
    return request


async def _versions(calls: Calls, request: Any) -> int:
    """The number of versions after the first one."""
    listing = workflows_pb2.ListWorkflowVersionsRequest(workflow=request.definition["name"])
    return len((await calls("ListWorkflowVersions", listing)).versions) - 1


async def _archive(calls: Calls) -> workflows_pb2.ArchiveWorkflowRequest:
    return workflows_pb2.ArchiveWorkflowRequest(workflow=await _workflow(calls))


async def _restore(calls: Calls) -> workflows_pb2.RestoreWorkflowRequest:
    archived = await _archive(calls)
    await calls("ArchiveWorkflow", archived)
    return workflows_pb2.RestoreWorkflowRequest(workflow=archived.workflow)


async def _create(_calls: Calls) -> workspaces_pb2.CreateWorkspaceRequest:
    return workspaces_pb2.CreateWorkspaceRequest(workspace=_name("w"), tier=workspaces_pb2.PRO)


async def _update(calls: Calls) -> workspaces_pb2.UpdateWorkspaceRequest:
    made = await calls("CreateWorkspace", await _create(calls))
    request = workspaces_pb2.UpdateWorkspaceRequest(workspace=made.workspace, etag=made.workspace.etag)
    request.workspace.limits.executions_max = 7
    request.update_mask.paths.append("limits.executions_max")
    return request


async def _delete(calls: Calls) -> workspaces_pb2.DeleteWorkspaceRequest:
    made = await calls("CreateWorkspace", await _create(calls))
    return workspaces_pb2.DeleteWorkspaceRequest(workspace=made.workspace.workspace)


async def _key(_calls: Calls) -> workspaces_pb2.CreateApiKeyRequest:
    title = _name("key")
    return workspaces_pb2.CreateApiKeyRequest(role=workspaces_pb2.VIEWER, title=title, request_id=title)


async def _keys(calls: Calls, request: Any) -> int:
    listed = await calls("ListApiKeys", workspaces_pb2.ListApiKeysRequest(page_size=1000))
    return [each.title for each in listed.api_keys].count(request.title)


async def _revoke(calls: Calls) -> workspaces_pb2.RevokeApiKeyRequest:
    made = await calls("CreateApiKey", await _key(calls))
    return workspaces_pb2.RevokeApiKeyRequest(key_id=made.api_key.key_id)


async def _open(_calls: Calls) -> circuits_pb2.OpenCircuitRequest:
    request = circuits_pb2.OpenCircuitRequest(target=f"x.y@1 {_name('target')}")
    request.until.FromSeconds(int(time.time()) + 3_600)
    return request


async def _reset(calls: Calls) -> circuits_pb2.ResetCircuitRequest:
    opened = await calls("OpenCircuit", await _open(calls))
    return circuits_pb2.ResetCircuitRequest(target=opened.circuit.target)


async def _signal(calls: Calls) -> executions_pb2.SignalExecutionRequest:
    started = await calls("StartExecution", await _start(calls))
    key = uuid.uuid4().hex
    return executions_pb2.SignalExecutionRequest(execution_id=started.execution.id, signal="go", request_id=key)


async def _signals(calls: Calls, request: Any) -> int:
    listing = executions_pb2.ListEventsRequest(execution_id=request.execution_id)
    return [each.type for each in (await calls("ListEvents", listing)).events].count("SignalReceived")


async def _started(calls: Calls, node: dict[str, Any]) -> str:
    """The id of an execution of one node."""
    name = _name("lost")
    await calls("ApplyWorkflow", _definition(name, node))
    request = executions_pb2.StartExecutionRequest(workflow=name)
    return str((await calls("StartExecution", request)).execution.id)


async def _decide(calls: Calls) -> approvals_pb2.DecideApprovalRequest:
    id_ = await _started(calls, {"module": "approval@1", "config": {"title": "Go on?", "required": 2}})
    listing = approvals_pb2.ListApprovalsRequest(filter=f'execution_id = "{id_}"')

    async def asked() -> Any:
        return list((await calls("ListApprovals", listing)).approvals)

    (approval,) = await eventually(asked, 20.0, "the approval")
    return approvals_pb2.DecideApprovalRequest(approval_id=approval.id, decision=resources_pb2.Approval.APPROVE)


async def _decisions(calls: Calls, request: Any) -> int:
    found = await calls("GetApproval", approvals_pb2.GetApprovalRequest(approval_id=request.approval_id))
    return len(found.approval.decisions)


async def _token(calls: Calls) -> str:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "token"
        await _started(calls, {"module": "test.defers@1", "inputs": {"file": str(file)}})
        return await eventually(lambda: asyncio.to_thread(_text, file), 20.0, "the token")


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def _complete(calls: Calls) -> runs_pb2.CompleteRunRequest:
    return runs_pb2.CompleteRunRequest(token=await _token(calls))


async def _fail(calls: Calls) -> runs_pb2.FailRunRequest:
    return runs_pb2.FailRunRequest(token=await _token(calls), type="LOST", message="it went wrong")


async def _heartbeat(calls: Calls) -> runs_pb2.HeartbeatRunRequest:
    return runs_pb2.HeartbeatRunRequest(token=await _token(calls), progress=0.5)


async def _failed(calls: Calls) -> str:
    """The id of an execution whose only run has failed for good."""
    id_ = await _started(calls, {"module": "fail@1", "config": {"type": "PERMANENT"}})

    async def has_ended() -> bool:
        shown = await calls("GetExecution", executions_pb2.GetExecutionRequest(execution_id=id_))
        return bool(shown.execution.state == resources_pb2.Execution.FAILED)

    await eventually(has_ended, 20.0, "the failure")
    return id_


def _counted(event: str) -> Callable[[Calls, Any], Any]:
    """How many such events the execution has that the request names by one of its ids."""

    async def count(calls: Calls, request: Any) -> int:
        fields = ("execution_id", "dead_letter_id", "run_id")
        named = next(getattr(request, name) for name in fields if hasattr(request, name))
        listing = executions_pb2.ListEventsRequest(execution_id=named.partition(".")[0])
        return [each.type for each in (await calls("ListEvents", listing)).events].count(event)

    return count


async def _pause(calls: Calls) -> executions_pb2.PauseExecutionRequest:
    execution_id = await _started(calls, NAP)
    return executions_pb2.PauseExecutionRequest(execution_id=execution_id, reason="lunch", request_id=uuid.uuid4().hex)


async def _resume(calls: Calls) -> executions_pb2.ResumeExecutionRequest:
    paused = await _pause(calls)
    await calls("PauseExecution", paused)
    return executions_pb2.ResumeExecutionRequest(execution_id=paused.execution_id, request_id=uuid.uuid4().hex)


async def _retry(calls: Calls) -> executions_pb2.RetryExecutionRequest:
    return executions_pb2.RetryExecutionRequest(execution_id=await _failed(calls), request_id=uuid.uuid4().hex)


async def _fork(calls: Calls) -> executions_pb2.ForkExecutionRequest:
    return executions_pb2.ForkExecutionRequest(execution_id=await _failed(calls), request_id=uuid.uuid4().hex)


async def _forks(calls: Calls, request: Any) -> int:
    listing = executions_pb2.ListExecutionsRequest(filter=f'origin_execution_id = "{request.execution_id}"')
    return len((await calls("ListExecutions", listing)).executions)


async def _import(calls: Calls) -> exports_pb2.ImportExecutionRequest:
    export = exports_pb2.ExportExecutionRequest(execution_id=await _failed(calls))
    stub: Any = ExportServiceStub(calls.stack.channel())
    answers = stub.ExportExecution(export, metadata=calls.stack.metadata(), timeout=CALL_SECONDS)
    parts = [part async for answer in answers for part in answer.parts]
    return exports_pb2.ImportExecutionRequest(parts=parts, request_id=uuid.uuid4().hex)


async def _copies(calls: Calls, request: Any) -> int:
    imported = request.parts[0].header.execution_id
    listing = executions_pb2.ListExecutionsRequest(filter=f'imported_execution_id = "{imported}"')
    return len((await calls("ListExecutions", listing)).executions)


async def _requeue(calls: Calls) -> dead_letters_pb2.RequeueDeadLetterRequest:
    letter = f"{await _failed(calls)}.1"
    return dead_letters_pb2.RequeueDeadLetterRequest(dead_letter_id=letter, request_id=uuid.uuid4().hex)


async def _discard(calls: Calls) -> dead_letters_pb2.DiscardDeadLetterRequest:
    return dead_letters_pb2.DiscardDeadLetterRequest(dead_letter_id=f"{await _failed(calls)}.1")


async def _given_up(calls: Calls) -> str:
    """The id of an execution that nobody could begin, because its definition was damaged where it is stored."""
    workflow = await _workflow(calls)
    which = f"WHERE workflow = '{workflow}'"
    ((whole,),) = await calls.stack.rows(f"SELECT definition FROM api.workflow_versions {which}")
    change = f"UPDATE api.workflow_versions SET definition = %s {which} RETURNING version"
    await calls.stack.rows(change, b'{"nodes": 1}')
    started = await calls("StartExecution", executions_pb2.StartExecutionRequest(workflow=workflow))
    letter = dead_letters_pb2.ListDeadLettersRequest(filter=f'execution_id = "{started.execution.id}"')

    async def is_given_up() -> bool:
        return bool((await calls("ListDeadLetters", letter)).dead_letters)

    await eventually(is_given_up, 30.0, "the execution to be given up")
    await calls.stack.rows(change, whole)
    return str(started.execution.id)


async def _requeue_execution(calls: Calls) -> dead_letters_pb2.RequeueDeadLetterRequest:
    letter = await _given_up(calls)
    return dead_letters_pb2.RequeueDeadLetterRequest(dead_letter_id=letter, notes="mended", request_id=uuid.uuid4().hex)


async def _discard_execution(calls: Calls) -> dead_letters_pb2.DiscardDeadLetterRequest:
    return dead_letters_pb2.DiscardDeadLetterRequest(dead_letter_id=await _given_up(calls), notes="not needed")


async def _resolutions(calls: Calls, request: Any) -> int:
    filter_ = f'execution_id = "{request.dead_letter_id}" AND resolution != PENDING'
    listing = dead_letters_pb2.ListDeadLettersRequest(filter=filter_)
    return len((await calls("ListDeadLetters", listing)).dead_letters)


async def _fix(calls: Calls) -> dead_letters_pb2.MarkDeadLetterFixedRequest:
    return dead_letters_pb2.MarkDeadLetterFixedRequest(dead_letter_id=f"{await _failed(calls)}.1", notes="by hand")


async def _quarantine(calls: Calls) -> dead_letters_pb2.QuarantineRunRequest:
    id_ = await _started(calls, {"module": "delay@1", "config": {"duration": "1h"}})
    listing = runs_pb2.ListRunsRequest(execution_id=id_)

    async def is_going() -> bool:
        return bool((await calls("ListRuns", listing)).runs)

    await eventually(is_going, 20.0, "the run")
    return dead_letters_pb2.QuarantineRunRequest(run_id=f"{id_}.1", notes="it hangs")


async def _bulk(calls: Calls, count: int = 1) -> executions_pb2.BulkExecutionsRequest:
    workflow = await _workflow(calls)
    requests = [executions_pb2.StartExecutionRequest(workflow=workflow)] * count
    await calls("BatchStartExecutions", executions_pb2.BatchStartExecutionsRequest(requests=requests))
    return executions_pb2.BulkExecutionsRequest(
        filter=f'workflow = "{workflow}"', action=resources_pb2.BulkJob.PAUSE, request_id=uuid.uuid4().hex
    )


async def _jobs(calls: Calls, request: Any) -> int:
    listed = await calls("ListBulkJobs", executions_pb2.ListBulkJobsRequest())
    return [each.filter for each in listed.jobs].count(request.filter)


async def _stop(calls: Calls) -> executions_pb2.StopBulkJobRequest:
    """Of a job that would go on for longer than the test."""
    began = await calls("BulkExecutions", await _bulk(calls, 100))
    return executions_pb2.StopBulkJobRequest(job=began.job.id)


# By the method, and what it is called with if there are several cases of it.
CASES = {
    "BulkExecutions": Case(_bulk, _jobs),
    "StopBulkJob": Case(_stop),
    "PauseExecution": Case(_pause, _counted("ExecutionPaused")),
    "ResumeExecution": Case(_resume, _counted("ExecutionResumed")),
    "RetryExecution": Case(_retry, _counted("ExecutionReopened")),
    "ForkExecution": Case(_fork, _forks),
    "ImportExecution": Case(_import, _copies),
    "RequeueDeadLetter": Case(_requeue, _counted("DeadLetterResolved")),
    "DiscardDeadLetter": Case(_discard, _counted("DeadLetterResolved")),
    "RequeueDeadLetter of an execution": Case(_requeue_execution, _resolutions),
    "DiscardDeadLetter of an execution": Case(_discard_execution, _resolutions),
    "MarkDeadLetterFixed": Case(_fix, _counted("DeadLetterResolved")),
    "QuarantineRun": Case(_quarantine, _counted("RunQuarantined")),
    "StartExecution": Case(_start, _executions),
    "BatchStartExecutions": Case(_batch, _executions),
    "CancelExecution": Case(_cancel),
    "OpenCircuit": Case(_open),
    "ResetCircuit": Case(_reset),
    "SignalExecution": Case(_signal, _signals),
    "DecideApproval": Case(_decide, _decisions),
    "CompleteRun": Case(_complete),
    "FailRun": Case(_fail),
    "HeartbeatRun": Case(_heartbeat),
    "ApplyWorkflow": Case(_apply, _versions),
    "ArchiveWorkflow": Case(_archive),
    "RestoreWorkflow": Case(_restore),
    "CreateWorkspace": Case(_create),
    "UpdateWorkspace": Case(_update),
    "DeleteWorkspace": Case(_delete),
    "CreateApiKey": Case(_key, _keys),
    "RevokeApiKey": Case(_revoke),
}


def method_of(case: str) -> str:
    return case.partition(" ")[0]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def calls() -> AsyncIterator[Calls]:
    modules = [Path(__file__).with_name("deferring_modules.py")]
    async with running_stack(modules=modules, extra_env=["api:WINDLASS_BULK_PER_SECOND=2"]) as stack:
        yield Calls(stack)


def test_every_method_that_changes_something_has_its_case() -> None:
    # A stream has no answer that is lost as a whole. Whoever loses it calls again under the same filter, which what was
    # resolved does not match any more.
    assert {method_of(case) for case in CASES} == CHANGING - {"BulkResolveDeadLetters"}


@pytest.mark.chaos
@pytest.mark.parametrize("name", list(CASES))
async def test_after_a_lost_answer_the_repeat_gets_the_same_and_nothing_is_done_twice(calls: Calls, name: str) -> None:
    case, method = CASES[name], method_of(name)
    request = await case.request(calls)
    await calls.unheard(method, request)
    changes = await calls.changes()
    once = _lasting(await calls(method, request))
    again = _lasting(await calls(method, request))
    assert once == again
    assert await calls.changes() == changes
    if case.count is not None:
        assert await case.count(calls, request) == 1


def _lasting(answer: Message) -> Any:
    return _kept(json_format.MessageToDict(answer))


def _kept(value: Any) -> Any:
    if isinstance(value, list):
        return [_kept(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {name: _kept(each) for name, each in value.items() if name not in _MOMENTARY}
    for going in {"execution", "job"} & set(kept):
        kept[going] = {name: kept[going].get(name) for name in _LASTING}
    return kept
