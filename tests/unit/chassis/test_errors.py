"""Refusals and the errors of other services pass through, and nothing of ours does."""

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from services.chassis.grpc.errors import (
    DETAILS_BYTES_MAX,
    DETAILS_KEY,
    DependencyUnavailable,
    QuotaViolation,
    Refusal,
    RemoteError,
    Violation,
    code_of,
    remote_error,
    remote_status,
    status_of,
    trailers_of,
)
from tests.support.pace import stall
from windlass.coordinator.v1 import sessions_pb2
from windlass.coordinator.v1.sessions_pb2_grpc import (
    RunnerOutputsServicer,
    RunnerOutputsStub,
    add_RunnerOutputsServicer_to_server,
)

CONTRACT = {
    "KEY_MISSING": "UNAUTHENTICATED",
    "KEY_INVALID": "UNAUTHENTICATED",
    "KEY_EXPIRED": "UNAUTHENTICATED",
    "ROLE_REQUIRED": "PERMISSION_DENIED",
    "WORKFLOW_NOT_FOUND": "NOT_FOUND",
    "EXECUTION_NOT_FOUND": "NOT_FOUND",
    "DEAD_LETTER_NOT_FOUND": "NOT_FOUND",
    "INVALID_REQUEST": "INVALID_ARGUMENT",
    "INVALID_DEFINITION": "INVALID_ARGUMENT",
    "INPUT_MISMATCH": "INVALID_ARGUMENT",
    "REQUEST_ID_REUSED": "ALREADY_EXISTS",
    "WORKSPACE_EXISTS": "ALREADY_EXISTS",
    "EXECUTION_FINAL": "FAILED_PRECONDITION",
    "EXECUTION_NOT_PAUSED": "FAILED_PRECONDITION",
    "WORKFLOW_ARCHIVED": "FAILED_PRECONDITION",
    "LEASE_FENCED": "FAILED_PRECONDITION",
    "ETAG_MISMATCH": "ABORTED",
    "QUEUE_FULL": "RESOURCE_EXHAUSTED",
    "DEPENDENCY_UNAVAILABLE": "UNAVAILABLE",
    "INTERNAL": "INTERNAL",
}


@pytest.mark.parametrize(("reason", "code"), CONTRACT.items())
def test_each_reason_has_the_code_of_the_contract(reason: str, code: str) -> None:
    assert code_of(reason).name == code


def test_an_unknown_reason_is_found_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="has no status code"):
        Refusal("WHATEVER", "?")


def test_a_refusal_survives_the_wire_whole() -> None:
    refusal = Refusal(
        "QUEUE_FULL",
        "the backlog is full",
        metadata={"workspace": "w", "try": "windlass queue"},
        violations=[Violation("input.id", "REQUIRED", "must be set")],
        retry_after=1.5,
        quota=[QuotaViolation("workspace:w", "100 queued")],
    )
    status = status_of(refusal)
    (info,) = [each for each in status.details if each.Is(error_details_pb2.ErrorInfo.DESCRIPTOR)]
    assert error_details_pb2.ErrorInfo.FromString(info.value).domain == "windlass"
    remote = remote_status(status)
    assert remote.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (remote.reason, remote.message) == ("QUEUE_FULL", "the backlog is full")
    assert remote.metadata == refusal.metadata
    assert remote.violations == refusal.violations
    assert remote.quota == refusal.quota
    assert remote.retry_after == 1.5
    passed_on = remote.refusal()
    assert isinstance(passed_on, Refusal)
    assert status_of(passed_on) == status


def test_two_faults_at_one_field_are_both_told() -> None:
    first, second, third = (Violation("a", "X", "first"), Violation("a", "Y", "second"), Violation("b", "X", "third"))
    refusal = Refusal("INVALID_REQUEST", "bad", violations=[first, second, first, third])
    assert remote_status(status_of(refusal)).violations == (first, second, third)


def test_fields_and_reasons_of_many_faults_come_before_their_descriptions() -> None:
    many = [Violation(f"definition.nodes[{n}].module", "UNKNOWN_MODULE", "x" * 200) for n in range(60)]
    remote = remote_status(status_of(Refusal("INVALID_DEFINITION", "60 faults", violations=many)))
    assert [(field, reason) for field, reason, _ in remote.violations] == [each[:2] for each in many]
    assert "violations_omitted" not in remote.metadata
    assert remote.violations[0] == many[0]


def test_faults_that_do_not_fit_into_trailers_are_counted() -> None:
    many = [Violation(f"nodes[{n}]", "CYCLE", "x" * 5_000) for n in range(2_000)]
    status = status_of(Refusal("INVALID_DEFINITION", "ü" * 10_000, metadata={"id": "y" * 9_000}, violations=many))
    remote = remote_status(status)
    assert len(trailers_of(status)[0][1]) < DETAILS_BYTES_MAX + 1_000
    assert remote.violations
    assert len(remote.violations) + int(remote.metadata["violations_omitted"]) == 2_000
    assert remote.message.endswith("…")


