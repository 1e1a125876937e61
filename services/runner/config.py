"""The settings of a runner, and the reason for each default."""

from __future__ import annotations

import os
import socket
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import ClassVar

from services.chassis.process.config import Field, ProcessSettings, variable


class RunnerSettings(ProcessSettings):
    """Read from the environment, with the prefix WINDLASS_."""

    # A runner on somebody's own machine trusts the coordinators' authority and has a key, but no certificate.
    _is_called: ClassVar[bool] = False

    # Serves health only: nothing else calls a runner.
    grpc_address: str = "127.0.0.1:7404"
    metrics_address: str = "127.0.0.1:7604"
    # All coordinators, or "@file" that lists them.
    coordinators: str = "127.0.0.1:7403"
    # None when the runner belongs to the stack and is known by its certificate.
    runner_key_file: Path | None = None
    # Python files with the user's modules, separated as in PATH.
    modules: str = ""
    # The number of runs with a task that go at once. Ten suits modules that wait; modules that compute want fewer.
    runner_concurrency: int = Field(default=10, ge=1, le=10_000)
    # A name for people. The identity is a new instance id at every start.
    runner_id: str = ""
    # The form is "gpu=true,zone=a". Nodes ask for these with runnerLabels.
    runner_labels: str = ""
    # The directory for outputs above 256 KiB, if this runner shares it with the coordinators. Without it they travel by
    # way of the coordinators, which suits a runner on another machine.
    output_store: Path | None = None
    # Networks like "10.1.0.0/16,fd12::/64", which modules may call although their addresses are not public. None by
    # default: whoever may write a workflow would otherwise reach everything that this machine reaches.
    runner_allow_net: str = ""

    def faults(self) -> list[str]:
        faults = super().faults()
        try:
            _ = self.allowed_networks
        except ValueError:
            faults.append(f"{variable('runner_allow_net')} must be networks like 10.1.0.0/16, with commas between them")
        return faults

    @property
    def name(self) -> str:
        """The name that the console shows."""
        return self.runner_id or f"runner-{self.replica}@{socket.gethostname()}"

    @property
    def module_files(self) -> list[Path]:
        return [Path(part) for part in self.modules.split(os.pathsep) if part]

    @property
    def labels(self) -> dict[str, str]:
        """The labels that the runner announces when it attaches."""
        pairs = (part.partition("=") for part in self.runner_labels.split(",") if part)
        return {key.strip(): value.strip() for key, _, value in pairs}

    @property
    def allowed_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        parts = (part.strip() for part in self.runner_allow_net.split(","))
        return tuple(ip_network(part) for part in parts if part)
