"""The rules of the proto hold for a request, although the validator does not get its free JSON."""

from typing import Any

import pytest

from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.validation import decode, validate
from windlass.api.v1 import executions_pb2, workflows_pb2
from windlass.coordinator.v1 import reads_pb2
from windlass.dispatcher.v1 import sessions_pb2

Start = executions_pb2.StartExecutionRequest
Batch = executions_pb2.BatchStartExecutionsRequest


def large(**fields: Any) -> Start:
    """A request with free JSON that the validator does not get."""
    request = Start(workflow="w", **fields)
    request.input.update({"x": ["y"] * 1_000})
    return request


def violated(request: Start | Batch | workflows_pb2.ValidateWorkflowRequest) -> list[tuple[str, str]]:
    with pytest.raises(Refusal) as refused:
        validate(request)
    return [(each.field, each.reason) for each in refused.value.violations]


def test_rules_beside_large_json_hold() -> None:
    validate(large(labels={"a": "b"}, priority=5, request_id="r"))
    assert violated(large(priority=6))[0][0] == "priority"
    assert violated(large(labels={str(number): "x" for number in range(33)}))[0][0] == "labels"
    wait = large()
    wait.wait.FromSeconds(-1)
    assert violated(wait)[0][0] == "wait"


def test_lists_of_messages_with_json_are_counted() -> None:
    validate(Batch(requests=[large()] * 1_000))
    assert violated(Batch(requests=[large()] * 1_001)) == [("requests", "REPEATED_MAX_ITEMS")]
    assert violated(Batch(requests=[Start()] * 100_000)) == [("requests", "REPEATED_MAX_ITEMS")]


def test_types_without_rules_are_always_well_formed() -> None:
    validate(reads_pb2.ListExecutionsRequest(workspace="x" * 100_000))


def frame(reports: int, ids_each: int, held: int, acks: int) -> bytes:
    made = sessions_pb2.SessionRequest(message_acks=["a"] * acks)
    report = sessions_pb2.ExecutionReport()
    report.parked.seen_message_ids.extend(["m"] * ids_each)
    made.reports.extend([report] * reports)
    for _ in range(held):
        made.control.beat.held.add()
    return made.SerializeToString()


@pytest.mark.parametrize("parts", [(0, 0, 0, 11), (0, 0, 11, 0), (11, 0, 0, 0), (2, 4, 0, 1), (1, 4, 3, 3)])
def test_items_are_counted_in_all_lists_of_a_message(parts: tuple[int, int, int, int]) -> None:
    from_bytes = sessions_pb2.SessionRequest.FromString
    raw = frame(*parts)
    assert decode(from_bytes, 1_000, raw, items_max=11)
    assert decode(from_bytes, 1_000, raw)
    with pytest.raises(Refusal) as refused:
        decode(from_bytes, 1_000, raw, items_max=10)
    assert refused.value.reason == "MESSAGE_TOO_LARGE"
