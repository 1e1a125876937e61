"""What a runner is told, and why each default is what it is."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import ClassVar

from services.chassis.process.config import Field, ProcessSettings


class RunnerSettings(ProcessSettings):
    """From the environment, prefix WINDLASS_."""

    # One on a person's own machine has the authority of its coordinators, a key, and no certificate.
    _is_called: ClassVar[bool] = False

    # Health only: nothing calls a runner.
    grpc_address: str = "127.0.0.1:7404"
    metrics_address: str = "127.0.0.1:7604"
    # Every coordinator, or "@file" that lists them.
    coordinators: str = "127.0.0.1:7403"
    # None: it is known by its certificate, as one of the stack's own.
    runner_key_file: Path | None = None
    # Python files with modules of the user's own, separated as in PATH.
    modules: str = ""
    # Runs with a task of their own at once. Ten suits work that waits for others; work that computes wants fewer.
    runner_concurrency: int = Field(default=10, ge=1, le=10_000)
    # Name for people; identity is a fresh instance id at every start.
    runner_id: str = ""
    # "gpu=true,zone=a": what nodes may ask for with runnerLabels.
    runner_labels: str = ""
    # Where results above 256 KiB are kept.
    output_store: Path = Path(".windlass/outputs")

    @property
    def name(self) -> str:
        """What the console shows."""
        return self.runner_id or f"runner-{self.replica}@{socket.gethostname()}"

    @property
    def module_files(self) -> list[Path]:
        """User modules to import."""
        return [Path(part) for part in self.modules.split(os.pathsep) if part]

    @property
    def labels(self) -> dict[str, str]:
        """As told at attach."""
        pairs = (part.partition("=") for part in self.runner_labels.split(",") if part)
        return {key.strip(): value.strip() for key, _, value in pairs}
