"""Events to stored bytes and back; one golden record of every type that was ever stored."""

import zlib
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from services.coordinator.core import events as ev
from services.coordinator.core.retry import RetryPolicy
from services.coordinator.core.values import (
    Error,
    ErrorClass,
    ExecutionState,
    Failure,
    FailureReason,
    OutputRef,
    ReleaseReason,
)
from services.coordinator.store.codec import (
    SCHEMA_VERSION,
    CorruptRecord,
    Stored,
    UnknownEvent,
    decode,
    encode,
)
from services.coordinator.store.records import READERS, WRITERS
from windlass.journal.v1.journal_pb2 import Record

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "journal"
EXECUTION_ID = "01931f3c-7a1b-7c3d-8e4f-1234567890ab"
T = 1_800_000_000_123_456
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
REF = OutputRef("outputs/ab/cd", "ab" * 32, 300_000)

# What the golden files say. An entry is never changed; a changed form of an event gets another entry beside it.
SAMPLES: dict[str, ev.Event] = {
    "execution_started": ev.ExecutionStarted(
        time=T, epoch=7, holder="coordinator-0", workspace="default", workflow="order-intake", version=3,
        version_id="v-3", input=b'{"id":17}', labels=(("region", "eu"), ("team", "a")), priority=4, trigger_type=1,
        caller="key-1", request_id="req-1", parent_execution_id="01931f3c-7a1b-7c3d-8e4f-000000000000",
        create_time=T - 5_000_000, grant_time=T - 1_000_000, deadline=T + 3_600_000_000, traceparent=TRACE,
        retry=RetryPolicy(5, 2_000_000, 1.5, 60_000_000, 0),
    ),
    "execution_adopted": ev.ExecutionAdopted(T, 7, "coordinator-1"),
    "run_leased": ev.RunLeased(T, 2, "fetch", 3, 4, 5, "9be0eb9c-32b2-4d62-9c06-0f5a2b1d9d11", "runner-0", TRACE),
    "run_leased_idempotent": ev.RunLeased(T, 2, "fetch", 0, 1, 1, "9be0eb9c", "runner-0", "", is_idempotent=True),
    "run_started": ev.RunStarted(T, 2, T - 1),
    "run_progressed": ev.RunProgressed(T, 2, 0.4, "half way", b'{"row":7}'),
    "run_succeeded": ev.RunSucceeded(
        T, 2, b'{"total":42}', "true", T - 2_000_000, T - 1, bytes(range(32)), bytes(range(32, 64)), 1234
    ),
    "run_succeeded_outside": ev.RunSucceeded(T, 2, REF, "", 0, 0, b"", b"", 0),
    "control_rendered": ev.ControlRendered(T, 2, b'{"duration":"5s"}', T - 2, T - 1),
    "run_failed_for_good": ev.RunFailed(
        T, 2, Error(ErrorClass.PERMANENT, "HTTP_404", "not there"), "0123456789abcdef", T - 2, T - 1,
        bytes(range(32)), bytes(range(32, 64)), 5, 0, FailureReason.PERMANENT_ERROR, True,
    ),
    "run_failed_to_be_retried": ev.RunFailed(
        T, 2, Error(ErrorClass.TIMEOUT, "TIMEOUT", "too slow"), "fedcba9876543210", 0, 0, b"", b"", 0,
        T + 1_500_000, None, False,
    ),
    "run_lost": ev.RunLost(T, 2, None),
    "run_lost_as_poison": ev.RunLost(T, 2, FailureReason.POISON),
    "run_released": ev.RunReleased(T, 2, ReleaseReason.DRAINED, True, True),
    "run_cancelled": ev.RunCancelled(T, 2, T - 2, T - 1, True),
    "run_cancelled_unanswered": ev.RunCancelled(T, 2, 0, 0, False),
    "late_report_rejected": ev.LateReportRejected(T, 2, 5, "ReportSuccess"),
    "backoff_ended": ev.BackoffEnded(T, "fetch", 3, 4),
    "join_passed": ev.JoinPassed(T, 2, "all", 3, 4),
    "sleep_started": ev.SleepStarted(T, 2, "nap", 3, 4, T + 5_000_000),
    "sleep_ended": ev.SleepEnded(T, 2),
    "nodes_skipped": ev.NodesSkipped(T, 2, ["left", "deeper"]),
    "nodes_blocked": ev.NodesBlocked(T, ["next", "last"]),
    "output_requested": ev.OutputRequested(T),
    "stop_ordered": ev.StopOrdered(
        T, ExecutionState.CANCELLED, Failure("", "CANCELLED", "enough"), T + 1_500_000, "message-1", "key-1"
    ),
    "execution_finished": ev.ExecutionFinished(T, ExecutionState.SUCCESS, b'{"sum":{}}', None, 2_500_000),
    "execution_finished_outside": ev.ExecutionFinished(T, ExecutionState.SUCCESS, REF, None, 0),
    "execution_finished_badly": ev.ExecutionFinished(
        T, ExecutionState.FAILED, None, Failure("fetch", "HTTP_404", "not there"), 1
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_golden_records_decode_for_ever(name):
    stored = decode((GOLDEN / f"{name}.bin").read_bytes())
    assert stored == Stored(EXECUTION_ID, 12, 7, SAMPLES[name])


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_written_today_is_what_was_written(name):
    record = Record.FromString(encode(SAMPLES[name], EXECUTION_ID, 12, 7))
    golden = Record.FromString((GOLDEN / f"{name}.bin").read_bytes())
    # Maps have no order in the bytes, so messages are compared, without the checksum over those bytes.
    record.checksum = golden.checksum = 0
    assert record == golden


def test_every_event_type_has_a_golden_record_and_both_halves():
    types = set(get_args(ev.Event))
    assert {type(event) for event in SAMPLES.values()} == types == set(WRITERS)
    stored = {field.name for field in Record.DESCRIPTOR.oneofs_by_name["event"].fields}
    assert set(READERS) == stored
    assert {path.stem for path in GOLDEN.glob("*.bin")} == set(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_leave_no_field_unproven(name):
    """A field that is empty in every sample of its type would be lost unnoticed."""
    event = SAMPLES[name]
    same = [other for other in SAMPLES.values() if type(other) is type(event)]
    for field in fields(event):
        assert any(getattr(other, field.name) for other in same), field.name


@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_any_damage_is_found(name, data):
    record = bytearray(encode(SAMPLES[name], EXECUTION_ID, 12, 7))
    place = data.draw(st.integers(0, len(record) - 1))
    record[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptRecord):
        decode(bytes(record))


@pytest.mark.parametrize("cut", [0, 1, 4, 5, 20])
def test_a_cut_record_is_found(cut):
    with pytest.raises(CorruptRecord):
        decode(encode(SAMPLES["run_leased"], EXECUTION_ID, 12, 7)[:cut])


def test_bytes_that_are_no_record_are_found_even_if_their_checksum_fits():
    with pytest.raises(CorruptRecord):
        decode(_sealed(b"\xff\xff\xff"))


def test_an_event_of_a_newer_version_is_unknown():
    record = Record(schema_version=SCHEMA_VERSION, event_id=f"{EXECUTION_ID}/5", seq=5, epoch=9)
    # Field 99, length-delimited: {1: 7}.
    newer = record.SerializeToString() + b"\x9a\x06\x02\x08\x07"
    assert decode(_sealed(newer)) == Stored(EXECUTION_ID, 5, 9, UnknownEvent(99, SCHEMA_VERSION))


def test_a_known_event_that_says_more_is_unknown():
    record = Record(schema_version=SCHEMA_VERSION + 1, event_id=f"{EXECUTION_ID}/5", seq=5, epoch=9)
    record.time.CopyFrom(Timestamp(seconds=1))
    record.sleep_ended.number = 2
    stored = decode(_sealed(record.SerializeToString()))
    assert stored.event == UnknownEvent(0, SCHEMA_VERSION + 1)


def test_a_record_without_any_event_is_unknown():
    record = Record(schema_version=SCHEMA_VERSION, event_id=f"{EXECUTION_ID}/5", seq=5, epoch=9)
    assert decode(_sealed(record.SerializeToString())).event == UnknownEvent(0, SCHEMA_VERSION)


def _sealed(body: bytes) -> bytes:
    return body + b"\x7d" + zlib.crc32(body).to_bytes(4, "little")
