"""Chooses the gRPC status code of every error, and translates errors to and from the wire.

Our code raises or returns a `Refusal` that names a reason. Only the tables below say which code a reason has. Any other
exception is a fault of ours: the client gets INTERNAL and an error id, and the log gets the rest under that id. The
client never gets a traceback, a class name or SQL.

Hazard: details travel in trailers, and a client accepts only 8 KiB of them by default. So all details are clipped. A
longer list of violations belongs in a response message.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from services.chassis.process.naming import COMMANDS, ERROR_DOMAIN
from services.chassis.telemetry.logs import logger

log = logger(__name__)

DETAILS_KEY: Final = "grpc-status-details-bin"
# With the third that base64 adds, and with a message in percent encoding, the trailers stay below 8 KiB.
DETAILS_BYTES_MAX: Final = 3_500
MESSAGE_BYTES_MAX: Final = 600
METADATA_VALUE_CHARACTERS_MAX: Final = 256

_CODES: Final[Mapping[str, grpc.StatusCode]] = {
    "KEY_MISSING": grpc.StatusCode.UNAUTHENTICATED,
    "KEY_INVALID": grpc.StatusCode.UNAUTHENTICATED,
    "KEY_EXPIRED": grpc.StatusCode.UNAUTHENTICATED,
    "TOKEN_INVALID": grpc.StatusCode.UNAUTHENTICATED,
    "ROLE_REQUIRED": grpc.StatusCode.PERMISSION_DENIED,
    "NOT_AN_ASSIGNEE": grpc.StatusCode.PERMISSION_DENIED,
    "ALREADY_DECIDED": grpc.StatusCode.PERMISSION_DENIED,
    "INPUT_MISMATCH": grpc.StatusCode.INVALID_ARGUMENT,
    "FORM_MISMATCH": grpc.StatusCode.INVALID_ARGUMENT,
    "ETAG_MISMATCH": grpc.StatusCode.ABORTED,
    "CONTENDED": grpc.StatusCode.ABORTED,
    "DEADLINE_PASSED": grpc.StatusCode.DEADLINE_EXCEEDED,
    "DEPENDENCY_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "DRAINING": grpc.StatusCode.UNAVAILABLE,
    "UNIMPLEMENTED": grpc.StatusCode.UNIMPLEMENTED,
    "INTERNAL": grpc.StatusCode.INTERNAL,
}
# The form of any other reason tells its code. The first pattern that matches the whole reason counts.
_FAMILIES: Final[Sequence[tuple[str, grpc.StatusCode]]] = (
    (r"INVALID_.*", grpc.StatusCode.INVALID_ARGUMENT),
    (r"PROTOCOL_.*", grpc.StatusCode.FAILED_PRECONDITION),
    (r".*_NOT_FOUND", grpc.StatusCode.NOT_FOUND),
    (r".*_NOT_ALLOWED", grpc.StatusCode.PERMISSION_DENIED),
    (r".*_(REUSED|EXISTS)", grpc.StatusCode.ALREADY_EXISTS),
    (r".*_(FULL|EXCEEDED|TOO_LARGE)", grpc.StatusCode.RESOURCE_EXHAUSTED),
    (r".*_(FINAL|FENCED|ENDED|ARCHIVED|DELETED|RESOLVED|IN_USE|IMPORTED)", grpc.StatusCode.FAILED_PRECONDITION),
    (r".*_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE),
    # EXECUTION_NOT_PAUSED
    (r".*_(NOT|IS)_.*", grpc.StatusCode.FAILED_PRECONDITION),
)
_RETRIABLE: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED})
# The server has ended the call while grpc.aio was still sending. grpc.aio makes this status up then, as INTERNAL, and
# drops the one that the server gave: often that it has no room at the moment.
_ANSWER_DROPPED: Final = "Internal error from Core"
_BY_NUMBER: Final = {code.value[0]: code for code in grpc.StatusCode}


@functools.lru_cache(maxsize=1_000)
def code_of(reason: str) -> grpc.StatusCode:
    if code := _CODES.get(reason):
        return code
    for pattern, code in _FAMILIES:
        if re.fullmatch(pattern, reason):
            return code
    raise ValueError(f"the reason {reason!r} has no status code in services/chassis/grpc/errors.py")


class Violation(NamedTuple):
    """A faulty field: its path as the caller wrote it, and its fault."""

    field: str
    reason: str
    message: str


class QuotaViolation(NamedTuple):
    subject: str
    message: str


class Refusal(Exception):
    """An expected answer that is no success. Pure code returns it, and rpc/ raises it."""

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
        """`code` is given with the reason of another process, which may have a newer version and unknown reasons."""
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
    """Something that we depend on is away. The same call may succeed in a moment."""

    def __init__(self, dependency: str, message: str = "", *, retry_after: float = 1.0) -> None:
        super().__init__(message or f"{dependency} is away")
        self.dependency = dependency
        self.retry_after = retry_after


class RemoteError(Exception):
    """The error that another process answered, with its details decoded."""

    def __init__(
        self, code: grpc.StatusCode, reason: str, message: str, metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.metadata = dict(metadata or {})
        self.retry_after: float | None = None
        self.violations: Sequence[Violation] = ()
        self.quota: Sequence[QuotaViolation] = ()

    def __str__(self) -> str:
        return f"{self.code.name} {self.reason}: {self.message}"

    @property
    def may_retry(self) -> bool:
        """True when the same request, with the same ids, may succeed later."""
        return self.code in _RETRIABLE

    def refusal(self) -> Refusal | DependencyUnavailable:
        """The same answer for our own caller. It adds nothing that the other process kept back."""
        if self.may_retry or self.code is grpc.StatusCode.CANCELLED:
            return DependencyUnavailable("a service", retry_after=self.retry_after or 1.0)
        if self.code is grpc.StatusCode.UNIMPLEMENTED:
            # gRPC itself gives no reason with it.
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
    """Any failure in the form that a caller may see. A fault of ours is logged under the id that the caller gets."""
    if isinstance(failure, Refusal):
        return failure
    if isinstance(failure, grpc.aio.AioRpcError):
        failure = remote_error(failure)
    if isinstance(failure, RemoteError) and isinstance(away := failure.refusal(), DependencyUnavailable):
        log.warning("a service did not answer", where=where, error=str(failure))
        failure = away
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
    """Any failure as `google.rpc.Status`, for trailers and for items of a batch."""
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
    """Metadata with the command to try next. `where` is the full name of a method, or ""."""
    command = COMMANDS.get(reason, "").replace("METHOD", where.removeprefix("/").replace("/", "."))
    return {"try": command} if command else {}


def trailers_of(status: status_pb2.Status) -> tuple[tuple[str, bytes], ...]:
    return ((DETAILS_KEY, status.SerializeToString()),)


def status_code(status: status_pb2.Status) -> grpc.StatusCode:
    return _BY_NUMBER.get(status.code, grpc.StatusCode.UNKNOWN)


def remote_error(error: grpc.aio.AioRpcError) -> RemoteError:
    """Decode the details of a failed call. Without details it has only the code and the message."""
    code, message = error.code(), error.details() or ""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            status = status_pb2.Status.FromString(value)
            return remote_status(status)
    if code is grpc.StatusCode.INTERNAL and message == _ANSWER_DROPPED:
        return RemoteError(grpc.StatusCode.UNAVAILABLE, "", "the call was ended before all was sent, perhaps refused")
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


def _retry_and_quota(refusal: Refusal) -> list[Message]:
    details: list[Message] = []
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
    """The violations that fit, in their order and each only once, and the number of those that did not fit.

    Fields and reasons come first. Descriptions get the room that is left.
    """
    distinct = list(dict.fromkeys(violations))
    bad_request = error_details_pb2.BadRequest()
    for field, reason, _ in distinct:
        entry = error_details_pb2.BadRequest.FieldViolation(field=_clipped(field), reason=_clipped(reason))
        # The 6 bytes are for the frame of the entry, which grows with the description.
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


def _packed(message: Message) -> Any:
    packed = Any()
    packed.Pack(message, deterministic=True)
    return packed


def _clipped(text: str) -> str:
    raw = text.encode("utf-8", "replace")
    if len(raw) <= MESSAGE_BYTES_MAX:
        return raw.decode("utf-8")
    return raw[: MESSAGE_BYTES_MAX - 4].decode("utf-8", "ignore") + "…"
