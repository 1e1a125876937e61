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
    # The circuit breakers of targets (docs/circuits.md). Ten outcomes are enough to tell a target that is down from a
    # call that failed by chance, and a window of 10 s forgets an old outage soon. Fewer than half of the calls may fail
    # without opening it, because then retries get through.
    circuit_window_seconds: float = Field(default=10.0, gt=0)
    circuit_outcomes_min: int = Field(default=10, ge=1)
    circuit_failure_share: float = Field(default=0.5, gt=0, le=1)
    # A restart of most servers takes less than half a minute. A target that stays away is asked less and less often,
    # but every five minutes at least.
    circuit_cool_down_seconds: float = Field(default=30.0, gt=0)
    circuit_cool_down_seconds_max: float = Field(default=300.0, gt=0)
    # Three calls at once do no harm to a server that has just come back, and three answers are more than luck.
    circuit_permits: int = Field(default=3, ge=1, le=100)
    # The permits of a coordinator that has died come back after this time.
    circuit_permit_seconds: float = Field(default=30.0, gt=0)
    # How long a dead letter is listed. Its execution can be retried as long as it can be read.
    dead_letter_seconds: float = Field(default=30 * DAY_SECONDS, gt=0)
    # The share of a runner's places, at least one, that goes only to workspaces that hold none there. Running work is
    # not taken back, so without it one workspace could hold all places for hours. With 0 there is none.
    runner_reserve: float = Field(default=0.2, ge=0.0, le=0.5)
    # How many events an execution has before it gets a snapshot, and how many more before each further one. They are
    # what a take-over folds at most: some 50 ms. Shorter executions cost nothing.
    snapshot_events: int = Field(default=5_000, ge=1)
    # How large the executions that a workspace has imported may be together. Ten gibibytes are ten of the largest
    # files, or some thousands of a few megabytes. A copy counts until its month is dropped.
    imported_bytes_max: int = Field(default=10 * 1024**3, ge=0)
