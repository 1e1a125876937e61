"""Dead letters at any coordinator (runs) and any dispatcher (executions that could not be admitted)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from services.api.app.ports import DeadLetterQuery, DeadLetterView, FailedRequeue, FailedResolution
from services.api.peers.replicas import Replicas
from services.chassis.grpc.timestamps import micros_of, put_micros
from windlass.api.v1 import dead_letters_pb2 as api
from windlass.coordinator.v1 import dead_letters_pb2 as pb
from windlass.coordinator.v1 import reads_pb2
from windlass.coordinator.v1.dead_letters_pb2_grpc import DeadLetterReadServiceStub
from windlass.coordinator.v1.reads_pb2_grpc import ReadServiceStub
from windlass.dispatcher.v1 import queue_pb2
from windlass.dispatcher.v1.queue_pb2_grpc import QueueServiceStub
from windlass.types.v1.start_pb2 import StartOrder

_ADMISSION: Final = "ADMISSION"


class CoordinatorDeadLetters:
    """Implements RunDeadLetters."""

    def __init__(self, peers: Replicas) -> None:
        self._peers = peers

    async def dead_letter(self, workspace: str, dead_letter_id: str) -> DeadLetterView | None:
        request = pb.GetDeadLetterRequest(workspace=workspace, dead_letter_id=dead_letter_id)
        found = await self._peers.call(lambda channel: DeadLetterReadServiceStub(channel).GetDeadLetter, request)
        if not found.HasField("dead_letter"):
            return None
        return view_of(found.dead_letter)._replace(rendered=found.rendered)

    async def outcome_after(self, letter: DeadLetterView) -> bool | None:
        old = letter.record
        request = reads_pb2.ListRunsRequest(execution_id=old.execution_id, node=old.node, takes_cut=True)
        found = await self._peers.call(lambda channel: ReadServiceStub(channel).ListRuns, request)
        runs = [
            record.run
            for record in found.runs
            if record.run.iteration == old.iteration and record.run.generation > old.generation
        ]
        if any(run.state == run.SUCCESS for run in runs):
            return True
        # An attempt that failed may be followed by another one; one that failed for good is a dead letter.
        for run in runs:
            workspace = found.runs[0].workspace
            if run.state in (run.FAILED, run.DLQ) and await self.dead_letter(workspace, run.id) is not None:
                return False
        return None

    async def dead_letter_page(self, asked: DeadLetterQuery) -> Sequence[DeadLetterView]:
        request = pb.ListDeadLettersRequest(
            workspace=asked.workspace, conditions=asked.conditions, ascending=asked.ascending, limit=asked.limit
        )
        if asked.after is not None:
            time_us, request.after_id = asked.after
            put_micros(request.after_time, time_us)
        found = await self._peers.call(lambda channel: DeadLetterReadServiceStub(channel).ListDeadLetters, request)
        return [view_of(letter) for letter in found.dead_letters]

    async def dead_letter_groups(
        self, workspace: str, conditions: Sequence[reads_pb2.Condition], limit: int
    ) -> Sequence[api.DeadLetterGroup]:
        request = pb.ListDeadLetterGroupsRequest(workspace=workspace, conditions=conditions, limit=limit)
        found = await self._peers.call(lambda channel: DeadLetterReadServiceStub(channel).ListDeadLetterGroups, request)
        return found.groups


class DispatcherDeadLetters:
    """Implements FailedExecutions."""

    def __init__(self, peers: Replicas) -> None:
        self._peers = peers

    async def failed(self, workspace: str, execution_id: str) -> DeadLetterView | None:
        request = queue_pb2.GetFailedRequest(execution_id=execution_id, workspace=workspace)
        response = await self._peers.call(lambda channel: QueueServiceStub(channel).GetFailed, request)
        return failed_view(response.row)._replace(row=response.row) if response.HasField("row") else None

    async def failed_page(self, asked: DeadLetterQuery) -> Sequence[DeadLetterView]:
        request = queue_pb2.ListFailedRequest(workspace=asked.workspace, ascending=asked.ascending, limit=asked.limit)
        if asked.after is not None:
            put_micros(request.after_time, asked.after[0])
            # The id of a run begins with that of its execution.
            request.after_execution_id = asked.after[1].partition(".")[0]
        response = await self._peers.call(lambda channel: QueueServiceStub(channel).ListFailed, request)
        return [failed_view(row) for row in response.items]

    async def outcome_after(self, letter: DeadLetterView) -> bool | None:
        request = queue_pb2.GetQueuedRequest(execution_ids=[letter.id])
        response = await self._peers.call(lambda channel: QueueServiceStub(channel).GetQueued, request)
        if not response.items:
            # It has ended, so a coordinator had it, if only to end it.
            return True
        (row,) = response.items
        if row.state == row.FAILED:
            return False
        # A failed dispatch parks it too, and is counted.
        is_parked = row.state == row.PARKED and not row.dispatch_attempts
        return True if is_parked or (row.begun and not letter.had_begun) else None

    async def requeue_failed(self, letter: DeadLetterView, asked: FailedRequeue) -> FailedResolution:
        start = StartOrder()
        start.CopyFrom(letter.row.start)
        if start.HasField("deadline_time"):
            if not start.HasField("timeout"):
                span_ns = start.deadline_time.ToNanoseconds() - start.create_time.ToNanoseconds()
                start.timeout.FromNanoseconds(span_ns)
            start.deadline_time.FromNanoseconds(asked.now_ns + start.timeout.ToNanoseconds())
        request = _resolve(letter, asked.reviewer, asked.notes)
        request.start.CopyFrom(start)
        request.request_id, request.request_hash = asked.request_id, asked.request_hash
        return await self._resolved(request)

    async def discard_failed(self, letter: DeadLetterView, reviewer: str, notes: str) -> FailedResolution:
        return await self._resolved(_resolve(letter, reviewer, notes))

    async def _resolved(self, request: queue_pb2.ResolveFailedRequest) -> FailedResolution:
        response = await self._peers.call(lambda channel: QueueServiceStub(channel).ResolveFailed, request)
        return FailedResolution(failed_view(response.row) if response.found else None, response.request_id_reused)


def _resolve(letter: DeadLetterView, reviewer: str, notes: str) -> queue_pb2.ResolveFailedRequest:
    row = letter.row
    return queue_pb2.ResolveFailedRequest(
        workspace=row.start.workspace,
        execution_id=letter.id,
        failure_time=row.failure_time,
        reviewer=reviewer,
        notes=notes,
    )


def view_of(letter: api.DeadLetter) -> DeadLetterView:
    resolution = api.DeadLetter.Resolution.Name(letter.resolution)
    return DeadLetterView(letter.id, micros_of(letter.quarantine_time), resolution, letter)


def failed_view(row: queue_pb2.Queued) -> DeadLetterView:
    """The whole execution is the dead letter."""
    start = row.start
    letter = api.DeadLetter(
        id=start.execution_id,
        execution_id=start.execution_id,
        workflow=start.workflow,
        version=start.version,
        reason=api.DeadLetter.ADMISSION,
        attempts=row.dispatch_attempts,
        quarantine_time=row.failure_time,
        resolution=api.DeadLetter.Resolution.Value(row.resolution or "PENDING"),
        reviewer=row.reviewer,
        notes=row.notes,
    )
    if row.HasField("resolve_time"):
        letter.resolve_time.CopyFrom(row.resolve_time)
    letter.error.type, letter.error.message = row.failure_reason or _ADMISSION, row.failure_message
    text = f"{_ADMISSION}\0{row.failure_reason}"
    letter.error.fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]
    return view_of(letter)._replace(had_begun=row.begun)
