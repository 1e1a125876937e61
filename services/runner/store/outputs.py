"""Large outputs in a directory that all runners of the machine share with the coordinators."""

from __future__ import annotations

from pathlib import Path

from services.chassis.blobs import BlobMissing, DirectoryBlobs, month_of
from services.chassis.process.crash import crash_point
from services.runner.core.job import OutputMissing, RunLease, StoredOutput


class DirectoryOutputs:
    def __init__(self, directory: Path) -> None:
        self._blobs = DirectoryBlobs(directory)

    async def put(self, value: bytes, lease: RunLease) -> StoredOutput:
        """Keep the output of a run for its workspace. It is durable on return."""
        crash_point("runner.output.before")
        kept = await self._blobs.put(value, lease.workspace, month_of(lease.execution_id))
        crash_point("runner.output.after")
        return StoredOutput(*kept, lease)

    async def get(self, ref: StoredOutput) -> bytes:
        """A value of the run's workspace, as it was put. Raises OutputMissing."""
        try:
            return await self._blobs.get(ref, ref.lease.workspace)
        except BlobMissing as missing:
            raise OutputMissing(str(missing)) from None

    async def sweep(self) -> int:
        """Remove the temporary files of writers that died; return their number."""
        return await self._blobs.sweep()
