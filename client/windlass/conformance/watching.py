"""The rules that hold for every frame of a runner, whatever the story."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.conformance.rules import Duty, Judge
from windlass.coordinator.v1 import sessions_pb2 as pb
from windlass.types.v1 import session_pb2 as types

if TYPE_CHECKING:
    from windlass.conformance.coordinator import KitStream

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
ITEMS_MAX = 30_000
NAME_MAX = 255
HELD_MAX = 20_000
CREDIT_MAX = 100_000


def watch(stream: KitStream, frame: pb.SessionRequest, judge: Judge) -> None:
    """Judge a frame before the stream takes note of it."""
    control = frame.control
    _watch_order(stream, frame, judge)
    _watch_limits(frame, judge)
    if control.HasField("attach"):
        judge.check(Duty.ATTACH_VALID, not (fault := _fault_in(control.attach)), fault)
        judge.check(Duty.KEY_SENT, stream.has_key, "the metadata of the stream does not have the key")
    if control.HasField("beat"):
        _watch_beat(stream, control.beat, judge)
    if control.HasField("credit"):
        credit = control.credit
        is_kept = credit.number > stream.credit_number and 0 <= credit.amount <= CREDIT_MAX
        judge.check(Duty.CREDIT_NUMBER, is_kept, f"{credit.number} after {stream.credit_number}: {credit.amount}")
    if control.grants_seen:
        is_kept = stream.grants_seen <= control.grants_seen <= stream.grants_sent
        seen = f"{control.grants_seen}, after {stream.grants_seen}, of {stream.grants_sent} that were sent"
        judge.check(Duty.GRANTS_SEEN, is_kept, seen)
    for report in frame.reports:
        _watch_report(report, judge)


def _watch_order(stream: KitStream, frame: pb.SessionRequest, judge: Judge) -> None:
    if stream.attach is None:
        is_alone = frame.control.HasField("attach") and frame == pb.SessionRequest(
            control=types.HolderControl(attach=frame.control.attach)
        )
        judge.check(Duty.ATTACH_FIRST, is_alone, f"the first frame is {frame!s:.200}")
    elif not stream.is_answered:
        judge.check(Duty.ATTACH_WAITS, False, f"before the answer came {frame!s:.200}")
    else:
        judge.check(Duty.ATTACH_FIRST, not frame.control.HasField("attach"), "a second Attach came on one stream")


def _watch_limits(frame: pb.SessionRequest, judge: Judge) -> None:
    control = frame.control
    lists = (control.attach.held, control.beat.held, control.beat.gone, control.refusals, frame.reports, frame.progress)
    items, size = sum(map(len, lists)), frame.ByteSize()
    too_long = [text[:40] for text in _names(frame) if len(text) > NAME_MAX]
    has_nul = any("\0" in text for text in (*_names(frame), *_texts(frame)))
    is_kept = items <= ITEMS_MAX and size <= MESSAGE_BYTES_MAX and not too_long and not has_nul
    seen = f"{items} items, {size} bytes, long names: {too_long}, {'a' if has_nul else 'no'} NUL"
    judge.check(Duty.LIMITS, is_kept, seen)


def _names(frame: pb.SessionRequest) -> Iterator[str]:
    control = frame.control
    yield from (lease.lease_id for lease in (*control.attach.held, *control.beat.held))
    yield from control.beat.gone
    for refusal in control.refusals:
        yield from (refusal.lease_id, refusal.reason)
    for report in frame.reports:
        yield from (report.head.report_id, report.head.lease_id, report.head.instance_id, report.target)


def _texts(frame: pb.SessionRequest) -> Iterator[str]:
    """What comes from modules."""
    yield from (progress.message for progress in frame.progress)
    for report in frame.reports:
        yield from (report.failed.type, report.failed.message, report.succeeded.branch, report.released.reason)


def _fault_in(attach: types.Attach) -> str:
    modules = (*attach.modules, *attach.idempotent_modules)
    texts = (attach.instance_id, attach.holder, attach.version, *modules, *attach.labels, *attach.labels.values())
    if not attach.instance_id:
        return "there is no instance_id"
    if not 0 <= attach.capacity <= HELD_MAX:
        return f"the capacity is {attach.capacity}"
    if wrong := [name for name in modules if not _is_module(name)]:
        return f"these are no modules: {wrong[:5]}"
    if len(attach.labels) > 64 or len(modules) > 2_000 or any(len(text) > NAME_MAX or "\0" in text for text in texts):
        return "there are too many names, or one is too long"
    return ""


def _is_module(name: str) -> bool:
    base, at, version = name.rpartition("@")
    return bool(base and at and version.isdecimal())


def _watch_beat(stream: KitStream, beat: types.Beat, judge: Judge) -> None:
    judge.check(Duty.BEAT_NUMBER, beat.number == stream.beats + 1, f"{beat.number} after {stream.beats}")
    judge.check(Duty.BEAT_IN_FLIGHT, not stream.is_beat_pending, f"beat {beat.number} came before the last answer")
    if stream.beats == 0:
        judge.check(Duty.BEAT_FIRST_FULL, beat.full, "the first beat is not full")
    if stream.wants_full:
        judge.check(Duty.BEAT_FULL_WANTED, beat.full, "the beat after want_full is not full")
    named = len(stream.named_after(beat))
    judge.check(Duty.BEAT_COUNT, named == beat.held_count, f"{named} leases are named, held_count is {beat.held_count}")


def _watch_report(report: pb.RunReport, judge: Judge) -> None:
    head = report.head
    judge.check(Duty.REPORT_HEAD, bool(head.report_id and head.lease_id and head.epoch > 0), f"its head is {head}")
    start, end = report.start_time.ToNanoseconds(), report.end_time.ToNanoseconds()
    outcome = report.WhichOneof("outcome")
    judge.check(Duty.REPORT_OUTCOME, outcome is not None and start <= end, f"{outcome} from {start} to {end} ns")
    if outcome == "succeeded" and report.succeeded.output.WhichOneof("value") == "json":
        judge.check(Duty.REPORT_SUCCESS, *_judge_json(report.succeeded.output.json))


def _judge_json(text: bytes) -> tuple[bool, str]:
    try:
        json.loads(text)
    except ValueError as fault:
        return False, f"the output is not JSON: {fault}"
    return len(text) <= 256 * 1024, f"the output has {len(text)} bytes"
