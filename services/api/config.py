"""The settings of api, each with its reason."""

from __future__ import annotations

from pathlib import Path

from services.chassis.process.config import Field, StoringSettings
from services.chassis.process.settings import variable


class ApiSettings(StoringSettings):
    grpc_address: str = "127.0.0.1:7401"
    metrics_address: str = "127.0.0.1:9401"
    # Where executions wait for admission, and where they are carried: a list, `@file` or `dns:` (chassis/addresses.py).
    dispatchers: str = "127.0.0.1:7402"
    coordinators: str = "127.0.0.1:7403"
    # Executions traced per second; beyond that none. The decision is made here and kept with the execution.
    traces_per_second: float = Field(default=20.0, ge=0)
    # Every call that misses its cache takes one for less than a millisecond.
    database_connections: int = Field(default=4, ge=1, le=64)
    # How long a start waits for its commit. Longer than a dispatcher takes to be replaced, shorter than clients wait.
    enqueue_seconds: float = Field(default=5.0, gt=0)
    # How long a read is tried at one peer after another: as long as one takes to be started again.
    read_seconds: float = Field(default=6.0, gt=0)
    # Processes that check inputs whose check may take long. A workspace uses one at a time, so with two another one's
    # check need not wait for it; each takes about 20 MB once it is used.
    checkers: int = Field(default=2, ge=1, le=16)
    # The same in every replica and after every start: with it a repeated CreateApiKey is answered with the same key
    # (app/key_material.py). None: the service secret.
    key_secret_file: Path | None = None

    def faults(self) -> list[str]:
        if self.tls_authority_file is None or self.key_secret_file is not None:
            return super().faults()
        needed = f"without a service secret {variable('key_secret_file')} is needed: repeats of CreateApiKey rest on it"
        return [needed, *super().faults()]
