"""The settings of api, each with its reason."""

from __future__ import annotations

from pathlib import Path

from services.chassis.process.config import DAY_SECONDS, Field, StoringSettings, variable


class ApiSettings(StoringSettings):
    grpc_address: str = "127.0.0.1:7401"
    metrics_address: str = "127.0.0.1:7601"
    # The addresses of both services: a list, `@file` or `dns:` (chassis/grpc/addresses.py).
    dispatchers: str = "127.0.0.1:7402"
    coordinators: str = "127.0.0.1:7403"
    # At most this number of executions per second is traced. The decision is made here and stored with the execution.
    traces_per_second: float = Field(default=20.0, ge=0)
    # A call that misses its cache uses a connection for less than a millisecond.
    database_connections: int = Field(default=4, ge=1, le=64)
    # How long a start waits for its commit: longer than a dispatcher's replacement takes, shorter than clients wait.
    enqueue_seconds: float = Field(default=5.0, gt=0)
    # How long a read tries one peer after another: as long as the restart of a peer takes.
    read_seconds: float = Field(default=6.0, gt=0)
    # Children for checks of inputs that may take long. A workspace uses one at a time, so with two children a second
    # workspace need not wait. Each takes about 20 MB once it is used.
    checkers: int = Field(default=2, ge=1, le=16)
    # How long it is recorded who changed what.
    audit_seconds: float = Field(default=365 * DAY_SECONDS, gt=0)
    # How many executions of one workspace the jobs at this api give a command in a second. Each costs about six calls
    # of dispatchers and coordinators, so that a job uses a small part of what they can do.
    bulk_per_second: float = Field(default=100.0, gt=0)
    # How long a bulk job can be read after its end.
    bulk_job_seconds: float = Field(default=30 * DAY_SECONDS, gt=0)
    # It is the same in every replica and after every start, so that a repeated CreateApiKey gets the same key
    # (app/key_material.py). None: the service secret is used.
    key_secret_file: Path | None = None

    def faults(self) -> list[str]:
        if self.tls_authority_file is None or self.key_secret_file is not None:
            return super().faults()
        name = variable("key_secret_file")
        needed = f"{name} is needed where there is no service secret: a repeated CreateApiKey gets its key from it"
        return [needed, *super().faults()]
