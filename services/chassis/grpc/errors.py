"""The one place where a gRPC status code is chosen, and where errors cross the wire in both directions.

Code of ours raises (or returns) a `Refusal` that names a reason; what code that reason means is in the
tables below and nowhere else. What is not a refusal is ours: the client gets INTERNAL and an error id, the
log gets the rest under that id; never a traceback, a class name or SQL to the client.
Hazard: details travel in trailers, of which a client accepts 8 KiB by default, so all is clipped to fit:
a longer list of violations belongs into a response message.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import grpc
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2, status_pb2
from google.rpc.code_pb2 import Code

from services.chassis.process.naming import COMMANDS, ERROR_DOMAIN
from services.chassis.telemetry.logs import logger

log = logger(__name__)

DETAILS_KEY: Final = "grpc-status-details-bin"
# Base64 adds a third; with a message in percent encoding all stays below 8 KiB.
DETAILS_BYTES_MAX: Final = 3_500
MESSAGE_BYTES_MAX: Final = 600
METADATA_VALUE_CHARACTERS_MAX: Final = 256

_CODES: Final[Mapping[str, grpc.StatusCode]] = {
    "KEY_MISSING": grpc.StatusCode.UNAUTHENTICATED,
    "KEY_INVALID": grpc.StatusCode.UNAUTHENTICATED,
    "KEY_EXPIRED": grpc.StatusCode.UNAUTHENTICATED,
    "ROLE_REQUIRED": grpc.StatusCode.PERMISSION_DENIED,
    "INPUT_MISMATCH": grpc.StatusCode.INVALID_ARGUMENT,
    "ETAG_MISMATCH": grpc.StatusCode.ABORTED,
    "CONTENDED": grpc.StatusCode.ABORTED,
    "DEADLINE_PASSED": grpc.StatusCode.DEADLINE_EXCEEDED,
    "DEPENDENCY_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "DRAINING": grpc.StatusCode.UNAVAILABLE,
    "UNIMPLEMENTED": grpc.StatusCode.UNIMPLEMENTED,
    "INTERNAL": grpc.StatusCode.INTERNAL,
}
# How a reason is built tells its family; the first that fits counts.
_PREFIXES: Final[Sequence[tuple[str, grpc.StatusCode]]] = (
    ("INVALID_", grpc.StatusCode.INVALID_ARGUMENT),
    ("PROTOCOL_", grpc.StatusCode.FAILED_PRECONDITION),
)
_SUFFIXES: Final[Sequence[tuple[str, grpc.StatusCode]]] = (
    ("_NOT_FOUND", grpc.StatusCode.NOT_FOUND),
    ("_NOT_ALLOWED", grpc.StatusCode.PERMISSION_DENIED),
    ("_REUSED", grpc.StatusCode.ALREADY_EXISTS),
    ("_EXISTS", grpc.StatusCode.ALREADY_EXISTS),
    ("_FULL", grpc.StatusCode.RESOURCE_EXHAUSTED),
    ("_EXCEEDED", grpc.StatusCode.RESOURCE_EXHAUSTED),
    ("_TOO_LARGE", grpc.StatusCode.RESOURCE_EXHAUSTED),
    ("_FINAL", grpc.StatusCode.FAILED_PRECONDITION),
    ("_FENCED", grpc.StatusCode.FAILED_PRECONDITION),
    ("_ENDED", grpc.StatusCode.FAILED_PRECONDITION),
    ("_ARCHIVED", grpc.StatusCode.FAILED_PRECONDITION),
    ("_DELETED", grpc.StatusCode.FAILED_PRECONDITION),
    ("_RESOLVED", grpc.StatusCode.FAILED_PRECONDITION),
    ("_IN_USE", grpc.StatusCode.FAILED_PRECONDITION),
    ("_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE),
)
_INFIXES: Final[Sequence[tuple[str, grpc.StatusCode]]] = (
    ("_NOT_", grpc.StatusCode.FAILED_PRECONDITION),  # EXECUTION_NOT_PAUSED
    ("_IS_", grpc.StatusCode.FAILED_PRECONDITION),
)
_RETRIABLE: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED}
)
_BY_NUMBER: Final = {code.value[0]: code for code in grpc.StatusCode}


def code_of(reason: str) -> grpc.StatusCode:
    if code := _CODES.get(reason):
        return code
    for prefix, code in _PREFIXES:
        if reason.startswith(prefix):
            return code
    for suffix, code in _SUFFIXES:
        if reason.endswith(suffix):
            return code
    for infix, code in _INFIXES:
        if infix in reason:
            return code
    raise ValueError(f"the reason {reason!r} has no status code in services/chassis/grpc/errors.py")


class Violation(NamedTuple):
    """One faulty field: its path as the caller wrote it, and what is wrong with it."""

    field: str
    reason: str
    message: str


class QuotaViolation(NamedTuple):
    subject: str
    message: str


class Refusal(Exception):
    """An expected answer that is no success: pure code returns it, rpc/ raises it."""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[Violation] = (),
        retry_after: float | None = None,
        quota: Sequence[QuotaViolation] = (),
        code: grpc.StatusCode | None = None,
    ) -> None:
        """`code` of a reason that is another's: it may be of a version to come, and not be known here."""
        super().__init__(message)
        self.code = code or code_of(reason)
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after = retry_after
        self.quota = tuple(quota)

    def __repr__(self) -> str:
        return f"Refusal({self.reason}: {self.message})"


