"""ReadService: executions, runs and events from the tables. Any replica answers for any execution."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from services.chassis.blobs import PIECE_BYTES
from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.shares import Shares
from services.chassis.grpc.timestamps import micros_of
from services.coordinator.app.explainer import Explainer
from services.coordinator.app.journal_walks import JournalWalks
from services.coordinator.app.ports import Row, RunName, RunPage, Standing, StoredEvents
from services.coordinator.app.run_inputs import IN_PARTS_BYTES_MAX, RunInputs
from services.coordinator.core.events import Event
from services.coordinator.core.fold.answers import request_of
from services.coordinator.core.run_ids import is_execution_id, split_run_id
from services.coordinator.rpc.explanations import explanation_of
from services.coordinator.rpc.large_pages import PAGE_BYTES_MAX, limit_of, page_of
from services.coordinator.rpc.public_executions import (
    approval_record,
    event_record,
    execution_record,
    past_record,
    run_record,
)
from windlass.api.v1 import resources_pb2 as api
from windlass.coordinator.v1 import reads_pb2 as pb
from windlass.coordinator.v1.reads_pb2_grpc import ReadServiceServicer

_IDS_MAX: Final = 1_000
# Large inputs that are sent at once. Each may take 64 MiB until its caller has read it. A workspace alone gets half.
_LARGE_INPUTS_MAX: Final = 4
# A list of events ends where their details reach this size. An output of up to 256 KiB is part of its event.
_EVENT_BYTES: Final = 2 * 1024 * 1024


class Reads(StoredEvents, Protocol):
    async def executions(self, execution_ids: Sequence[str]) -> list[Row]: ...
    async def running_nodes(self, execution_ids: Sequence[str]) -> Mapping[str, Sequence[str]]: ...
    async def standings(self, execution_ids: Sequence[str]) -> Mapping[str, Standing]: ...
    async def execution_names(self, request: pb.ListExecutionsRequest) -> list[str]: ...
    async def listed_executions(self, execution_ids: Sequence[str]) -> list[Row]: ...
    async def approval_names(self, request: pb.ListApprovalsRequest, after: tuple[str, int]) -> list[RunName]: ...
    async def approvals(self, names: Sequence[RunName]) -> list[Row]: ...
    async def runs(
        self, workspace: str | None, *, after: tuple[str, int], node: str, state: str, limit: int, may_cut: bool
    ) -> RunPage: ...

    async def start_order(self, execution_id: str) -> bytes | None: ...
    async def appends_with(
        self, execution_id: str, message_id: str
    ) -> Iterable[tuple[str, int, int, Event | object]]: ...


class ReadServicer(ReadServiceServicer):
    def __init__(
        self,
        reads: Reads,
        modules: Callable[[str], tuple[Iterable[str], Iterable[str]]],
        run_output: Callable[[str, str], AsyncIterator[bytes]],
        walks: JournalWalks,
        explainer: Explainer,
        run_inputs: RunInputs,
    ) -> None:
        self._reads = reads
        self._walks = walks
        self._explainer = explainer
        self._run_inputs = run_inputs
        self._shares = Shares(_LARGE_INPUTS_MAX)
        self._modules = modules
        self._run_output = run_output

    async def GetExecutions(self, request: pb.GetExecutionsRequest, context: Any) -> pb.GetExecutionsResponse:
        if len(request.execution_ids) > _IDS_MAX:
            raise Refusal("INVALID_REQUEST", f"a request has at most {_IDS_MAX} ids")
        ids = [each for each in request.execution_ids if is_execution_id(each)]
        rows = await self._reads.executions(ids) if ids else []
        return pb.GetExecutionsResponse(executions=[execution_record(row) for row in await self._with_running(rows)])

    async def _with_running(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows, each of which has a summary: an execution that goes on names its running nodes."""
        going = [row["execution_id"] for row in rows if row["summary"] is None]
        running = await self._reads.running_nodes(going) if going else {}
        return [{**row, "summary": row["summary"] or {"running": running.get(row["execution_id"], ())}} for row in rows]

    async def ListExecutions(self, request: pb.ListExecutionsRequest, context: Any) -> pb.ListExecutionsResponse:
        _id(request.from_execution_id)
        request.limit = limit_of(request.limit)
        try:
            names = await self._reads.execution_names(request)
        except ValueError as fault:
            raise Refusal("INVALID_REQUEST", f"the filter cannot be applied: {fault}") from None
        bytes_max = PAGE_BYTES_MAX if request.takes_cut else None
        page = await page_of(names, self._reads.listed_executions, execution_record, bytes_max=bytes_max)
        return pb.ListExecutionsResponse(executions=page.records, is_cut=page.is_cut)

    async def ListApprovals(self, request: pb.ListApprovalsRequest, context: Any) -> pb.ListApprovalsResponse:
        request.limit = limit_of(request.limit)
        try:
            names = await self._reads.approval_names(request, split_run_id(request.after_approval_id))
        except ValueError as fault:
            raise Refusal("INVALID_REQUEST", f"the filter cannot be applied: {fault}") from None
        bytes_max = PAGE_BYTES_MAX if request.takes_cut else None
        page = await page_of(names, self._reads.approvals, approval_record, bytes_max=bytes_max)
        return pb.ListApprovalsResponse(approvals=page.records, is_cut=page.is_cut)

    async def GetApproval(self, request: pb.GetApprovalRequest, context: Any) -> pb.GetApprovalResponse:
        name = split_run_id(request.approval_id)
        rows = await self._reads.approvals([name]) if name[1] else []
        return pb.GetApprovalResponse(approval=approval_record(rows[0]) if rows else None)

    async def ListModules(self, request: pb.ListModulesRequest, context: Any) -> pb.ListModulesResponse:
        modules, rendering = self._modules(request.workspace)
        return pb.ListModulesResponse(modules=sorted(modules), rendering=sorted(rendering))

    async def GetPastExecution(self, request: pb.GetPastExecutionRequest, context: Any) -> pb.GetPastExecutionResponse:
        row = await self._row(request.execution_id)
        past = None if row is None else await self._walks.state(row, max(1, request.as_of_seq))
        if row is None or past is None:
            return pb.GetPastExecutionResponse()
        last = await self.event_records(request.execution_id, past.seq - 1, past.seq, 1)
        time = micros_of(last[0].event.time) if last else 0
        return pb.GetPastExecutionResponse(execution=past_record(past, time, row["imported_execution_id"]))

    async def ExplainExecution(self, request: pb.ExplainExecutionRequest, context: Any) -> pb.ExplainExecutionResponse:
        row = await self._row(request.execution_id)
        if row is None:
            return pb.ExplainExecutionResponse()
        explained = await self._explainer.explain(row, micros_of(request.queued_time))
        return pb.ExplainExecutionResponse(explanation=explanation_of(explained))

    async def _row(self, execution_id: str) -> Row | None:
        rows = await self._reads.executions([execution_id]) if is_execution_id(execution_id) else []
        return rows[0] if rows else None

    async def ListRuns(self, request: pb.ListRunsRequest, context: Any) -> pb.ListRunsResponse:
        after_execution, after_number = split_run_id(request.after_run_id)
        found = await self._reads.runs(
            None if request.execution_id else request.workspace,
            after=(_id(request.execution_id) or after_execution, after_number),
            node=request.node,
            state=api.Run.State.Name(request.state) if request.state else "",
            limit=limit_of(request.limit),
            may_cut=request.takes_cut,
        )
        # The caller does not learn of runs of another workspace.
        rows = [row for row in found.rows if request.workspace in ("", row["workspace"])]
        return pb.ListRunsResponse(runs=[run_record(row) for row in rows], is_cut=found.is_cut)

    async def GetRun(self, request: pb.GetRunRequest, context: Any) -> pb.GetRunResponse:
        row = await self._run(*split_run_id(request.run_id))
        return pb.GetRunResponse(run=None if row is None else run_record(row))

    async def _run(self, execution_id: str, number: int) -> Row | None:
        if not number:
            return None
        after = (execution_id, number - 1)
        found = await self._reads.runs(None, after=after, node="", state="", limit=1, may_cut=False)
        return next((row for row in found.rows if row["number"] == number), None)

    async def ReadRunOutput(
        self, request: pb.ReadRunOutputRequest, context: Any
    ) -> AsyncIterator[pb.ReadRunOutputResponse]:
        async for part in self._run_output(request.run_id, request.workspace):
            yield pb.ReadRunOutputResponse(data=part)

    async def ReadRunInputs(self, request: pb.ReadRunInputsRequest, context: Any) -> pb.ReadRunInputsResponse:
        rows = await self._rows_of_run(request.run_id, request.workspace)
        return pb.ReadRunInputsResponse(documents=await self._run_inputs.of(*rows))

    async def StreamRunInputs(
        self, request: pb.StreamRunInputsRequest, context: Any
    ) -> AsyncIterator[pb.StreamRunInputsResponse]:
        rows = await self._rows_of_run(request.run_id, request.workspace)
        if not self._shares.take(request.workspace):
            message = "several large inputs are on their way; try again in a moment"
            raise Refusal("TRANSFERS_EXCEEDED", message, retry_after=1)
        try:
            documents = await self._run_inputs.of(*rows, bytes_max=IN_PARTS_BYTES_MAX)
            for start in range(0, len(documents), PIECE_BYTES):
                yield pb.StreamRunInputsResponse(data=documents[start : start + PIECE_BYTES])
        finally:
            self._shares.give_back(request.workspace)

    async def _rows_of_run(self, run_id: str, workspace: str) -> tuple[Row, Row]:
        """The row of the execution, and that of the run."""
        execution_id, number = split_run_id(run_id)
        execution = await self._row(execution_id) if number else None
        found = await self._run(execution_id, number)
        if execution is None or found is None or execution["workspace"] != workspace:
            raise Refusal("RUN_NOT_FOUND", f"there is no run {run_id!r} in this workspace")
        return execution, found

    async def ListEvents(self, request: pb.ListEventsRequest, context: Any) -> pb.ListEventsResponse:
        row = await self._row(request.execution_id)
        if row is None:
            return pb.ListEventsResponse()
        events = await self.event_records(
            request.execution_id, request.after_seq, request.as_of_seq, limit_of(request.limit)
        )
        return pb.ListEventsResponse(workspace=row["workspace"], events=events)

    async def FindAnswer(self, request: pb.FindAnswerRequest, context: Any) -> pb.FindAnswerResponse:
        if not is_execution_id(request.execution_id) or not request.message_id:
            return pb.FindAnswerResponse()
        name, _ = request_of(request.message_id)
        for id_, seq, epoch, event in await self._reads.appends_with(request.execution_id, name):
            if isinstance(event, Event) and request_of(getattr(event, "message_id", ""))[0] == name:
                return pb.FindAnswerResponse(event=event_record(event, id_, seq, epoch))
        return pb.FindAnswerResponse()

    async def GetStartOrder(self, request: pb.GetStartOrderRequest, context: Any) -> pb.GetStartOrderResponse:
        response = pb.GetStartOrderResponse()
        if is_execution_id(request.execution_id) and (order := await self._reads.start_order(request.execution_id)):
            response.start.ParseFromString(order)
        return response

    async def event_records(
        self, execution_id: str, after_seq: int, as_of_seq: int, limit: int
    ) -> list[pb.EventRecord]:
        """At most `limit` events after `after_seq`, up to `as_of_seq` unless that is 0. Large ones are fewer, but at
        least one."""
        records: list[pb.EventRecord] = []
        room = _EVENT_BYTES
        for _, seq, epoch, event in await self._reads.events(execution_id, after_seq=after_seq, limit=limit):
            if len(records) == limit or room <= 0 or 0 < as_of_seq < seq:
                break
            if not isinstance(event, Event):
                # A newer version wrote it, and the events after it depend on it.
                break
            if seq > after_seq:
                records.append(event_record(event, execution_id, seq, epoch))
                room -= len(records[-1].details)
        return records


def _id(text: str) -> str:
    if text and not is_execution_id(text):
        raise Refusal("INVALID_REQUEST", "an execution id is a UUID in lowercase with hyphens")
    return text
