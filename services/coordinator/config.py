"""The coordinator's settings; each with its reason."""

from __future__ import annotations

from services.chassis.process.config import Field, StoringSettings


class CoordinatorSettings(StoringSettings):
    grpc_address: str = "127.0.0.1:7403"
    metrics_address: str = "127.0.0.1:7603"
    # Every dispatcher replica: executions are leased from all of them.
    dispatchers: str = "127.0.0.1:7402"
    # For definitions and keys; any replica answers.
    apis: str = "127.0.0.1:7401"
    # Memory and the time of a take-over grow with it; what is beyond waits in the queue, where it costs a row.
    # The most is half of what a dispatcher takes from one holder: what has ended and is not answered yet counts too.
    executions_max: int = Field(default=2_000, ge=1, le=10_000)