class DependencyUnavailable(Exception):
    """Something that we stand on is away; the same call may do well in a moment."""

    def __init__(self, dependency: str, message: str = "", *, retry_after: float = 1.0) -> None:
        super().__init__(message or f"{dependency} is away")
        self.dependency = dependency
        self.retry_after = retry_after


class RemoteError(Exception):
    """What another process answered instead of a response, with its details decoded."""

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        violations: Sequence[Violation] = (),
        quota: Sequence[QuotaViolation] = (),
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after
        self.violations = tuple(violations)
        self.quota = tuple(quota)

    def __str__(self) -> str:
        return f"{self.code.name} {self.reason}: {self.message}"

    @property
    def may_retry(self) -> bool:
        """Whether the same request, under the same ids, may do better later."""
        return self.code in _RETRIABLE

    def refusal(self) -> Refusal | DependencyUnavailable:
        """The same answer for our own caller; what the other process hid stays hidden."""
        if self.may_retry or self.code is grpc.StatusCode.CANCELLED:
            return DependencyUnavailable("a service", retry_after=self.retry_after or 1.0)
        if self.code is grpc.StatusCode.UNIMPLEMENTED:
            # gRPC itself says it without a reason.
            return Refusal("UNIMPLEMENTED", self.message, metadata=self.metadata)
        if not self.reason or self.reason == "INTERNAL":
            return Refusal("INTERNAL", "internal error", metadata=self.metadata)
        return Refusal(
            self.reason,
            self.message,
            metadata=self.metadata,
            violations=self.violations,
            retry_after=self.retry_after,
            quota=self.quota,
            code=self.code,
        )


def as_refusal(failure: BaseException, *, where: str = "") -> Refusal:
    """What a caller may know of any failure; what is ours is logged, under the id that the caller gets."""
    if isinstance(failure, Refusal):
        return failure
    if isinstance(failure, grpc.aio.AioRpcError):
        failure = remote_error(failure)
    if isinstance(failure, RemoteError) and (failure.may_retry or failure.code is grpc.StatusCode.CANCELLED):
        log.warning("a service did not answer", where=where, error=str(failure))
        failure = DependencyUnavailable("a service", retry_after=failure.retry_after or 1.0)
    if isinstance(failure, DependencyUnavailable):
        return Refusal(
            "DEPENDENCY_UNAVAILABLE",
            f"{failure.dependency} is away; try again",
            metadata={"dependency": failure.dependency},
            retry_after=failure.retry_after,
        )
    if isinstance(failure, TimeoutError):
        return Refusal("DEADLINE_PASSED", "the time for this call is over")
    error_id = secrets.token_hex(8)
    log.error("internal error", error_id=error_id, where=where, exc_info=failure)
    return Refusal("INTERNAL", f"internal error {error_id}", metadata={"error_id": error_id})


def status_of(failure: BaseException, *, where: str = "") -> status_pb2.Status:
    """Any failure as `google.rpc.Status`: for trailers, items of a batch, faces other than gRPC."""
    refusal = as_refusal(failure, where=where)
    status = status_pb2.Status(code=refusal.code.value[0], message=_clipped(refusal.message))
    metadata = {
        key: value[:METADATA_VALUE_CHARACTERS_MAX]
        for key, value in (_command(refusal.reason, where) | refusal.metadata).items()
    }
    info = error_details_pb2.ErrorInfo(reason=refusal.reason, domain=ERROR_DOMAIN, metadata=metadata)
    details = [_packed(detail) for detail in _retry_and_quota(refusal)]
    if refusal.violations:
        room = DETAILS_BYTES_MAX - info.ByteSize() - 200 - sum(len(d.SerializeToString()) for d in details)
        bad_request, omitted = _bad_request(refusal.violations, room)
        details.append(_packed(bad_request))
        if omitted:
            info.metadata["violations_omitted"] = str(omitted)
    status.details.extend([_packed(info), *details])
    return status


