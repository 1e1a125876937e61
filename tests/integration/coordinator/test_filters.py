"""Filters on the table: what is understood of them."""

from __future__ import annotations

from typing import Any

import pytest

from services.chassis.database import Database
from services.chassis.errors import Refusal
from services.coordinator.rpc.reads import ReadServicer
from services.coordinator.store.conditions import ConditionUnknown, execution_list
from services.coordinator.store.reads import PostgresReads
from windlass.coordinator.v1 import reads_pb2 as pb

CONDITIONS = {
    "no form and no operator": pb.Condition(),
    "an operator to come": pb.Condition(field="workflow", operator=99, value="a"),  # type: ignore[arg-type] # a number
    "a field to come": pb.Condition(field="mood", operator=pb.Condition.EQUAL, value="good"),
    "the presence of a field to come": pb.Condition(present="mood"),
    "a pattern of no text": pb.Condition(pattern=pb.Pattern(field="version", text="1", open_end=True)),
    "nothing joined": pb.Condition(any_of=pb.Conditions()),
    "a number that is none": pb.Condition(field="version", operator=pb.Condition.EQUAL, value="x"),
}


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("is_inside", [False, True])
async def test_what_is_not_understood_is_refused(tables: Database, name: str, is_inside: bool) -> None:
    condition = CONDITIONS[name]
    if is_inside:
        joined = pb.Conditions(conditions=[pb.Condition(present="workflow"), condition])
        condition = pb.Condition(negated=pb.Condition(any_of=joined))
    bounds: dict[str, Any] = {"from_execution_id": "", "is_ascending": True, "limit": 1}
    with pytest.raises(ConditionUnknown):
        execution_list("team", [condition], **bounds)
    servicer = ReadServicer(PostgresReads(tables), lambda data: pytest.fail(str(data)), lambda workspace: ())
    with pytest.raises(Refusal) as refused:
        await servicer.ListExecutions(
            pb.ListExecutionsRequest(workspace="team", conditions=[condition]), None
        )
    assert refused.value.reason == "INVALID_REQUEST"