def test_text_that_cannot_be_encoded_does_not_break_the_answer() -> None:
    assert status_of(Refusal("INVALID_REQUEST", "half a pair \ud800")).message == "half a pair ?"


def test_a_fault_of_ours_shows_an_id_and_nothing_else() -> None:
    status = status_of(RuntimeError("SELECT secret FROM keys"))
    remote = remote_status(status)
    assert (remote.code, remote.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert remote.metadata.keys() == {"error_id"}
    assert remote.metadata["error_id"] in status.message
    assert b"SELECT" not in status.SerializeToString()
    assert b"RuntimeError" not in status.SerializeToString()


def test_a_dependency_that_is_away_asks_to_be_tried_again() -> None:
    remote = remote_status(status_of(DependencyUnavailable("the database", "host 10.0.0.1 refused")))
    assert (remote.code, remote.reason) == (grpc.StatusCode.UNAVAILABLE, "DEPENDENCY_UNAVAILABLE")
    assert remote.retry_after == 1.0
    assert remote.may_retry
    assert "10.0.0.1" not in remote.message
    assert isinstance(remote.refusal(), DependencyUnavailable)


def failed_call(code: grpc.StatusCode, details: str, status: status_pb2.Status | None = None) -> grpc.aio.AioRpcError:
    trailers = grpc.aio.Metadata(*(trailers_of(status) if status else ()))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, details=details)


def test_a_failed_call_without_details_is_known_by_its_code() -> None:
    remote = remote_error(failed_call(grpc.StatusCode.UNAVAILABLE, "connection refused"))
    assert (remote.code, remote.reason) == (grpc.StatusCode.UNAVAILABLE, "")
    assert str(remote) == "UNAVAILABLE : connection refused"


def test_a_failed_call_is_decoded_from_its_trailers() -> None:
    status = status_of(Refusal("ETAG_MISMATCH", "changed meanwhile"))
    error = failed_call(grpc.StatusCode.ABORTED, "changed meanwhile", status)
    assert (DETAILS_KEY, status.SerializeToString()) in list(error.trailing_metadata())
    assert remote_error(error).reason == "ETAG_MISMATCH"


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
def test_a_service_that_did_not_answer_is_a_dependency_for_our_caller(code: grpc.StatusCode) -> None:
    assert remote_status(status_of(failed_call(code, "x"))).reason == "DEPENDENCY_UNAVAILABLE"
    assert remote_status(status_of(TimeoutError())).code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_reason_of_a_newer_version_is_passed_on() -> None:
    remote = RemoteError(grpc.StatusCode.FAILED_PRECONDITION, "MOON_IN_THE_WAY", "wait for the tide")
    passed_on = remote.refusal()
    assert isinstance(passed_on, Refusal)
    assert (passed_on.code, passed_on.reason) == (remote.code, remote.reason)


def test_details_that_another_service_hides_stay_hidden() -> None:
    remote = RemoteError(grpc.StatusCode.INTERNAL, "INTERNAL", "internal error 1", metadata={"error_id": "1"})
    passed_on = remote.refusal()
    assert isinstance(passed_on, Refusal)
    assert (passed_on.reason, passed_on.metadata) == ("INTERNAL", {"error_id": "1"})
    assert remote_status(status_of(failed_call(grpc.StatusCode.UNKNOWN, "boom"))).reason == "INTERNAL"


class FullStore(RunnerOutputsServicer):
    """It has no room at the moment, and reads nothing."""

    async def UploadOutput(self, request_iterator: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room")

    DownloadOutput: Any = UploadOutput


def test_call_whose_answer_was_dropped_by_grpc_may_be_repeated() -> None:
    """grpc.aio makes this error up when the server has ended the call while more was being sent to it."""
    remote = remote_error(failed_call(grpc.StatusCode.INTERNAL, "Internal error from Core"))
    assert remote.may_retry
    assert isinstance(remote.refusal(), DependencyUnavailable)
    assert not remote_error(failed_call(grpc.StatusCode.INTERNAL, "internal error 7")).may_retry


async def test_call_that_is_refused_while_much_is_being_sent_brings_the_answer_or_may_be_repeated() -> None:
    """Whether grpc.aio drops the answer depends on the moment at which it arrives. No other error comes of it."""
    server = grpc.aio.server()
    add_RunnerOutputsServicer_to_server(FullStore(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    part = sessions_pb2.UploadOutputRequest(data=b"x" * 1024 * 1024)

    async def send_on() -> None:
        while True:
            await call.write(part)
            # The refusal arrives behind the back of the loop, as it does in a busy process.
            stall(0.05)

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = RunnerOutputsStub(channel).UploadOutput()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await send_on()
    await server.stop(None)
    remote = remote_error(failed.value)
    assert remote.may_retry or (remote.code, remote.message) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "no room")
