"""Dead letters as people see them: listed, grouped, and each resolved once."""

import asyncio
from typing import Any

import grpc
import psycopg
import pytest
import pytest_asyncio
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.chassis.grpc.errors import remote_error
from tests.support.api import Client, new_workspace, stored_output
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import dead_letters_pb2 as pb
from windlass.api.v1 import executions_pb2, resources_pb2
from windlass.api.v1.dead_letters_pb2_grpc import DeadLetterServiceStub

Execution = resources_pb2.Execution
DeadLetter = pb.DeadLetter
NODES = [
    {"id": "check", "module": "test.check@1", "inputs": {"n": "{{ input.n }}"}},
    {"id": "after", "module": "transform@1", "inputs": {"seen": "{{ nodes.check.output }}"}},
]
EDGES = [{"from": "check", "to": "after"}]


class Letters:
    """The dead letters of one workspace."""

    def __init__(self, stack: Stack, client: Client) -> None:
        self.client = client
        self.stub: Any = DeadLetterServiceStub(stack.channel())

    async def listed(self, filter_: str = "", **more: Any) -> pb.ListDeadLettersResponse:
        request = pb.ListDeadLettersRequest(filter=filter_, **more)
        answer: pb.ListDeadLettersResponse = await self.client.call(self.stub.ListDeadLetters, request)
        return answer

    async def of(self, execution: resources_pb2.Execution) -> DeadLetter:
        (letter,) = (await self.listed(f'execution_id = "{execution.id}" AND resolution = PENDING')).dead_letters
        return letter

    async def get(self, letter_id: str) -> DeadLetter:
        request = pb.GetDeadLetterRequest(dead_letter_id=letter_id)
        return (await self.client.call(self.stub.GetDeadLetter, request)).dead_letter  # type: ignore[no-any-return]

    async def requeue(self, letter_id: str, **fields: Any) -> DeadLetter:
        request = pb.RequeueDeadLetterRequest(dead_letter_id=letter_id)
        json_format.ParseDict(fields, request)
        return (await self.client.call(self.stub.RequeueDeadLetter, request)).dead_letter  # type: ignore[no-any-return]

    async def discard(self, letter_id: str, notes: str = "") -> DeadLetter:
        request = pb.DiscardDeadLetterRequest(dead_letter_id=letter_id, notes=notes)
        return (await self.client.call(self.stub.DiscardDeadLetter, request)).dead_letter  # type: ignore[no-any-return]

    async def fix(self, letter_id: str, output: Any) -> DeadLetter:
        request = pb.MarkDeadLetterFixedRequest(dead_letter_id=letter_id, notes="by hand")
        json_format.ParseDict(output, request.output)
        return (await self.client.call(self.stub.MarkDeadLetterFixed, request)).dead_letter  # type: ignore[no-any-return]

    async def failed(self, workflow: str, n: int = -1) -> resources_pb2.Execution:
        given = Struct()
        given.update({"n": n})
        execution = await self.client.run(workflow, input=given)
        assert execution.state == Execution.FAILED
        return execution


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def letters(shared_stack: Stack) -> Letters:
    client = await new_workspace(shared_stack, "letters", executions_max=20)
    await client.apply("checked", NODES, edges=EDGES)
    await client.apply("held", NODES, edges=EDGES, onFailure="HOLD")
    await client.apply("waits", [{"id": "w", "module": "test.waits@1"}])
    return Letters(shared_stack, client)


