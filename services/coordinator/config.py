"""The settings of the coordinator, each with its reason."""

from __future__ import annotations

from pathlib import Path

from services.chassis.process.config import DAY_SECONDS, Field, StoringSettings


class CoordinatorSettings(StoringSettings):
    grpc_address: str = "127.0.0.1:7403"
    metrics_address: str = "127.0.0.1:7603"
    # All dispatcher replicas, because executions are leased from each of them.
    dispatchers: str = "127.0.0.1:7402"
    # The api replicas, asked for definitions and keys. Any of them answers.
    apis: str = "127.0.0.1:7401"
    # The directory for outputs above 256 KiB. All coordinators share it, and so may runners.
    output_store: Path = Path(".windlass/outputs")
    # Memory and the time of a take-over grow with it. Further executions wait in the queue, where each costs a row.
    # The maximum is half of what a dispatcher accepts from one holder, because executions that have ended and are not
    # acknowledged yet count too.
    executions_max: int = Field(default=2_000, ge=1, le=10_000)
    # How long an execution and its outputs can be read after its end. They are dropped by the month in which they were
    # created, so they stay for up to a month longer, and for as long as any execution of their month goes on.
    history_seconds: float = Field(default=90 * DAY_SECONDS, gt=0)
    # How long a dead letter is listed. Its execution can be retried as long as it can be read.
    dead_letter_seconds: float = Field(default=30 * DAY_SECONDS, gt=0)
    # The share of a runner's places, at least one, that goes only to workspaces that hold none there. Running work is
    # not taken back, so without it one workspace could hold all places for hours. With 0 there is none.
    runner_reserve: float = Field(default=0.2, ge=0.0, le=0.5)