def _command(reason: str, where: str) -> dict[str, str]:
    """What to try when the refusal itself says nothing. `where` is the full name of a method, or nothing."""
    command = COMMANDS.get(reason, "").replace("METHOD", where.removeprefix("/").replace("/", "."))
    return {"try": command} if command else {}


def trailers_of(status: status_pb2.Status) -> tuple[tuple[str, bytes], ...]:
    return ((DETAILS_KEY, status.SerializeToString()),)


def status_code(status: status_pb2.Status) -> grpc.StatusCode:
    return _BY_NUMBER.get(status.code, grpc.StatusCode.UNKNOWN)


def remote_error(error: grpc.aio.AioRpcError) -> RemoteError:
    """Decode the details of a failed call; without any, the code alone speaks."""
    code, message = error.code(), error.details() or ""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            status = status_pb2.Status.FromString(value)
            return remote_status(status)
    return RemoteError(code, "", message)


def remote_status(status: status_pb2.Status) -> RemoteError:
    remote = RemoteError(status_code(status), "", status.message)
    for packed in status.details:
        if packed.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo.FromString(packed.value)
            remote.reason, remote.metadata = info.reason, dict(info.metadata)
        elif packed.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            delay = error_details_pb2.RetryInfo.FromString(packed.value).retry_delay
            remote.retry_after = delay.seconds + delay.nanos / 1e9
        elif packed.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            fields = error_details_pb2.BadRequest.FromString(packed.value).field_violations
            remote.violations = tuple(Violation(v.field, v.reason, v.description) for v in fields)
        elif packed.Is(error_details_pb2.QuotaFailure.DESCRIPTOR):
            quotas = error_details_pb2.QuotaFailure.FromString(packed.value).violations
            remote.quota = tuple(QuotaViolation(v.subject, v.description) for v in quotas)
    return remote


def _retry_and_quota(
    refusal: Refusal,
) -> list[error_details_pb2.RetryInfo | error_details_pb2.QuotaFailure]:
    details: list[error_details_pb2.RetryInfo | error_details_pb2.QuotaFailure] = []
    if refusal.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMicroseconds(round(refusal.retry_after * 1_000_000))
        details.append(retry)
    if refusal.quota:
        failure = error_details_pb2.QuotaFailure()
        for subject, message in refusal.quota:
            failure.violations.add(subject=subject, description=_clipped(message))
        details.append(failure)
    return details


def _bad_request(violations: Sequence[Violation], room: int) -> tuple[error_details_pb2.BadRequest, int]:
    """As many as fit, in their order; how many did not. Two at one field are two, the same twice is one.

    Where each fault is goes before what there is to say about it: descriptions have the room that is left over.
    """
    distinct = list(dict.fromkeys(violations))
    bad_request = error_details_pb2.BadRequest()
    for field, reason, _ in distinct:
        entry = error_details_pb2.BadRequest.FieldViolation(field=_clipped(field), reason=_clipped(reason))
        # With what frames it, also once a description has made it longer.
        room -= entry.ByteSize() + 6
        if room < 0:
            break
        bad_request.field_violations.append(entry)
    for entry, violation in zip(bad_request.field_violations, distinct, strict=False):
        description = _clipped(violation.message)
        size = len(description.encode()) + 3
        if size <= room:
            room -= size
            entry.description = description
    return bad_request, len(distinct) - len(bad_request.field_violations)


def _packed(
    message: error_details_pb2.ErrorInfo
    | error_details_pb2.BadRequest
    | error_details_pb2.RetryInfo
    | error_details_pb2.QuotaFailure,
) -> Any:
    packed = Any()
    packed.Pack(message, deterministic=True)
    return packed


def _clipped(text: str) -> str:
    raw = text.encode("utf-8", "replace")
    if len(raw) <= MESSAGE_BYTES_MAX:
        return raw.decode("utf-8")
    return raw[: MESSAGE_BYTES_MAX - 4].decode("utf-8", "ignore") + "…"


# The numbers of google.rpc.Code and of grpc.StatusCode are one and the same; a mismatch is caught at import.
assert Code.Name(grpc.StatusCode.NOT_FOUND.value[0]) == "NOT_FOUND"
