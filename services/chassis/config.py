"""The settings that every process has; each service adds its own in its config.py.

From the environment only (`WINDLASS_…`), read once at start: a process never changes under its own feet,
and no secret is ever on a command line. What belongs together is checked together, before anything is
opened.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypeVar

from services.chassis.identity import ServiceCredential
from services.chassis.settings import EnvironmentSettings, Field, InvalidSettings, variable
from services.chassis.tls import Tls

__all__ = ["Field", "InvalidSettings", "ProcessSettings", "StoringSettings", "read_or_exit"]

Settings = TypeVar("Settings", bound="ProcessSettings")


class ProcessSettings(EnvironmentSettings):
    # Loopback unless told otherwise: nothing is open to a network by default.
    grpc_address: str = "127.0.0.1:0"
    # Prometheus text; the services have 9401 to 9404. "" = no metrics endpoint.
    metrics_address: str = ""
    # OTLP/gRPC collector; "" = tracing off, and nothing of it loaded.
    otlp_endpoint: str = ""
    service_secret_file: Path | None = None
    # SHA-256 of the system key in hexadecimal, for a service that keeps no keys: it opens channelz there. None: nothing
    # does, since which keys there are is known to the service that keeps them.
    system_key_hash_file: Path | None = None
    # All lease terms times this; 0.1 in tests.
    lease_scale: float = Field(default=1.0, gt=0)
    # Tells the replicas of one service apart in logs, spans and session names.
    replica: str = "0"
    log_level: str = "INFO"
    # What SIGTERM gives the work in hand; orchestrators kill after 30 s, `up` after 15 s.
    drain_seconds: float = Field(default=10.0, ge=0)
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    # The authority that signed the peers; with it, both sides must show a certificate.
    tls_authority_file: Path | None = None
    # The name in the peers' certificates when they are reached by address.
    tls_server_name: str = ""

    def faults(self) -> list[str]:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            return ["tls_certificate_file and tls_key_file come together"]
        return []

    @property
    def tls(self) -> Tls | None:
        if self.tls_certificate_file is None or self.tls_key_file is None:
            return None
        return Tls(
            certificate_file=self.tls_certificate_file,
            key_file=self.tls_key_file,
            authority_file=self.tls_authority_file,
            server_name=self.tls_server_name,
        )

    def credential(self, service: str) -> ServiceCredential | None:
        """How this process signs its calls as `service`, and knows those of others."""
        if self.service_secret_file is None:
            return None
        return ServiceCredential.from_file(self.service_secret_file, service)


class StoringSettings(ProcessSettings):
    """Of a service with tables of its own."""

    # Carries the password of the service's own role, so it is never printed.
    database_url: str = Field(default="", repr=False)
    # The same from a file of ours alone, so that it is not in the environment; database_url wins.
    database_url_file: Path | None = None

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if not self.database_url and self.database_url_file is not None:
            url = self.database_url_file.read_text(encoding="utf-8").strip()
            object.__setattr__(self, "database_url", url)

    def faults(self) -> list[str]:
        if self.database_url or self.database_url_file is not None:
            return super().faults()
        # Without it the driver would look for a server of its own choice.
        needed = f"one of {variable('database_url')} and {variable('database_url_file')} is needed"
        return [needed, *super().faults()]


def read_or_exit(kind: type[Settings]) -> Settings:
    """For `__main__`: the settings, or every fault on a line of its own and exit code 2, as of a wrong command."""
    try:
        return kind()
    except InvalidSettings as failure:
        sys.stderr.write("".join(f"{fault}\n" for fault in str(failure).split("; ")))
        sys.exit(2)
