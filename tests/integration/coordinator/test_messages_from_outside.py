"""Signals, decisions and outcomes from outside, with a real coordinator and its tables."""

from __future__ import annotations

from typing import Any

import orjson

from services.chassis.identity.named_tokens import NamedTokens
from services.chassis.postgres.database import Database
from tests.integration.coordinator.test_broken_executions import reports_of
from tests.support.coordinator_stage import EFFECT_SECRET, Stage, eventually
from tests.support.journals import stored_events
from windlass.coordinator.v1 import reads_pb2, sessions_pb2
from windlass.coordinator.v1.commands_pb2 import ExecutionCommand
from windlass.coordinator.v1.reads_pb2_grpc import ReadServiceStub
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage

ASK = {"id": "ask", "module": "approval@1", "config": {"title": "Pay?", "assignees": ["ann"], "required": 2}}
PURPOSE = sessions_pb2.RunGrant.DESCRIPTOR.fields_by_name["completion_token"].full_name


def message(id_: str, message_id: str, **command: Any) -> ExecutionMessage:
    body = ExecutionCommand(message_id=message_id, caller="ann", **command).SerializeToString()
    return ExecutionMessage(message_id=message_id, execution_id=id_, command=body)


async def events_of(tables: Database, id_: str) -> list[str]:
    return [type(stored.event).__name__ for stored in await stored_events(tables, id_)]


async def approvals_of(tables: Database, id_: str) -> list[tuple[Any, ...]]:
    sql = "SELECT number, state, title, assignees, decisions FROM approvals WHERE execution_id = %s ORDER BY number"
    return await tables.fetch(sql, (id_,))


async def test_a_signal_that_came_with_the_grant_is_there_when_its_node_begins(
    on_stage: Stage, tables: Database
) -> None:
    wait = {"id": "wait", "module": "wait_signal@1", "config": {"signal": "go"}}
    version = on_stage.catalog.add("v-wait", name="w", nodes=[wait], edges=[])
    _, session = await on_stage.coordinator()
    order = on_stage.dispatcher.order(version)
    id_ = order.lease.lease_id
    order.messages.append(message(id_, "s1", signal=ExecutionCommand.Signal(signal="go", payload=b'{"n":1}')))
    on_stage.dispatcher.grant(session, [order])
    await eventually(lambda: id_ in on_stage.dispatcher.finished)
    await eventually(lambda: "s1" in on_stage.dispatcher.acknowledged)
    (row,) = await tables.fetch("SELECT output FROM executions WHERE execution_id = %s", (id_,))
    assert orjson.loads(row[0]) == {"wait": {"n": 1}}


async def test_the_row_of_an_approval_follows_its_decisions_and_outlives_a_take_over(
    on_stage: Stage, tables: Database
) -> None:
    version = on_stage.catalog.add("v-ask", name="w", nodes=[ASK], edges=[])
    address, session = await on_stage.coordinator()
    order = on_stage.start(session, version)
    id_ = order.lease.lease_id
    await eventually(lambda: reports_of(on_stage, order, "parked"))
    assert await approvals_of(tables, id_) == [(1, "PENDING", "Pay?", ["ann"], [])]

    def decide(key: str, *, approves: bool) -> ExecutionMessage:
        decision = ExecutionCommand.DecideApproval(run=1, key_id=key, role="WORKFLOW", approves=approves)
        return message(id_, f"m-{key}", decide_approval=decision)

    again = on_stage.dispatcher.order(version, id_=id_, resumed=True)
    again.messages.append(decide("k1", approves=True))
    on_stage.dispatcher.grant(session, [again])
    await eventually(lambda: "m-k1" in on_stage.dispatcher.acknowledged)
    ((_, state, _, _, decisions),) = await approvals_of(tables, id_)
    assert (state, [each["decision"] for each in decisions]) == ("PENDING", ["APPROVE"])

    _, successor = await on_stage.coordinator("1")
    last = on_stage.dispatcher.order(version, id_=id_, resumed=True)
    last.messages.append(decide("k2", approves=False))
    on_stage.dispatcher.grant(successor, [last])
    await eventually(lambda: id_ in on_stage.dispatcher.finished)
    ((_, state, _, _, decisions),) = await approvals_of(tables, id_)
    assert (state, [each["decision"] for each in decisions]) == ("REJECTED", ["APPROVE", "REJECT"])
    reads = ReadServiceStub(on_stage.channel(address))
    request = reads_pb2.GetApprovalRequest(approval_id=f"{id_}.1")
    found = (await reads.GetApproval(request, metadata=on_stage.api_metadata)).approval
    assert (found.workspace, found.approval.node, list(found.decision_forms)) == ("default", "ask", [b"{}", b"{}"])


async def test_a_cancel_ends_the_row_of_an_approval(on_stage: Stage, tables: Database) -> None:
    version = on_stage.catalog.add("v-ask", name="w", nodes=[ASK], edges=[])
    _, session = await on_stage.coordinator()
    order = on_stage.start(session, version)
    id_ = order.lease.lease_id
    await eventually(lambda: reports_of(on_stage, order, "parked"))
    again = on_stage.dispatcher.order(version, id_=id_, resumed=True)
    cancel = ExecutionMessage(message_id="c1", execution_id=id_)
    cancel.cancel.reason = "enough"
    again.messages.append(cancel)
    on_stage.dispatcher.grant(session, [again])
    await eventually(lambda: id_ in on_stage.dispatcher.finished)
    assert [row[1] for row in await approvals_of(tables, id_)] == ["CANCELLED"]


async def test_only_work_that_may_be_deferred_is_granted_a_token(on_stage: Stage, tables: Database) -> None:
    nodes = [{"id": "plain", "module": "noop@1"}, {"id": "own", "module": "x.y@1"}]
    version = on_stage.catalog.add("v-own", name="w", nodes=nodes, edges=[])
    session, runner = await on_stage.with_runner(is_silent=True)
    order = on_stage.start(session, version)
    id_ = order.lease.lease_id
    await eventually(lambda: len(runner.grants) == 2)
    tokens = {grant.node: grant.completion_token for grant in runner.grants}
    own = next(grant for grant in runner.grants if grant.node == "own")
    assert tokens["plain"] == ""
    assert tokens["own"] == NamedTokens(EFFECT_SECRET, PURPOSE).of(own.lease.lease_id)

    plain = next(grant for grant in runner.grants if grant.node == "plain")
    runner.answer(plain, {})
    deferred = sessions_pb2.RunReport()
    deferred.deferred.SetInParent()
    runner.report(own, deferred)
    await eventually(lambda: reports_of(on_stage, order, "parked"))
    states = await tables.fetch("SELECT node, state FROM runs WHERE execution_id = %s ORDER BY number", (id_,))
    assert dict(states) == {"plain": "SUCCESS", "own": "RUNNING"}

    again = on_stage.dispatcher.order(version, id_=id_, resumed=True)
    number = int(own.lease.lease_id.rpartition(".")[2])
    completion = ExecutionCommand.CompleteRun(run=number, output=b'{"paid":true}', branch="")
    again.messages.append(message(id_, "m1", complete_run=completion))
    on_stage.dispatcher.grant(session, [again])
    await eventually(lambda: id_ in on_stage.dispatcher.finished)
    assert (await events_of(tables, id_))[-3:] == ["OutsideAnswered", "RunSucceeded", "ExecutionFinished"]
