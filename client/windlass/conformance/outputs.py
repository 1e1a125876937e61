"""The kit's output store: it takes the uploads of a runner, and gives it what grants refer to.

All coordinators of the kit share one, because any coordinator answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import grpc
from google.rpc import error_details_pb2, status_pb2

from windlass.conformance.rules import Duty, Judge
from windlass.coordinator.v1 import sessions_pb2 as pb
from windlass.coordinator.v1.sessions_pb2_grpc import RunnerOutputsServicer

PART_BYTES_MAX = 1024 * 1024
_PIECE_BYTES = 64 * 1024
# The reasons for which a transfer is refused, and tried again. All but the first are RESOURCE_EXHAUSTED.
AWAY = "DEPENDENCY_UNAVAILABLE"
REFUSALS = (AWAY, "TRANSFERS_EXCEEDED", "SLOW_REQUESTS_EXCEEDED")


class KitUpload(NamedTuple):
    run: pb.HeldRun
    text: bytes
    # What the runner was answered.
    ref: pb.OutputRef


class KitOutputs(RunnerOutputsServicer):
    def __init__(self, key: Callable[[], str], judge: Judge) -> None:
        self.uploads: list[KitUpload] = []
        # The runs for which something was downloaded.
        self.downloads: list[pb.HeldRun] = []
        # The reasons for which the next transfers are still to be refused.
        self.refusals: list[str] = []
        self._values: dict[str, bytes] = {}
        self._key = key
        self._judge = judge

    def ref(self, text: bytes) -> pb.OutputRef:
        """Keep a value, so that a grant can refer to it."""
        key = f"kit/{len(self._values)}"
        self._values[key] = text
        return pb.OutputRef(key=key, sha256=hashlib.sha256(text).hexdigest(), size_bytes=len(text))

    async def UploadOutput(self, request_iterator: Any, context: Any) -> pb.UploadOutputResponse:
        await self._admit(context)
        requests = [request async for request in request_iterator]
        parts = [request.WhichOneof("part") for request in requests]
        sizes = [len(request.data) for request in requests[1:]]
        is_formed = parts[:1] == ["run"] and set(parts[1:]) == {"data"} and all(0 < n <= PART_BYTES_MAX for n in sizes)
        self._judge.check(
            Duty.UPLOAD_FORM, is_formed, f"it has the parts {parts[:3]}, of up to {max(sizes, default=0)}"
        )
        if not is_formed:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
        text = b"".join(request.data for request in requests)
        self.uploads.append(KitUpload(requests[0].run, text, self.ref(text)))
        return pb.UploadOutputResponse(output=self.uploads[-1].ref)

    async def DownloadOutput(
        self, request: pb.DownloadOutputRequest, context: Any
    ) -> AsyncIterator[pb.DownloadOutputResponse]:
        await self._admit(context)
        text = self._values.get(request.key)
        if text is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "OUTPUT_NOT_FOUND")
            return
        self.downloads.append(request.run)
        for start in range(0, len(text), _PIECE_BYTES):
            yield pb.DownloadOutputResponse(data=text[start : start + _PIECE_BYTES])

    async def _admit(self, context: Any) -> None:
        said = dict(context.invocation_metadata()).get("authorization")
        self._judge.check(Duty.KEY_SENT, said == f"Bearer {self._key()}", "the metadata of a transfer does not have it")
        if self.refusals:
            reason = self.refusals.pop(0)
            code = grpc.StatusCode.UNAVAILABLE if reason == AWAY else grpc.StatusCode.RESOURCE_EXHAUSTED
            message = "refused by the conformance kit"
            status = status_pb2.Status(code=code.value[0], message=message)
            status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="windlass"))
            await context.abort(code, message, (("grpc-status-details-bin", status.SerializeToString()),))
