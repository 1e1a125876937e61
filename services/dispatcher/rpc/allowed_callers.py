"""The callers of each method. The server does not start when a method is missing here."""

from collections.abc import Mapping
from typing import Final

from services.chassis.identity.callers import Rule, services
from services.chassis.lease.frames import HEARD_ITEMS_MAX

_QUEUE: Final = "/windlass.dispatcher.v1.QueueService"

RULES: Final[Mapping[str, Rule]] = {
    "/windlass.dispatcher.v1.EnqueueService/Enqueue": services("api").within(None).judging_text(),
    f"{_QUEUE}/GetQueued": services("api"),
    f"{_QUEUE}/ListQueued": services("api"),
    f"{_QUEUE}/GetQueuePlace": services("api"),
    f"{_QUEUE}/ListFailed": services("api"),
    f"{_QUEUE}/GetFailed": services("api"),
    f"{_QUEUE}/ResolveFailed": services("api"),
    f"{_QUEUE}/FindRequests": services("api"),
    # A coordinator forwards reports of runs whose execution another coordinator holds.
    f"{_QUEUE}/Deliver": services("api", "coordinator"),
    # A coordinator wakes executions that it has parked.
    f"{_QUEUE}/WakeParked": services("coordinator"),
    f"{_QUEUE}/ConfigureWorkspace": services("api"),
    "/windlass.dispatcher.v1.CoordinatorSessions/Session": services("coordinator")
    .within(None)
    .judging_text()
    .holding(HEARD_ITEMS_MAX),
}
