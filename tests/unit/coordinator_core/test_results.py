"""Reports become commands. A result that nobody could read becomes a failure before it is journalled."""

import pytest

from services.coordinator.core.commands import (
    Release,
    ReportFailure,
    ReportHeldBack,
    ReportProgress,
    ReportStarted,
    ReportSuccess,
)
from services.coordinator.core.results import CURSOR_BYTES_MAX, TARGET_CHARACTERS_MAX, release_reason
from services.coordinator.core.values import INLINE_BYTES_MAX, ErrorClass, OutputRef, ReleaseReason
from services.coordinator.peers.any_dispatcher import REPORT_BYTES_MAX, fit_to_post
from services.coordinator.rpc.run_messages import progress_commands, report_command
from windlass.coordinator.v1 import sessions_pb2 as pb
from windlass.definition.limits import DEPTH_MAX


def brought(json: bytes = b"", branch: str = "", ref: pb.OutputRef | None = None) -> pb.RunReport:
    report = pb.RunReport(cost_tokens=3)
    report.head.lease_id, report.head.epoch, report.head.instance_id = "e.1", 2, "i1"
    report.succeeded.branch = branch
    if ref is not None:
        report.succeeded.output.ref.CopyFrom(ref)
    else:
        report.succeeded.output.json = json
    return report


def nested(depth: int) -> bytes:
    return b'{"a":[' * (depth // 2) + b"[" * (depth % 2) + b"]" * (depth % 2) + b"]}" * (depth // 2)


READABLE = [
    *(b"{}", b"null", b'"\xc3\xa9"', b" [1, 2] ", b"[" + b"[],[]," * 90 + b"0]", nested(DEPTH_MAX)),
    b'"' + b"x" * (INLINE_BYTES_MAX - 2) + b'"',
]
UNREADABLE = [
    *(b"{nope", b"NaN", b'{"a":Infinity}', b"1e999", b'"\xff"', b'"\\ud800"', b"{} {}", b"\xef\xbb\xbf{}"),
    *(nested(DEPTH_MAX + 1), nested(DEPTH_MAX + 2), b"[" * 100_000 + b"]" * 100_000),
]


@pytest.mark.parametrize("json", READABLE)
def test_an_output_is_kept_as_it_came(json: bytes) -> None:
    command = report_command(brought(json), 1)
    assert isinstance(command, ReportSuccess)
    assert command.output == json


def test_an_output_that_is_not_there_is_null() -> None:
    command = report_command(brought(), 1)
    assert isinstance(command, ReportSuccess)
    assert command.output == b"null"


@pytest.mark.parametrize("json", UNREADABLE)
def test_an_output_that_nobody_can_read_fails_its_run_for_good(json: bytes) -> None:
    command = report_command(brought(json), 1)
    assert isinstance(command, ReportFailure)
    assert (command.error.error_class, command.error.type) == (ErrorClass.PERMANENT, "OUTPUT_NOT_JSON")
    assert (command.run, command.epoch, command.instance_id, command.cost_tokens) == (1, 2, "i1", 3)


def test_what_is_too_large_is_not_even_parsed() -> None:
    command = report_command(brought(b"{" * (INLINE_BYTES_MAX + 1)), 1)
    assert isinstance(command, ReportFailure)
    assert (command.error.error_class, command.error.type) == (ErrorClass.PERMANENT, "OUTPUT_TOO_LARGE")


def test_a_reference_names_something_that_could_be_kept() -> None:
    sha256 = "0" * 64
    kept = OutputRef(f"00/{sha256}.json", sha256, 5)
    command = report_command(brought(ref=pb.OutputRef(key=kept.key, sha256=sha256, size_bytes=5)), 1)
    assert isinstance(command, ReportSuccess)
    assert command.output == kept
    faulty = [("", sha256, 1), ("a b", sha256, 1), ("k" * 513, sha256, 1), ("k", "x", 1), ("k", sha256, -1)]
    for key, digest, size in faulty:
        command = report_command(brought(ref=pb.OutputRef(key=key, sha256=digest, size_bytes=size)), 1)
        assert isinstance(command, ReportFailure)
        assert command.error.type == "OUTPUT_REF_INVALID"


def test_a_branch_is_a_name() -> None:
    command = report_command(brought(b"{}", branch="b" * 256), 1)
    assert isinstance(command, ReportFailure)
    assert command.error.type == "BRANCH_TOO_LONG"


@pytest.mark.parametrize("cursor", [b"{nope", b'"' + b"x" * CURSOR_BYTES_MAX + b'"', nested(DEPTH_MAX + 1)])
def test_a_cursor_that_nobody_can_go_on_from_takes_no_other_ones_place(cursor: bytes) -> None:
    kinds = [type(each) for each in progress_commands(pb.RunProgress(fraction=0.5, cursor=cursor), 1, "i1")]
    assert kinds == [ReportStarted]
    kinds = [type(each) for each in progress_commands(pb.RunProgress(fraction=0.5, cursor=b"[7]"), 1, "i1")]
    assert kinds == [ReportStarted, ReportProgress]


@pytest.mark.parametrize(("cursor", "kept"), [(b"{nope", b""), (b"[7]", b"[7]")])
def test_a_failure_and_a_hand_back_bring_only_usable_cursors(cursor: bytes, kept: bytes) -> None:
    report = pb.RunReport()
    report.failed.cursor = cursor
    assert getattr(report_command(report, 1), "cursor", None) == kept
    report.released.cursor = cursor
    assert getattr(report_command(report, 1), "cursor", None) == kept


def test_a_report_fits_into_a_mailbox() -> None:
    small = brought(b"{}")
    assert fit_to_post(small) is small
    large = brought(b"x" * REPORT_BYTES_MAX)
    fitting = fit_to_post(large)
    assert (fitting.head.lease_id, fitting.head.epoch, fitting.head.instance_id) == ("e.1", 2, "i1")
    assert fitting.failed.type == "REPORT_TOO_LARGE"
    assert getattr(fitting.failed, "class") == pb.ERROR_CLASS_PERMANENT
    large.failed.type, large.failed.message = "BOOM", "m" * REPORT_BYTES_MAX
    setattr(large.failed, "class", pb.ERROR_CLASS_TIMEOUT)
    fitting = fit_to_post(large)
    assert fitting.ByteSize() < REPORT_BYTES_MAX
    assert (fitting.failed.type, fitting.failed.message[:2]) == ("BOOM", "mm")
    assert getattr(fitting.failed, "class") == pb.ERROR_CLASS_TIMEOUT


def test_a_reason_for_a_release_that_is_not_known_counts_as_a_refusal() -> None:
    assert release_reason("DRAINING") is ReleaseReason.DRAINED
    assert release_reason("of a newer runner") is ReleaseReason.REFUSED


@pytest.mark.parametrize(
    ("target", "known"),
    [("crm", "crm"), ("t" * TARGET_CHARACTERS_MAX, "t" * TARGET_CHARACTERS_MAX)]
    + [(bad, "") for bad in ("t" * (TARGET_CHARACTERS_MAX + 1), "a\nb", "a\0b", "")],
)
def test_a_target_that_cannot_be_shown_counts_as_none(target: str, known: str) -> None:
    report = brought(b"{}")
    report.target = target
    done = report_command(report, 1)
    assert isinstance(done, ReportSuccess)
    assert done.target == known
    report.released.reason = "CIRCUIT_OPEN"
    handed_back = report_command(report, 1)
    assert isinstance(handed_back, ReportHeldBack if known else Release)