async def refused(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return remote_error(error.value).reason


async def test_failed_run_is_listed_with_everything_a_person_needs(letters: Letters) -> None:
    execution = await letters.failed("checked")
    letter = await letters.get((await letters.of(execution)).id)
    assert (letter.execution_id, letter.run_id, letter.workflow) == (execution.id, f"{execution.id}.1", "checked")
    assert (letter.node, letter.module, letter.attempts) == ("check", "test.check@1", 1)
    assert (letter.reason, letter.error.type) == (DeadLetter.PERMANENT_ERROR, "NEGATIVE")
    assert (letter.error.message, letter.resolution) == ("-1 is negative", DeadLetter.PENDING)
    assert json_format.MessageToDict(letter.inputs) == {"n": -1}, "as it was rendered"
    rival = "01931f3c-7a1b-7c3d-8e4f-1234567890ab.1"
    assert await refused(letters.get(rival)) == "DEAD_LETTER_NOT_FOUND"


async def test_list_is_filtered_and_has_pages(letters: Letters) -> None:
    ids = [(await letters.of(await letters.failed("checked"))).id for _ in range(3)]
    filter_ = 'workflow = "checked" AND error.type = NEGATIVE AND resolution = PENDING'
    first = await letters.listed(filter_, page_size=2)
    assert [letter.id for letter in first.dead_letters] == ids[:0:-1]
    second = await letters.listed(filter_, page_size=2, page_token=first.next_page_token)
    assert second.dead_letters[0].id == ids[0]
    oldest = await letters.listed(filter_, order_by="quarantine_time", page_size=50)
    assert [letter.id for letter in oldest.dead_letters][-3:] == ids
    assert await refused(letters.listed("state = FAILED")) == "INVALID_REQUEST"
    request = pb.ListDeadLetterGroupsRequest(filter=filter_)
    groups = (await letters.client.call(letters.stub.ListDeadLetterGroups, request)).groups
    (group,) = groups
    assert (group.count >= 3, list(group.workflows), group.sample.id) == (True, ["checked"], ids[-1])


async def test_requeued_with_other_inputs_the_execution_goes_on(letters: Letters) -> None:
    execution = await letters.failed("checked")
    letter = await letters.of(execution)
    resolved = await letters.requeue(letter.id, inputOverrides={"n": 5}, notes="it was negative")
    assert (resolved.resolution, resolved.notes) == (DeadLetter.REQUEUED, "it was negative")
    assert resolved.reviewer
    ended = await letters.client.end_of(execution.id)
    assert ended.state == Execution.SUCCESS
    assert json_format.MessageToDict(ended.output) == {"after": {"seen": {"n": 5}}}
    assert (await letters.get(letter.id)).requeued_run_id == f"{execution.id}.2"


async def test_fixed_by_hand_what_depends_on_it_goes_on(letters: Letters) -> None:
    execution = await letters.failed("checked")
    letter = await letters.of(execution)
    assert (await letters.fix(letter.id, {"n": 7})).resolution == DeadLetter.FIXED
    ended = await letters.client.end_of(execution.id)
    assert json_format.MessageToDict(ended.output) == {"after": {"seen": {"n": 7}}}
    runs = await letters.client.runs_of(execution.id)
    assert [(run.node, run.runner != "") for run in runs] == [("check", True), ("check", False), ("after", True)]


async def test_equal_outputs_that_people_give_are_stored_as_equal_bytes(letters: Letters) -> None:
    """A Struct has its members in no order, so equal ones are sent in other orders and with many members."""
    names = [f"m{number:02}" for number in range(30)]
    stored = set()
    for given in (names, names[::-1]):
        execution = await letters.failed("checked")
        await letters.fix((await letters.of(execution)).id, {name: {"b": name, "a": 1} for name in given})
        await letters.client.end_of(execution.id)
        stored.add(await stored_output(letters.client, f"{execution.id}.2"))
    assert len(stored) == 1


async def test_discarded_the_execution_stays_as_it_ended(letters: Letters) -> None:
    execution = await letters.failed("checked")
    letter = await letters.of(execution)
    assert (await letters.discard(letter.id, "not needed")).resolution == DeadLetter.DISCARDED
    assert (await letters.discard(letter.id)).resolution == DeadLetter.DISCARDED, "a repeat is OK"
    after = await letters.client.get(execution.id)
    assert (after.state, after.end_time) == (Execution.FAILED, execution.end_time)
    assert await refused(letters.requeue(letter.id)) == "ALREADY_RESOLVED"


async def test_ten_people_at_once_resolve_it_once(letters: Letters) -> None:
    """S16: five requeue it, five discard it."""
    execution = await letters.failed("checked")
    letter = await letters.of(execution)
    calls = [letters.requeue(letter.id) if number % 2 else letters.discard(letter.id) for number in range(10)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    final = (await letters.get(letter.id)).resolution
    assert final in (DeadLetter.REQUEUED, DeadLetter.DISCARDED)
    accepted = [answer for answer in answers if isinstance(answer, DeadLetter)]
    others = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert {answer.resolution for answer in accepted} == {final}
    assert len(accepted) + len(others) == 10
    assert {remote_error(error).reason for error in others} == {"ALREADY_RESOLVED"}


async def test_held_node_waits_for_a_person(letters: Letters) -> None:
    given = Struct()
    given.update({"n": -1})
    execution = await letters.client.start("held", input=given)

    async def is_waiting() -> bool:
        return (await letters.client.get(execution.id)).state == Execution.WAITING

    await eventually(is_waiting, 20.0, "the failed node to be held")
    await letters.requeue((await letters.of(execution)).id, inputOverrides={"n": 1})
    assert (await letters.client.end_of(execution.id)).state == Execution.SUCCESS
    other = await letters.client.start("held", input=given)

    async def is_listed() -> Any:
        return (await letters.listed(f'execution_id = "{other.id}"')).dead_letters

    (letter,) = await eventually(is_listed, 20.0, "the dead letter")
    await letters.discard(letter.id)
    assert (await letters.client.end_of(other.id)).state == Execution.FAILED


async def test_run_is_set_aside_by_hand(letters: Letters) -> None:
    execution = await letters.client.start("waits")
    run = await newest_run(letters.client, execution.id, 1)
    letter = await set_aside(letters, run.id)
    assert (letter.id, letter.reason, letter.error.message) == (run.id, DeadLetter.MANUAL, "it hangs")
    assert (await letters.client.end_of(execution.id)).state == Execution.FAILED


async def test_a_run_can_be_set_aside_although_somebody_named_it_before_there_was_such_a_run(letters: Letters) -> None:
    execution = await letters.client.start("waits")
    first = await newest_run(letters.client, execution.id, 1)
    for unknown in ("x", f"{execution.id}.2"):
        assert await refused(set_aside(letters, unknown)) == "RUN_NOT_FOUND"
    await set_aside(letters, first.id)
    await letters.client.end_of(execution.id)
    retry = executions_pb2.RetryExecutionRequest(execution_id=execution.id)
    await letters.client.call(letters.client.executions.RetryExecution, retry)
    second = await newest_run(letters.client, execution.id, 2)
    assert second.id == f"{execution.id}.2"
    assert (await set_aside(letters, second.id)).reason == DeadLetter.MANUAL
    assert (await letters.client.end_of(execution.id)).state == Execution.FAILED


async def newest_run(client: Client, execution_id: str, count: int) -> resources_pb2.Run:
    async def is_there() -> Any:
        runs = await client.runs_of(execution_id)
        return runs[-1] if len(runs) == count else None

    return await eventually(is_there, 20.0, "the run")


async def set_aside(letters: Letters, run_id: str) -> Any:
    request = pb.QuarantineRunRequest(run_id=run_id, notes="it hangs")
    return (await letters.client.call(letters.stub.QuarantineRun, request)).dead_letter


@pytest.mark.parametrize("workflow", ["left", "tried"])
async def test_work_that_no_runner_has_is_set_aside_by_hand(letters: Letters, workflow: str) -> None:
    """The work was handed to somebody else, or awaits its next attempt."""
    retry = {"attempts": 9, "initialDelay": "24h", "factor": 1, "maxDelay": "24h", "budget": 0}
    await letters.client.apply("left", [{"id": "a", "module": "test.leaves@1"}])
    tried = {"id": "a", "module": "fail@1", "config": {"type": "TRANSIENT", "message": "busy"}, "retry": retry}
    await letters.client.apply("tried", [tried])
    execution = await letters.client.start(workflow)

    async def is_waiting() -> bool:
        return (await letters.client.get(execution.id)).state == Execution.WAITING

    await eventually(is_waiting, 20.0, "the execution to wait")
    request = pb.QuarantineRunRequest(run_id=f"{execution.id}.1", notes="not needed")
    letter = (await letters.client.call(letters.stub.QuarantineRun, request)).dead_letter
    assert (letter.id, letter.reason, letter.error.type) == (request.run_id, DeadLetter.MANUAL, "QUARANTINED")
    assert letter.error.message.startswith("not needed")
    assert letter.error.message.endswith(": busy") == (workflow == "tried")
    ended = await letters.client.end_of(execution.id)
    assert (ended.state, ended.error.type) == (Execution.FAILED, "QUARANTINED")
    assert len(await letters.client.runs_of(execution.id)) == 1


async def test_a_control_node_that_waits_is_not_set_aside(letters: Letters) -> None:
    await letters.client.apply("go", [{"id": "go", "module": "wait_signal@1", "config": {"signal": "go"}}])
    execution = await letters.client.start("go")

    async def refusal() -> str:
        request = pb.QuarantineRunRequest(run_id=f"{execution.id}.1")
        return await refused(letters.client.call(letters.stub.QuarantineRun, request))

    async def is_waiting() -> bool:
        return (await letters.client.get(execution.id)).state == Execution.WAITING

    await eventually(is_waiting, 20.0, "the execution to wait")
    assert await refusal() == "RUN_IS_WAITING"
    await letters.client.cancel(execution.id)


async def test_a_run_whose_failure_an_edge_takes_is_not_set_aside(letters: Letters) -> None:
    """It would be no dead letter. The answer says so, and the run goes on."""
    hung = {"id": "hung", "module": "delay@1", "config": {"duration": "1h"}}
    edges = [{"from": "hung", "to": "rescue", "when": "failure"}]
    await letters.client.apply("rescued", [hung, {"id": "rescue", "module": "noop@1"}], edges=edges)
    execution = await letters.client.start("rescued")
    run = await newest_run(letters.client, execution.id, 1)
    assert await refused(set_aside(letters, run.id)) == "FAILURE_IS_HANDLED"
    assert (await letters.client.runs_of(execution.id))[0].state in (run.LEASED, run.RUNNING)
    await letters.client.cancel(execution.id)


async def given_up(stack: Stack, client: Client, workflow: str) -> resources_pb2.Execution:
    """An execution that no coordinator could begin."""
    blocker = await client.start("waits")
    execution = await client.start(workflow)
    async with await psycopg.AsyncConnection.connect(stack.superuser_url(), autocommit=True) as connection:
        await connection.execute(
            "UPDATE dispatcher.queue SET state = 5, failure_time = now(), failure_reason = 'DEFINITION_CORRUPT',"
            " failure_message = 'a fault', attempts = 3 WHERE execution_id = %s::uuid",
            (execution.id,),
        )
    await client.cancel(blocker.id)
    return execution


async def test_execution_that_was_not_admitted_is_queued_again_or_discarded(shared_stack: Stack) -> None:
    client = await new_workspace(shared_stack, "not-admitted", executions_max=1)
    await client.apply("plain", [{"id": "a", "module": "noop@1"}], timeout="60s")
    await client.apply("waits", [{"id": "w", "module": "test.waits@1"}])
    letters = Letters(shared_stack, client)
    first, second = [await given_up(shared_stack, client, "plain") for _ in range(2)]
    listed = (await letters.listed("reason = ADMISSION")).dead_letters
    assert [letter.id for letter in listed] == [second.id, first.id]
    assert (listed[0].error.type, listed[0].attempts) == ("DEFINITION_CORRUPT", 3)
    assert (await client.get(first.id)).state == Execution.FAILED
    assert await refused(letters.requeue(first.id, inputOverrides={"n": 1})) == "INVALID_REQUEST"
    requeued = await letters.requeue(first.id, notes="mended", requestId="once")
    assert (requeued.resolution, requeued.notes, requeued.reviewer != "") == (DeadLetter.REQUEUED, "mended", True)
    assert (await client.end_of(first.id)).state == Execution.SUCCESS
    assert await letters.requeue(first.id, notes="mended", requestId="once") == requeued
    assert await letters.requeue(first.id) == requeued, "the same decision again"
    assert await refused(letters.requeue(first.id, notes="other", requestId="once")) == "REQUEST_ID_REUSED"
    assert await letters.get(first.id) == requeued
    assert list((await letters.listed("resolution = REQUEUED")).dead_letters) == [requeued]
    assert await refused(letters.discard(first.id)) == "ALREADY_RESOLVED"
    assert (await letters.discard(second.id, "too old")).resolution == DeadLetter.DISCARDED
    assert (await letters.get(second.id)).notes == "too old"
    assert await refused(letters.requeue(second.id)) == "ALREADY_RESOLVED"
    assert await refused(letters.fix(second.id, 1)) == "EXECUTION_FINAL"


async def redriven(letters: Letters, workflow: str = "many", **fields: Any) -> list[pb.BulkResolveDeadLettersResponse]:
    request = pb.BulkResolveDeadLettersRequest(filter=f'workflow = "{workflow}"', **fields)
    call = letters.stub.BulkResolveDeadLetters(request, metadata=letters.client.metadata, timeout=60)
    return [response async for response in call]


async def test_many_are_redriven_until_they_fail_again(letters: Letters) -> None:
    await letters.client.apply("many", NODES, edges=EDGES)
    for _ in range(6):
        await letters.failed("many")
    requeue = pb.BulkResolveDeadLettersRequest.REQUEUE
    (counted,) = await redriven(letters, action=requeue, dry_run=True)
    assert (counted.total, counted.resolved) == (6, 0)
    stopped = (await redriven(letters, action=requeue))[-1]
    assert (stopped.stage, stopped.resolved, stopped.failed_again) == (stopped.STOPPED, 1, 1)
    mended = Struct()
    mended.update({"n": 1})
    done = (await redriven(letters, action=requeue, input_overrides=mended))[-1]
    assert (done.stage, done.resolved, done.succeeded) == (done.DONE, 6, 6), "the one that failed again is among them"


async def test_a_redrive_that_was_cut_after_the_last_requeue_says_that_it_is_done_when_it_is_repeated(
    letters: Letters,
) -> None:
    await letters.client.apply("cut", NODES, edges=EDGES)
    execution = await letters.failed("cut")
    mended = Struct()
    mended.update({"n": 1})
    asked = pb.BulkResolveDeadLettersRequest(
        filter='workflow = "cut"', action=pb.BulkResolveDeadLettersRequest.REQUEUE, input_overrides=mended
    )
    call = letters.stub.BulkResolveDeadLetters(asked, metadata=letters.client.metadata, timeout=60)
    async for response in call:
        if response.resolved == 1:
            assert response.stage == response.UNDER_WAY
            call.cancel()
            break

    async def is_requeued() -> bool:
        return bool((await letters.listed('workflow = "cut" AND resolution = REQUEUED')).dead_letters)

    await eventually(is_requeued, 30.0, "the dead letter to be requeued")
    (counted, done) = await redriven(letters, "cut", action=asked.action, input_overrides=mended)
    assert (counted.stage, counted.total) == (counted.COUNTED, 0)
    assert (done.stage, done.total, done.message) == (done.DONE, 0, "")
    assert (await letters.client.end_of(execution.id)).state == Execution.SUCCESS


async def test_a_redrive_does_not_wait_for_an_execution_that_is_cancelled_meanwhile(letters: Letters) -> None:
    await letters.client.apply("endless", [{"id": "w", "module": "test.waits@1"}])
    execution = await letters.client.start("endless")
    await set_aside(letters, (await newest_run(letters.client, execution.id, 1)).id)
    await letters.client.end_of(execution.id)
    redrive = asyncio.create_task(redriven(letters, "endless", action=pb.BulkResolveDeadLettersRequest.REQUEUE))
    await newest_run(letters.client, execution.id, 2)
    await letters.client.cancel(execution.id)
    last = (await redrive)[-1]
    assert (last.resolved, last.succeeded, last.failed_again, last.cancelled) == (1, 0, 0, 1)
    assert last.stage == last.STOPPED, "whether the cause is mended is not known"


async def test_an_execution_that_is_cancelled_before_it_is_admitted_again_is_not_counted_as_admitted(
    shared_stack: Stack,
) -> None:
    client = await new_workspace(shared_stack, "crowded", executions_max=1)
    await client.apply("waits", [{"id": "w", "module": "test.waits@1"}])
    await client.apply("damaged", [{"id": "a", "module": "noop@1"}])
    letters = Letters(shared_stack, client)
    execution = await given_up(shared_stack, client, "damaged")
    blocker = await client.start("waits")
    await newest_run(client, blocker.id, 1)
    redrive = asyncio.create_task(redriven(letters, "damaged", action=pb.BulkResolveDeadLettersRequest.REQUEUE))

    async def is_queued() -> bool:
        return bool((await client.get(execution.id)).state == Execution.PENDING)

    await eventually(is_queued, 30.0, "the execution to be queued again")
    await client.cancel(execution.id)
    last = (await redrive)[-1]
    assert (last.resolved, last.succeeded, last.failed_again, last.cancelled) == (1, 0, 0, 1)
    await client.cancel(blocker.id)


async def test_executions_are_redriven_until_they_cannot_be_admitted_again(shared_stack: Stack) -> None:
    """Their definition is damaged where it is stored, and mended there."""
    client = await new_workspace(shared_stack, "damaged", executions_max=20)
    await client.apply("damaged", [{"id": "a", "module": "noop@1"}])
    await client.apply("checked", NODES, edges=EDGES)
    letters = Letters(shared_stack, client)
    run_letter = await letters.of(await letters.failed("checked"))
    which = "WHERE workspace = 'damaged' AND workflow = 'damaged' RETURNING definition"
    ((whole,),) = await shared_stack.rows(
        f"SELECT definition FROM api.workflow_versions {which[: which.index(' RET')]}"
    )
    await shared_stack.rows(f"UPDATE api.workflow_versions SET definition = %s {which}", b'{"nodes": 1}')
    executions = [await client.start("damaged") for _ in range(4)]
    for execution in executions:
        assert (await client.end_of(execution.id)).state == Execution.FAILED
    request = pb.ListDeadLetterGroupsRequest()
    groups = (await client.call(letters.stub.ListDeadLetterGroups, request)).groups
    assert [(group.count, list(group.workflows)) for group in groups] == [(4, ["damaged"]), (1, ["checked"])]
    assert groups[0].sample.id in {execution.id for execution in executions}
    assert (groups[0].sample.reason, groups[1].sample.id) == (DeadLetter.ADMISSION, run_letter.id)
    of_group = (await letters.listed(f'error.fingerprint = "{groups[0].fingerprint}"')).dead_letters
    assert {letter.id for letter in of_group} == {execution.id for execution in executions}
    requeue = pb.BulkResolveDeadLettersRequest.REQUEUE
    stopped = (await redriven(letters, "damaged", action=requeue, notes="mended?"))[-1]
    assert (stopped.stage, stopped.resolved, stopped.failed_again) == (stopped.STOPPED, 1, 1)
    await shared_stack.rows(f"UPDATE api.workflow_versions SET definition = %s {which}", whole)
    done = (await redriven(letters, "damaged", action=requeue, notes="mended"))[-1]
    assert (done.stage, done.resolved, done.succeeded) == (done.DONE, 4, 4), "the one that failed again is among them"
    for execution in executions:
        assert (await client.end_of(execution.id)).state == Execution.SUCCESS
    found = (await letters.listed('workflow = "damaged"')).dead_letters
    assert sorted(letter.notes for letter in found) == ["mended"] * 4 + ["mended?"]
    assert {letter.resolution for letter in found} == {DeadLetter.REQUEUED}
