"""Outputs that are too large for a message: runners bring and fetch them, and api reads them for users.

A runner names a run that it was granted, and is given only what grants of that execution refer to: stored outputs of
its runs by their key, an output that is in the tables as "runs/<number>", and the execution's input as "$input".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from services.chassis.blobs import PIECE_BYTES, BlobMissing, BlobTooLarge, DirectoryBlobs, month_of
from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.shares import Shares
from services.chassis.identity.callers import Identity, caller
from services.coordinator.app.ports import RunName, RunOutput, RunStanding
from services.coordinator.core.run_ids import split_run_id
from services.coordinator.core.values import OutputRef, Value
from services.coordinator.rpc.run_messages import INPUT_KEY, run_of_key
from windlass.coordinator.v1 import sessions_pb2 as pb
from windlass.coordinator.v1.sessions_pb2_grpc import RunnerOutputsServicer

# The largest output of a run, as our own runner has it.
OUTPUT_BYTES_MAX: Final = 64 * 1024 * 1024
_PART_BYTES_MAX: Final = 1024 * 1024
# Each transfer may hold a file and some parts of it. A workspace alone gets half of them, however many keys it has.
_TRANSFERS_MAX: Final = 64
_KEY_TRANSFERS_MAX: Final = 8


class OutputReads(Protocol):
    async def run_standings(self, names: Collection[RunName]) -> Mapping[RunName, RunStanding]: ...
    async def run_output(self, execution_id: str, number: int) -> RunOutput | None: ...
    async def stored_output(self, execution_id: str, key: str) -> OutputRef | None:
        """The output with this key, if a run of the execution has it."""
        ...

    async def input_of(self, execution_id: str) -> bytes | None: ...
    async def workspace_of(self, execution_id: str) -> str | None: ...


class RunOutputsServicer(RunnerOutputsServicer):
    def __init__(self, reads: OutputReads, blobs: DirectoryBlobs) -> None:
        self._reads = reads
        self._blobs = blobs
        self._shares = Shares(_TRANSFERS_MAX)
        self._transfers: Counter[Identity] = Counter()

    async def UploadOutput(self, request_iterator: Any, context: Any) -> pb.UploadOutputResponse:
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "run":
            raise Refusal("INVALID_REQUEST", "the first message names the run, and nothing else")
        with self._transfer():
            execution_id, workspace = await self._held(first.run)
            month = month_of(execution_id)
            try:
                kept = await self._blobs.put_parts(_parts(requests), OUTPUT_BYTES_MAX, workspace, month)
            except BlobTooLarge:
                raise Refusal("OUTPUT_TOO_LARGE", f"an output has at most {OUTPUT_BYTES_MAX} bytes") from None
            return pb.UploadOutputResponse(output=pb.OutputRef(**kept._asdict()))

    async def DownloadOutput(
        self, request: pb.DownloadOutputRequest, context: Any
    ) -> AsyncIterator[pb.DownloadOutputResponse]:
        with self._transfer():
            execution_id, workspace = await self._held(request.run)
            value = await self._referred(execution_id, request.key)
            async for part in self._parts_of(value, workspace):
                yield pb.DownloadOutputResponse(data=part)

    async def read(self, run_id: str, workspace: str) -> AsyncIterator[bytes]:
        """The output of a run, for a user of the workspace."""
        execution_id, number = split_run_id(run_id)
        found = await self._reads.run_output(execution_id, number) if number else None
        if found is None or found.workspace != workspace:
            raise Refusal("RUN_NOT_FOUND", f"there is no run {run_id!r} in this workspace")
        if found.is_rendering:
            raise Refusal(
                "OUTPUT_NOT_FOUND", "the run only rendered the inputs of another one: GetRunInputs shows them"
            )
        if found.output is None:
            raise Refusal("OUTPUT_NOT_FOUND", f"the run is {found.state} and has no output")
        async for part in self._parts_of(found.output, workspace):
            yield part

    @contextmanager
    def _transfer(self) -> Iterator[None]:
        who = caller()
        if self._transfers[who] >= _KEY_TRANSFERS_MAX or not self._shares.take(who.tenant):
            raise Refusal(
                "TRANSFERS_EXCEEDED", "too many outputs are on their way; try again in a moment", retry_after=1
            )
        self._transfers[who] += 1
        try:
            yield
        finally:
            self._shares.give_back(who.tenant)
            self._transfers[who] -= 1
            if not self._transfers[who]:
                del self._transfers[who]

    async def _held(self, run: pb.HeldRun) -> tuple[str, str]:
        """The execution of the run and its workspace, if the caller has it."""
        name = execution_id, number = split_run_id(run.lease.lease_id)
        found = (await self._reads.run_standings([name])).get(name) if number else None
        workspace = None if found is None else await self._reads.workspace_of(execution_id)
        if (
            found is None
            or workspace is None
            or (found.epoch, found.instance_id) != (run.lease.epoch, run.instance_id)
            or caller().workspace not in ("", workspace)
        ):
            raise Refusal("LEASE_NOT_FOUND", "there is no such run, or it was not granted to this instance")
        if not found.is_live:
            raise Refusal("LEASE_ENDED", "the run is over")
        return execution_id, workspace

    async def _referred(self, execution_id: str, key: str) -> Value:
        value: Value | None
        if key == INPUT_KEY:
            value = await self._reads.input_of(execution_id)
        elif number := run_of_key(key):
            found = await self._reads.run_output(execution_id, number)
            value = None if found is None else found.output
        else:
            value = await self._reads.stored_output(execution_id, key)
        if value is None:
            raise Refusal("OUTPUT_NOT_FOUND", "no grant of this execution refers to that")
        return value

    async def _parts_of(self, value: Value, workspace: str) -> AsyncIterator[bytes]:
        if not isinstance(value, OutputRef):
            for start in range(0, len(value), PIECE_BYTES):
                yield value[start : start + PIECE_BYTES]
            return
        try:
            async for part in self._blobs.get_parts(value, workspace):
                yield part
        except BlobMissing:
            raise Refusal("OUTPUT_NOT_FOUND", "the output store has lost this output") from None


async def _parts(requests: AsyncIterator[pb.UploadOutputRequest]) -> AsyncIterator[bytes]:
    is_empty = True
    async for request in requests:
        if not 0 < len(request.data) <= _PART_BYTES_MAX:
            raise Refusal("INVALID_REQUEST", f"each message after the first has 1 to {_PART_BYTES_MAX} bytes of data")
        is_empty = False
        yield request.data
    if is_empty:
        raise Refusal("INVALID_REQUEST", "an output has at least one byte")
