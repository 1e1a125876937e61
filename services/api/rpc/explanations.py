"""Completes an explanation: what coordinators and the queue know becomes one answer, with text, shares and commands.

The time that an execution has spent in the queue until now is part of it, whether it has started yet or waits there
again after it was woken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from services.api.app.ports import FINAL
from services.chassis.grpc.timestamps import micros_of, put_micros
from windlass.api.v1.resources_pb2 import Execution, Explanation
from windlass.dispatcher.v1.queue_pb2 import GetQueuePlaceResponse, Queued

_US: Final = 1_000_000


def explanation_of(
    execution: Execution, told: Explanation | None, place: GetQueuePlaceResponse, now: int
) -> Explanation:
    """`told` is what coordinators say of the execution. `now` is in µs."""
    explanation = told or Explanation()
    if place.state == Queued.PENDING:
        blocker = _in_queue(place)
        if place.HasField("wake_time"):
            blocker.since_time.CopyFrom(place.wake_time)
            _add_time(explanation, blocker.kind, now - micros_of(place.wake_time))
        elif told is None:
            blocker.since_time.CopyFrom(place.enqueue_time)
            _add_time(explanation, blocker.kind, now - micros_of(execution.create_time))
        explanation.blockers.insert(0, blocker)
    _put_shares(explanation)
    explanation.text = "\n".join(_lines(execution, explanation, now))
    return explanation


def _in_queue(place: GetQueuePlaceResponse) -> Explanation.Blocker:
    blocker = Explanation.Blocker(kind=_queue_cause(place))
    if blocker.kind == Explanation.QUEUED_FOR_SLOT:
        setattr(blocker, "try", "windlass list --filter 'state = RUNNING'")
        holders = f", by {', '.join(place.holders)}" if place.holders else ""
        blocker.message = (
            f"{place.slots_taken} of {place.slots_max} slots of the workspace are taken{holders};"
            f" {place.ahead} {'execution is' if place.ahead == 1 else 'executions are'} before it in the queue"
        )
    else:
        blocker.message = "a slot is free, and no coordinator has taken the execution yet"
    return blocker


def _queue_cause(place: GetQueuePlaceResponse) -> Explanation.Cause.ValueType:
    is_full = place.slots_taken + place.ahead >= place.slots_max
    return Explanation.QUEUED_FOR_SLOT if is_full else Explanation.QUEUED_FOR_COORDINATOR


def _add_time(explanation: Explanation, cause: Explanation.Cause.ValueType, span: int) -> None:
    """To the time that it was in the queue before, if it was woken."""
    part = next((each for each in explanation.time_split if each.cause == cause), None)
    if part is None:
        part = explanation.time_split.add(cause=cause)
    put_micros(part.duration, micros_of(part.duration) + max(0, span))


def _put_shares(explanation: Explanation) -> None:
    parts = [each for each in explanation.time_split if micros_of(each.duration) > 0]
    total = sum(micros_of(each.duration) for each in parts)
    for part in parts:
        part.share = micros_of(part.duration) / total
    parts.sort(key=lambda part: part.share, reverse=True)
    del explanation.time_split[:]
    explanation.time_split.extend(parts)


def _lines(execution: Execution, explanation: Explanation, now: int) -> Iterator[str]:
    state = Execution.State.Name(execution.state)
    if state in FINAL:
        error = execution.error
        where = f" at {error.node}" if error.node else ""
        # The error of a cancel or of a deadline has the type that the state says already.
        why = ": ".join(filter(None, (error.type if error.type != state else "", _one_line(error.message))))
        yield f"{execution.id} ended as {state}{where}{f': {why}' if why else '.'}"
        if error.type and state != "CANCELLED":
            yield f"    try: windlass runs {execution.id}"
    elif explanation.blockers:
        yield f"{execution.id} is {state}. It waits for:"
        for blocker in explanation.blockers:
            yield f"  {_name(blocker.kind)}{_times(blocker, now)}: {_one_line(blocker.message)}"
            if command := getattr(blocker, "try"):
                yield f"    try: {command}"
    else:
        yield f"{execution.id} is {state}. Nothing holds it up."
    if explanation.kept_signals:
        yield "Signals that no node took:" if state in FINAL else "Signals that are kept until a node waits for them:"
        for kept in explanation.kept_signals:
            came = f"{_span(now - micros_of(kept.oldest_time))} ago"
            count = f"{kept.count} of them, the first came {came}" if kept.count > 1 else f"came {came}"
            yield f"  {_one_line(kept.signal)}: {count}"
    if explanation.time_split:
        yield "Its time so far:" if state not in FINAL else "Its time:"
        for part in explanation.time_split:
            yield f"  {part.share:6.1%}  {_span(micros_of(part.duration)):>9}  {_name(part.cause)}"


def _name(cause: Explanation.Cause.ValueType) -> str:
    return Explanation.Cause.Name(cause)


def _times(blocker: Explanation.Blocker, now: int) -> str:
    parts = []
    if blocker.HasField("since_time"):
        parts.append(f"for {_span(now - micros_of(blocker.since_time))}")
    if blocker.HasField("until_time"):
        parts.append(f"until {_clock(blocker.until_time)}")
    return f" ({', '.join(parts)})" if parts else ""


def _clock(time: Timestamp) -> str:
    return time.ToDatetime().isoformat(timespec="seconds") + "Z"


def _span(micros: int) -> str:
    seconds = max(0, micros) / _US
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def _one_line(text: str) -> str:
    """A text of somebody else, which must not look like further lines of ours."""
    return " ".join(text.split())
