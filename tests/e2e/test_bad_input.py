"""A malformed, unknown, foreign or excessive request gets its own code and reason, and changes nothing.

There are two corpora against a running stack. One is made from the descriptors: every field of every public method is
broken in every way that its type allows. The other has named cases. Each answer is searched for text that must not get
out.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf import json_format, message_factory, struct_pb2
from google.protobuf.descriptor import FieldDescriptor

from services.chassis.grpc.errors import RemoteError
from tests.e2e.conftest import World
from tests.support.api import METHODS, answer_to
from tests.support.filters import FAULTY_FILTERS
from tests.support.nested import nested_struct, with_tag
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2, resources_pb2, runs_pb2, workflows_pb2

# The promised time. A slower answer is cut here and shows as DEADLINE_EXCEEDED.
ANSWER_SECONDS = 1.0
UNKNOWN_ID = "01a1ef02-cd5c-7fc1-ac68-79b46e7a0574"
LEAKS = ("Traceback", "psycopg", 'File "', "SELECT ", "INSERT ", "services.", "asyncio", "Exception", "127.0.0.1")
OF_SYSTEM = {"CreateWorkspace", "GetWorkspace", "ListWorkspaces", "UpdateWorkspace", "DeleteWorkspace"}
# A request that is well formed in every other field, and harmless.
WELL_FORMED: dict[str, dict[str, Any]] = {
    "StartExecution": {"workflow": "ghost"},
    "BatchStartExecutions": {"requests": [{"workflow": "ghost"}]},
    "GetExecution": {"executionId": UNKNOWN_ID},
    "WatchExecution": {"executionId": UNKNOWN_ID},
    "CancelExecution": {"executionId": UNKNOWN_ID},
    "ForkExecution": {"executionId": UNKNOWN_ID},
    "ListEvents": {"executionId": UNKNOWN_ID},
    "BulkExecutions": {"filter": "state = FAILED", "action": "CANCEL", "dryRun": True},
    "GetBulkJob": {"job": UNKNOWN_ID},
    "StopBulkJob": {"job": UNKNOWN_ID},
    "SignalExecution": {"executionId": UNKNOWN_ID, "signal": "go"},
    "GetApproval": {"approvalId": f"{UNKNOWN_ID}.1"},
    "DecideApproval": {"approvalId": f"{UNKNOWN_ID}.1", "decision": "APPROVE"},
    "CompleteRun": {"token": f"{UNKNOWN_ID}.1.abc"},
    "FailRun": {"token": f"{UNKNOWN_ID}.1.abc"},
    "HeartbeatRun": {"token": f"{UNKNOWN_ID}.1.abc"},
    "GetRun": {"runId": f"{UNKNOWN_ID}.1"},
    "GetRunOutput": {"runId": f"{UNKNOWN_ID}.1"},
    "ExportExecution": {"executionId": UNKNOWN_ID},
    "ReplayExecution": {"executionId": UNKNOWN_ID},
    "ReplayExport": {"parts": [{"header": {"format": 1, "executionId": UNKNOWN_ID}}]},
    "ImportExecution": {"parts": [{"header": {"format": 1, "executionId": UNKNOWN_ID}}]},
    "GetRunInputs": {"runId": f"{UNKNOWN_ID}.1"},
    "GetRunInputsJson": {"runId": f"{UNKNOWN_ID}.1"},
    "GetWorkflow": {"workflow": "ghost"},
    "ListWorkflowVersions": {"workflow": "ghost"},
    "ArchiveWorkflow": {"workflow": "ghost"},
    "RestoreWorkflow": {"workflow": "ghost"},
    "ApplyWorkflow": {"definition": {"name": "UPPER"}},
    "ValidateWorkflow": {"definition": {"name": "UPPER"}},
    "GetCircuit": {"target": "x.y@1 ghost"},
    "ResetCircuit": {"target": "x.y@1 ghost"},
    "OpenCircuit": {"target": "x.y@1 ghost", "until": "2020-01-01T00:00:00Z"},
    "CreateWorkspace": {"workspace": "UPPER"},
    "GetWorkspace": {"workspace": "ghost"},
    "UpdateWorkspace": {"workspace": {"workspace": "ghost", "tier": "PRO"}, "updateMask": "tier"},
    "DeleteWorkspace": {"workspace": "ghost"},
    "CreateApiKey": {"workspace": "ghost", "role": "VIEWER"},
    "RevokeApiKey": {"keyId": UNKNOWN_ID},
}


def structured(document: dict[str, Any]) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(document)
    return struct


async def answer(
    world: World, name: str, raw: bytes, metadata: list[tuple[str, str]] | None = None, seconds: float = ANSWER_SECONDS
) -> RemoteError:
    """The answer of the method to these bytes."""
    key = "system" if name in OF_SYSTEM else "admin"
    channel: Any = world.stack.channel()
    try:
        found = await answer_to(channel, METHODS[name], raw, metadata or world.stack.metadata(key), seconds)
    finally:
        await channel.close()
    told = f"{found.message} {found.metadata} {found.violations}"
    assert not [leak for leak in LEAKS if leak in told], told
    return found


async def rows(stack: Stack) -> dict[str, int]:
    """The number of rows in each table to which a request could add one."""
    own = (
        f"api.{table}" for table in ("workflows", "workflow_versions", "workspaces", "api_keys", "audit", "bulk_jobs")
    )
    return await stack.counts(*own, "coordinator.executions", "coordinator.journal")


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────────────────────────

# These take a definition, an input or a list (docs/security.md). All others take little.
TAKE_DOCUMENTS = {
    "ApplyWorkflow",
    "ValidateWorkflow",
    "StartExecution",
    "BatchStartExecutions",
    "SignalExecution",
    "RetryExecution",
    "ForkExecution",
    "BulkExecutions",
    "RequeueDeadLetter",
    "MarkDeadLetterFixed",
    "BulkResolveDeadLetters",
    "ReplayExport",
    "ImportExecution",
}
DOCUMENT_BYTES_MAX, SMALL_BYTES_MAX = 4 * 1024 * 1024, 64 * 1024
# No message has a field with this number.
UNKNOWN_FIELD = 15_000


def of_size(name: str, size: int) -> bytes:
    """A request of the method that has so many bytes, most of them in a field that it does not know."""
    raw = bytes(base(name).SerializeToString())
    missing = size - len(raw)
    padding = next(
        padded for count in range(missing, 0, -1) if len(padded := with_tag(UNKNOWN_FIELD, b"x" * count)) == missing
    )
    return raw + padding


@pytest.mark.parametrize("name", sorted(METHODS))
async def test_a_request_of_the_largest_size_is_read_and_a_larger_one_refused(world: World, name: str) -> None:
    most = DOCUMENT_BYTES_MAX if name in TAKE_DOCUMENTS else SMALL_BYTES_MAX
    largest = await answer(world, name, of_size(name, most), seconds=20.0)
    assert largest.code is grpc.StatusCode.OK or largest.code in _HARMLESS, largest
    larger = await answer(world, name, of_size(name, most + 1), seconds=20.0)
    assert (larger.code.name, larger.reason) == ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE")


# ── made from the descriptors ────────────────────────────────────────────────────────────────────────────────────────


class Broken(NamedTuple):
    method: str
    what: str
    raw: Callable[[], bytes]

    def __str__(self) -> str:
        return f"{self.method}-{self.what}"


def base(name: str) -> Any:
    request = message_factory.GetMessageClass(METHODS[name].input_type)()
    return json_format.ParseDict(WELL_FORMED.get(name, {}), request)


# Free JSON, and the events of an export, which tests/e2e/test_replay.py and tests/unit/cli/test_export_text.py break.
APART = ("google.", "windlass.journal.v1.Event")


def scalar_fields(descriptor: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldDescriptor]]:
    """Every field of a request that holds one value, also in inner messages. Free JSON and maps are tested apart."""
    for field in descriptor.fields:
        if field.message_type is None:
            if not field.is_repeated:
                yield (*prefix, field.name), field
        elif not field.message_type.full_name.startswith(APART) and not field.message_type.GetOptions().map_entry:
            yield from scalar_fields(field.message_type, (*prefix, field.name))


def with_value(name: str, path: tuple[str, ...], value: Any) -> Callable[[], bytes]:
    def make() -> bytes:
        request = base(name)
        holder = request
        for step in path[:-1]:
            inner = getattr(holder, step)
            holder = inner[0] if hasattr(inner, "append") else inner
        setattr(holder, path[-1], value)
        return bytes(request.SerializeToString())

    return make


BY_TYPE: dict[int, list[tuple[str, Any]]] = {
    FieldDescriptor.TYPE_STRING: [
        ("nul", "a\x00b"),
        ("oversized", "x" * 5_000),
        ("strange", "../\u202e'; --\U0001f600"),
    ],
    FieldDescriptor.TYPE_ENUM: [("wrong", 99), ("negative", -1)],
    FieldDescriptor.TYPE_INT32: [("negative", -1), ("least", -(2**31)), ("greatest", 2**31 - 1)],
    FieldDescriptor.TYPE_INT64: [("negative", -1), ("least", -(2**63)), ("greatest", 2**63 - 1)],
}


def generated() -> Iterator[Broken]:
    for name, method in METHODS.items():
        yield Broken(name, "empty", lambda: b"")
        yield Broken(name, "garbage", lambda: b"\xff\xff\xff\xff")
        yield Broken(name, "truncated", lambda: b"\x0a\x20abc")
        yield Broken(name, "bad-utf8", lambda: b"\x0a\x02\xc3\x28")
        for path, field in scalar_fields(method.input_type):
            for what, value in BY_TYPE.get(field.type, []):
                yield Broken(name, f"{what}-{'.'.join(path)}", with_value(name, path, value))


# A request without a field, or with another free text, is still well formed.
FINE_WHEN = ("empty", "strange", "greatest", "bad-utf8", "oversized-requests.request_id")


_HARMLESS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ABORTED,
    # A token that nobody has given out.
    grpc.StatusCode.UNAUTHENTICATED,
)


@pytest.mark.parametrize("name", sorted(METHODS))
async def test_field_that_is_broken_in_any_way_harms_nothing(world: World, name: str) -> None:
    before = await rows(world.stack)
    for broken in generated():
        if broken.method != name:
            continue
        found = await answer(world, name, broken.raw())
        if found.code is grpc.StatusCode.OK:
            is_fine = broken.what.startswith(FINE_WHEN) or name in ("BatchStartExecutions", "ValidateWorkflow")
            assert is_fine, f"{broken} was answered with OK"
            continue
        assert found.code in _HARMLESS, f"{broken}: {found}"
        assert found.reason, f"{broken}: {found}"
        if broken.what.startswith(("nul", "garbage", "truncated", "wrong")):
            assert (found.code.name, found.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST"), f"{broken}: {found}"
    assert await rows(world.stack) == before


# ── with a name ──────────────────────────────────────────────────────────────────────────────────────────────────────


def asked(name: str, **fields: Any) -> tuple[str, Any]:
    """The method, and a request with these fields."""
    return name, message_factory.GetMessageClass(METHODS[name].input_type)(**fields)


def start(**fields: Any) -> tuple[str, Any]:
    return asked("StartExecution", **fields)


def definition(**fields: Any) -> tuple[str, Any]:
    request = workflows_pb2.ApplyWorkflowRequest()
    json_format.ParseDict({"name": "bad", **fields}, request.definition)
    return "ApplyWorkflow", request


def with_number(number: float) -> struct_pb2.Struct:
    struct = structured({"id": 1})
    struct.fields["x"].number_value = number
    return struct


def listing(**fields: Any) -> tuple[str, Any]:
    return asked("ListExecutions", **fields)


NODE = {"id": "a", "module": "noop@1"}
# The requests by the code and reason of their answer.
CASES: dict[tuple[str, str], dict[str, tuple[str, Any]]] = {
    ("INVALID_ARGUMENT", "INPUT_MISMATCH"): {
        "input that does not fit": start(workflow="ours", input=structured({"id": "x"})),
        "input without what is needed": start(workflow="ours"),
    },
    ("INVALID_ARGUMENT", "INVALID_REQUEST"): {
        "input with NaN": start(workflow="ours", input=with_number(float("nan"))),
        "input with infinity": start(workflow="ours", input=with_number(float("-inf"))),
        "input with NUL": start(workflow="ours", input=structured({"id": 1, "x": "\x00"})),
        "input too large": start(workflow="ours", input=structured({"id": 1, "x": "y" * 262_144})),
        "too many labels": start(workflow="ours", labels={str(number): "x" for number in range(33)}),
        "priority 6": start(workflow="ours", priority=6),
        "key with an end in the past": asked("CreateApiKey", role="VIEWER", expire_time={"seconds": 1_577_836_800}),
        **{f"filter {text[:24]}": listing(filter=text) for text in FAULTY_FILTERS},
        "unknown order": listing(order_by="state"),
        "job without a filter": asked("BulkExecutions", action="CANCEL"),
        "job without an action": asked("BulkExecutions", filter="state = FAILED"),
        "job with a faulty filter": asked("BulkExecutions", filter="state = BLUE", action="CANCEL"),
        "job with overrides that are no objects": asked(
            "BulkExecutions", filter="state = FAILED", action="RETRY", input_overrides=structured({"node": 1})
        ),
        "page token that is none": listing(page_token="zzz"),
        "page token with a wrong place": listing(page_token="W10"),
        "page of 1,001": listing(page_size=1001),
        "circuit of no module": asked("OpenCircuit", target="ghost", until={"seconds": 4_000_000_000}),
        "circuit that is open until the past": asked("OpenCircuit", target="x.y@1 z", until={"seconds": 1_577_836_800}),
        "circuit that is open for ages": asked("OpenCircuit", target="x.y@1 z", until={"seconds": 99_999_999_999}),
        "circuit that is open for no time": asked("OpenCircuit", target="x.y@1 z"),
        "batch of none": asked("BatchStartExecutions"),
        "batch of 1,001": asked("BatchStartExecutions", requests=[{"workflow": "ours"}] * 1_001),
        "etag with NUL": asked("ApplyWorkflow", definition={"name": "new"}, etag="\x00"),
    },
    ("INVALID_ARGUMENT", "INVALID_EXPORT"): {
        "export of nothing": asked("ReplayExport"),
        "export that begins with its end": asked("ReplayExport", parts=[{"end": {"events": 1}}]),
        "export without a definition": asked("ReplayExport", parts=[{"header": {"format": 1}}]),
        "export whose definition is no text": asked("ReplayExport", parts=[{"header": {"definition": b"\xff"}}]),
        "import of nothing": asked("ImportExecution"),
        "import that begins with its end": asked("ImportExecution", parts=[{"end": {"events": 1}}]),
        "import without a definition": asked("ImportExecution", parts=[{"header": {"format": 1}}]),
    },
    ("NOT_FOUND", "WORKFLOW_NOT_FOUND"): {
        "unknown workflow": start(workflow="ghost"),
        "foreign workflow": start(workflow="theirs"),
    },
    ("NOT_FOUND", "VERSION_NOT_FOUND"): {"unknown version": start(workflow="ours", version=9)},
    ("NOT_FOUND", "EXECUTION_NOT_FOUND"): {
        "unknown execution": asked("GetExecution", execution_id=UNKNOWN_ID),
        "id that is none": asked("GetExecution", execution_id="' OR 1=1"),
        "export of an unknown execution": asked("ExportExecution", execution_id=UNKNOWN_ID),
        "replay of an unknown execution": asked("ReplayExecution", execution_id=UNKNOWN_ID),
        "replay of what is no execution": asked("ReplayExecution", execution_id="' OR 1=1"),
    },
    ("NOT_FOUND", "BULK_JOB_NOT_FOUND"): {
        "unknown job": asked("GetBulkJob", job=UNKNOWN_ID),
        "stop of an unknown job": asked("StopBulkJob", job=UNKNOWN_ID),
        "job that is none": asked("GetBulkJob", job="' OR 1=1"),
    },
    ("NOT_FOUND", "RUN_NOT_FOUND"): {
        "unknown run": asked("GetRun", run_id=f"{UNKNOWN_ID}.1"),
        "output of an unknown run": asked("GetRunOutput", run_id=f"{UNKNOWN_ID}.1"),
        "output of what is no run": asked("GetRunOutput", run_id="' OR 1=1"),
        "inputs of an unknown run": asked("GetRunInputs", run_id=f"{UNKNOWN_ID}.1"),
        "inputs of what is no run": asked("GetRunInputs", run_id="' OR 1=1"),
        "large inputs of an unknown run": asked("GetRunInputsJson", run_id=f"{UNKNOWN_ID}.1"),
    },
    ("NOT_FOUND", "CIRCUIT_NOT_FOUND"): {
        "unknown circuit": asked("GetCircuit", target="x.y@1 ghost"),
        "reset of an unknown circuit": asked("ResetCircuit", target="x.y@1 ghost"),
    },
    ("NOT_FOUND", "APPROVAL_NOT_FOUND"): {
        "unknown approval": asked("GetApproval", approval_id=f"{UNKNOWN_ID}.1"),
        "approval that is none": asked("GetApproval", approval_id="' OR 1=1"),
        "decision about an unknown approval": asked(
            "DecideApproval", approval_id=f"{UNKNOWN_ID}.1", decision="APPROVE"
        ),
    },
    ("UNAUTHENTICATED", "TOKEN_INVALID"): {
        "token of nothing": asked("CompleteRun", token="x"),
        "token of an unknown run": asked("FailRun", token=f"{UNKNOWN_ID}.1.{'0' * 64}"),
    },
    ("NOT_FOUND", "API_KEY_NOT_FOUND"): {"unknown key": asked("RevokeApiKey", key_id=UNKNOWN_ID)},
    ("NOT_FOUND", "WORKSPACE_NOT_FOUND"): {"foreign workspace": asked("ListApiKeys", workspace="rival")},
    ("INVALID_ARGUMENT", "INVALID_DEFINITION"): {
        "dangling edge": definition(nodes=[NODE], edges=[{"from": "a", "to": "b"}]),
        "2,001 nodes": definition(nodes=[{"id": f"n{number}", "module": "noop@1"} for number in range(2001)]),
        "definition of over a mebibyte": definition(initialState={"x": "y" * 1_048_576}),
        "schema that points outside": definition(inputSchema={"$ref": "http://example.org/x"}),
    },
    ("ABORTED", "ETAG_MISMATCH"): {"etag of nothing": asked("ApplyWorkflow", definition={"name": "new"}, etag="7")},
    ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE"): {
        "message of over 4 MiB": definition(initialState={"x": "y" * (4 * 1_048_576)})
    },
}


BY_NAME = {name: (told, *request) for told, cases in CASES.items() for name, request in cases.items()}


@pytest.mark.parametrize("case", sorted(BY_NAME))
async def test_case_has_its_code_and_reason(world: World, case: str) -> None:
    (code, reason), name, request = BY_NAME[case]
    before = await rows(world.stack)
    found = await answer(world, name, request.SerializeToString())
    assert (found.code.name, found.reason) == (code, reason), found
    assert await rows(world.stack) == before


async def test_foreign_execution_answers_as_one_that_never_was(world: World) -> None:
    of_execution = ("GetExecution", "WatchExecution", "CancelExecution", "ForkExecution", "SignalExecution")
    for name in (*of_execution, "ListEvents", "ListRuns"):
        told = []
        for execution_id in (world.rival_execution, UNKNOWN_ID):
            _, request = asked(name, execution_id=execution_id, **({"signal": "go"} if "Signal" in name else {}))
            found = await answer(world, name, request.SerializeToString())
            told.append((found.code.name, found.reason, found.message))
        assert told[0] == told[1] == ("NOT_FOUND", "EXECUTION_NOT_FOUND", told[0][2])
    run = runs_pb2.GetRunRequest(run_id=f"{world.rival_execution}.1").SerializeToString()
    for name in ("GetRun", "GetRunOutput", "GetRunInputs", "GetRunInputsJson"):
        assert (await answer(world, name, run)).reason == "RUN_NOT_FOUND"
        assert (await answer(world, name, run, world.rival.metadata)).code is grpc.StatusCode.OK


async def test_all_faults_of_a_definition_come_with_their_paths(world: World) -> None:
    request = definition(name="BAD", nodes=[{"id": "A", "module": "noop"}], edges=[{"from": "x", "to": "y"}])[1]
    found = await answer(world, "ApplyWorkflow", request.SerializeToString())
    assert {violation.field for violation in found.violations} == {
        "definition.name",
        "definition.nodes[0].id",
        "definition.nodes[0].module",
        "definition.edges[0].from",
        "definition.edges[0].to",
    }


async def test_what_is_no_json_is_a_fault_of_the_definition_among_the_others(world: World) -> None:
    broken = structured({"name": "BAD", "initialState": {"nul": "\x00"}, "timeout": 1})
    broken.fields["initialState"].struct_value.fields["nan"].number_value = float("nan")
    broken.fields["timeout"].number_value = float("inf")
    expected = {
        ("name", "MALFORMED_NAME"),
        ("initialState.nul", "NUL"),
        ("initialState.nan", "NOT_A_NUMBER"),
        ("timeout", "NOT_A_NUMBER"),
    }
    request = workflows_pb2.ApplyWorkflowRequest(definition=broken)
    found = await answer(world, "ApplyWorkflow", request.SerializeToString())
    assert found.reason == "INVALID_DEFINITION"
    assert {(each.field.removeprefix("definition."), each.reason) for each in found.violations} == expected


def deep(depth: int) -> struct_pb2.Struct:
    return struct_pb2.Struct.FromString(nested_struct(depth))


async def test_input_of_30_levels_is_taken_and_of_31_refused(world: World) -> None:
    await world.client.apply("deep", [{"id": "a", "module": "noop@1"}])
    run = await world.client.run("deep", input=deep(30))
    assert run.state == resources_pb2.Execution.SUCCESS
    assert run.input == deep(30)
    start = with_tag(1, b"deep")
    for depth, field in ((31, "input" + ".a" * 30), (34, ""), (100_000, "")):
        found = await answer(world, "StartExecution", start + with_tag(3, nested_struct(depth)))
        assert (found.code.name, found.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        assert [(each.field, each.reason) for each in found.violations] == [(field, "TOO_DEEP")]
    batch = executions_pb2.BatchStartExecutionsRequest(
        requests=[
            executions_pb2.StartExecutionRequest(workflow="deep", input=deep(30)),
            executions_pb2.StartExecutionRequest(workflow="deep", input=deep(31)),
        ]
    )
    taken, refused = (await world.client.call(world.client.executions.BatchStartExecutions, batch)).items
    assert taken.result.execution.input == deep(30)
    assert "nested deeper than 30" in refused.status.message


async def test_command_line_sends_and_shows_30_levels(world: World) -> None:
    deep = '{"a": ' * 30 + "1" + "}" * 30
    command = (sys.executable, "-m", "windlass.cli", "start", "deep", "--wait", "--json", "--input", deep)
    started = await asyncio.create_subprocess_exec(
        *command, "--home", str(world.stack.options.home), stdout=asyncio.subprocess.PIPE
    )
    told, _ = await started.communicate()
    assert started.returncode == 0
    assert json.loads(told)["input"] == json.loads(deep)


async def test_refusals_say_what_to_try(world: World) -> None:
    for case in (
        "unknown workflow",
        "unknown version",
        "unknown execution",
        "unknown run",
        "unknown approval",
        "unknown key",
    ):
        _, name, request = BY_NAME[case]
        found = await answer(world, name, request.SerializeToString())
        assert found.metadata["try"].startswith("windlass "), json.dumps(found.metadata)
