"""DeadLetterReadService: dead letters from their table. Any replica answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.timestamps import micros_of, put_micros
from services.coordinator.app.ports import DeadLetterPlace, Row
from services.coordinator.core.run_ids import split_run_id
from services.coordinator.rpc.large_pages import limit_of
from services.coordinator.rpc.public_executions import put_error, put_time
from windlass.api.v1 import dead_letters_pb2 as api
from windlass.coordinator.v1 import dead_letters_pb2 as pb
from windlass.coordinator.v1.dead_letters_pb2_grpc import DeadLetterReadServiceServicer
from windlass.coordinator.v1.reads_pb2 import Condition

_WORKFLOWS_MAX: Final = 20
_REASONS: Final = dict(api.DeadLetter.Reason.items())
_RESOLUTIONS: Final = dict(api.DeadLetter.Resolution.items())


class DeadLetterReads(Protocol):
    async def dead_letter(self, workspace: str, execution_id: str, number: int) -> Row | None: ...

    async def dead_letter_page(
        self,
        workspace: str,
        conditions: Sequence[Condition],
        after: DeadLetterPlace | None,
        limit: int,
        *,
        is_ascending: bool,
    ) -> list[Row]:
        """Raises ValueError when a condition cannot be applied."""
        ...

    async def dead_letter_groups(self, workspace: str, conditions: Sequence[Condition], limit: int) -> list[Row]: ...


class DeadLetterReadServicer(DeadLetterReadServiceServicer):
    def __init__(self, reads: DeadLetterReads) -> None:
        self._reads = reads

    async def GetDeadLetter(self, request: pb.GetDeadLetterRequest, context: Any) -> pb.GetDeadLetterResponse:
        execution_id, number = split_run_id(request.dead_letter_id)
        row = await self._reads.dead_letter(request.workspace, execution_id, number) if number else None
        if row is None:
            return pb.GetDeadLetterResponse()
        return pb.GetDeadLetterResponse(dead_letter=dead_letter(row), rendered=row["rendered"] or b"")

    async def ListDeadLetters(self, request: pb.ListDeadLettersRequest, context: Any) -> pb.ListDeadLettersResponse:
        execution_id, number = split_run_id(request.after_id)
        after = None
        if request.HasField("after_time"):
            after = DeadLetterPlace(micros_of(request.after_time), execution_id or request.after_id, number)
        try:
            rows = await self._reads.dead_letter_page(
                request.workspace, request.conditions, after, limit_of(request.limit), is_ascending=request.ascending
            )
        except ValueError as fault:
            raise Refusal("INVALID_REQUEST", f"the filter cannot be applied: {fault}") from None
        return pb.ListDeadLettersResponse(dead_letters=[dead_letter(row) for row in rows])

    async def ListDeadLetterGroups(
        self, request: pb.ListDeadLetterGroupsRequest, context: Any
    ) -> pb.ListDeadLetterGroupsResponse:
        try:
            rows = await self._reads.dead_letter_groups(request.workspace, request.conditions, limit_of(request.limit))
        except ValueError as fault:
            raise Refusal("INVALID_REQUEST", f"the filter cannot be applied: {fault}") from None
        return pb.ListDeadLetterGroupsResponse(groups=[_group(row) for row in rows])


def dead_letter(row: Row) -> api.DeadLetter:
    made = api.DeadLetter()
    made.id = made.run_id = f"{row['execution_id']}.{row['number']}"
    made.execution_id, made.workflow, made.version = row["execution_id"], row["workflow"], row["version"]
    made.node, made.module, made.attempts = row["node"], row["module"], row["attempts"]
    made.iteration, made.generation = row["iteration"], row["generation"]
    made.reason, made.resolution = _REASONS[row["reason"]], _RESOLUTIONS[row["resolution"]]
    put_error(made.error, row)
    put_time(made.quarantine_time, row["quarantine_time"])
    put_time(made.resolve_time, row["resolve_time"])
    made.reviewer, made.notes = row["reviewer"], row["notes"]
    if row["requeued_run"]:
        made.requeued_run_id = f"{row['execution_id']}.{row['requeued_run']}"
    return made


def _group(row: Row) -> api.DeadLetterGroup:
    made = api.DeadLetterGroup(fingerprint=row["error_fingerprint"], count=row["count"], sample=dead_letter(row))
    made.workflows.extend(row["workflows"][:_WORKFLOWS_MAX])
    put_micros(made.first_time, row["first_time"])
    put_micros(made.last_time, row["last_time"])
    return made
