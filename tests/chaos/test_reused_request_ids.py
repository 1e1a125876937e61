"""A request id belongs to one content. Other content under it is refused, whatever dies and which answer is lost."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import grpc
import orjson
import pytest
from google.protobuf.message import Message

from services.chassis.grpc.errors import remote_error
from tests.chaos.test_lost_answers import CASES, Calls, calls, method_of
from tests.support.api import METHODS
from tests.support.probe import eventually


def _with_override(request: Any) -> None:
    request.input_overrides["nap"] = {"n": 1}


def _with_other_definition(request: Any) -> None:
    header = request.parts[0].header
    definition = orjson.loads(header.definition) | {"description": "another one"}
    header.definition = orjson.dumps(definition, option=orjson.OPT_SORT_KEYS)


__all__ = ["calls"]

# How the content of a request becomes another one.
OTHER: dict[str, Callable[[Any], None]] = {
    "StartExecution": lambda request: request.input.update({"n": 1}),
    "ForkExecution": lambda request: request.input.update({"n": 1}),
    "ImportExecution": _with_other_definition,
    "PauseExecution": lambda request: setattr(request, "reason", "another one"),
    "SignalExecution": lambda request: request.payload.update({"n": 1}),
    "RetryExecution": _with_override,
    "RequeueDeadLetter": lambda request: request.input_overrides.update({"n": 1}),
    "RequeueDeadLetter of an execution": lambda request: setattr(request, "notes", "another one"),
    "DecideApproval": lambda request: setattr(request, "comment", "another one"),
    "BulkExecutions": lambda request: setattr(request, "reason", "another one"),
    "CreateApiKey": lambda request: setattr(request, "title", "another one"),
}
# It has no content besides the execution, and an id that was used for another execution is another id.
WITHOUT_CONTENT = {"ResumeExecution"}


def test_every_method_with_a_request_id_has_its_case() -> None:
    named = {name for name, method in METHODS.items() if "request_id" in method.input_type.fields_by_name}
    assert named == {method_of(case) for case in OTHER} | WITHOUT_CONTENT


async def reason_of(calls: Calls, method: str, request: Message) -> tuple[grpc.StatusCode, str]:
    """How the request is refused. It is sent again while api comes back, and until the first command is carried out,
    because a call that is not decided in time is answered as if it were accepted."""

    async def refusal() -> grpc.aio.AioRpcError | None:
        try:
            await calls(method, request)
        except grpc.aio.AioRpcError as failure:
            return None if failure.code() is grpc.StatusCode.UNAVAILABLE else failure
        return None

    failure = await eventually(refusal, 60.0, "a refusal")
    return failure.code(), remote_error(failure).reason


async def again(calls: Calls, method: str, request: Message) -> Any:
    async def answered() -> Any:
        try:
            return await calls(method, request)
        except grpc.aio.AioRpcError as failure:
            if failure.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
        return None

    return await eventually(answered, 60.0, "an answer of the api that was killed")


@pytest.mark.chaos
@pytest.mark.parametrize("name", list(OTHER))
async def test_other_content_under_a_request_id_is_refused_also_after_a_kill(calls: Calls, name: str) -> None:
    request, method = await CASES[name].request(calls), method_of(name)
    if not request.request_id:
        request.request_id = uuid.uuid4().hex
    other = type(request)()
    other.CopyFrom(request)
    OTHER[name](other)
    await calls.unheard(method, request)
    calls.stack.kill("api")
    reused = (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED")
    assert await reason_of(calls, method, other) == reused
    await again(calls, method, request)
    assert await reason_of(calls, method, other) == reused, "the repeat did not make it the first one"


@pytest.mark.chaos
@pytest.mark.parametrize(
    "name", ["SignalExecution", "RetryExecution", "DecideApproval", "RequeueDeadLetter of an execution"]
)
async def test_of_two_contents_under_one_request_id_at_once_one_counts(calls: Calls, name: str) -> None:
    request, method = await CASES[name].request(calls), method_of(name)
    request.request_id = uuid.uuid4().hex
    other = type(request)()
    other.CopyFrom(request)
    OTHER[name](other)
    await asyncio.gather(*(calls(method, each) for each in (request, other) * 3), return_exceptions=True)

    async def decided() -> list[str] | None:
        """A call that is not decided in time is answered as if it were accepted."""
        answers = await asyncio.gather(*(calls(method, each) for each in (request, other)), return_exceptions=True)
        reasons = [remote_error(each).reason for each in answers if isinstance(each, grpc.aio.AioRpcError)]
        return reasons or None

    assert await eventually(decided, 60.0, "one of the two to be refused") == ["REQUEST_ID_REUSED"]
    count = CASES[name].count
    assert count is not None
    assert await count(calls, request) == 1
