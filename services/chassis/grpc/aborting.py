"""Ends a call with a status, and leaves nothing of it in memory.

gRPC keeps the AbortError of a call with the call, and the error keeps the frames through which it was raised and the
failure that was being handled. Those frames know the call again, with its request and its answer. Such a circle is only
freed by the garbage collector, which runs rarely, and until then the failed calls hold far more memory than all others.
So an AbortError is stripped where it is caught. gRPC raises it again by itself when the handler returns.

Hazard: await `abort` outside of any `except`, because the failure there would be held while the status is sent. A
caller who does not read delays that for as long as it likes.
"""

from __future__ import annotations

from typing import Any

import grpc
from google.rpc.status_pb2 import Status

from services.chassis.grpc.errors import status_code, trailers_of


async def abort(context: Any, status: Status) -> None:
    """Returns when the status has been sent. The handler must not do anything more with the call."""
    try:
        await context.abort(status_code(status), status.message, trailers_of(status))
    except grpc.aio.AbortError as aborted:
        strip(aborted)


def strip(aborted: grpc.aio.AbortError) -> None:
    aborted.__traceback__ = aborted.__context__ = None
