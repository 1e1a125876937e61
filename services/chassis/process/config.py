"""The settings that every process has. Each service adds its own in its config.py.

They come from the environment alone (`WINDLASS_…`), so that no secret is on a command line. They are read once, at
start, and checked together before anything is opened.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar, TypeVar

from services.chassis.identity.callers import ServiceCredential
from services.chassis.identity.tls import Pair, PublicAddress, Tls, authority_fault
from services.chassis.process.settings import EnvironmentSettings, Field, InvalidSettings, variable

__all__ = ["Field", "InvalidSettings", "ProcessSettings", "StoringSettings", "read_or_exit"]

Settings = TypeVar("Settings", bound="ProcessSettings")


class ProcessSettings(EnvironmentSettings):
    # False: no service calls this one, so it needs no certificate, even when its peers show theirs.
    _is_called: ClassVar[bool] = True

    # Loopback by default, so that nothing is open to a network unless it is asked for.
    grpc_address: str = "127.0.0.1:0"
    # The address of the Prometheus endpoint; the services have 7601 to 7604 by default. "": there is none.
    metrics_address: str = ""
    # The address of an OTLP/gRPC collector. "": tracing is off, and its libraries are not loaded.
    otlp_endpoint: str = ""
    service_secret_file: Path | None = None
    # SHA-256 of the system key in hexadecimal, for a service that keeps no keys. The system key opens channelz there.
    # None: no key does.
    system_key_hash_file: Path | None = None
    # All lease times are multiplied by this. Tests use 0.1.
    lease_scale: float = Field(default=1.0, gt=0)
    # Tells the replicas of one service apart in logs, spans and session names.
    replica: str = "0"
    log_level: str = "INFO"
    # The time after SIGTERM for the work in hand. Orchestrators kill after 30 s, `up` after 15 s.
    drain_seconds: float = Field(default=10.0, ge=0)
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    # The authority that signed the certificates of the peers. With it, both sides must show a certificate.
    tls_authority_file: Path | None = None
    # The name in the peers' certificates when they are reached by address.
    tls_server_name: str = ""
    # A second address over TLS for callers with a key and no certificate, and for probes. "": there is none.
    public_grpc_address: str = ""
    # The certificate shown there, if it needs another name or a public authority. None: the one shown to peers.
    public_tls_certificate_file: Path | None = None
    public_tls_key_file: Path | None = None

    def faults(self) -> list[str]:
        return [*self._faults_of_pairs(), *self._faults_of_authority(), *self._faults_of_public()]

    def _faults_of_pairs(self) -> list[str]:
        halves = {
            "tls": (self.tls_certificate_file, self.tls_key_file),
            "public_tls": (self.public_tls_certificate_file, self.public_tls_key_file),
        }
        return [
            f"{name}_certificate_file and {name}_key_file must be given together"
            for name, (certificate, key) in halves.items()
            if (certificate is None) != (key is None)
        ] + [fault for files in halves.values() if (pair := _pair(*files)) and (fault := pair.fault())]

    def _faults_of_authority(self) -> list[str]:
        if self.tls_authority_file is None:
            return []
        faults = [fault] if (fault := authority_fault(self.tls_authority_file)) else []
        if self._is_called and self.tls_certificate_file is None:
            faults.append("with tls_authority_file the peers demand tls_certificate_file and tls_key_file")
        if self.service_secret_file is not None:
            faults.append("tls_authority_file and service_secret_file are two ways to know the peers: give only one")
        return faults

    def _faults_of_public(self) -> list[str]:
        if not self.public_grpc_address:
            has_pair = self.public_tls_certificate_file or self.public_tls_key_file
            return ["public_tls_certificate_file needs public_grpc_address"] if has_pair else []
        if self.tls_authority_file is None or self.tls_certificate_file is None:
            # Without them grpc_address serves every caller already.
            return ["public_grpc_address needs tls_certificate_file and tls_authority_file"]
        return []

    @property
    def tls(self) -> Tls | None:
        pair = _pair(self.tls_certificate_file, self.tls_key_file)
        if pair is None and self.tls_authority_file is None:
            return None
        return Tls(pair, self.tls_authority_file, self.tls_server_name)

    @property
    def public(self) -> PublicAddress | None:
        pair = _pair(self.public_tls_certificate_file, self.public_tls_key_file) or _pair(
            self.tls_certificate_file, self.tls_key_file
        )
        if not self.public_grpc_address or pair is None:
            return None
        return PublicAddress(self.public_grpc_address, pair)

    def credential(self, service: str) -> ServiceCredential | None:
        """Signs the calls of this process as `service`, and recognises those of other services."""
        if self.service_secret_file is None:
            return None
        return ServiceCredential.from_file(self.service_secret_file, service)


def _pair(certificate_file: Path | None, key_file: Path | None) -> Pair | None:
    return None if certificate_file is None or key_file is None else Pair(certificate_file, key_file)


class StoringSettings(ProcessSettings):
    """The settings of a service that has tables."""

    # It holds the password of the service's role, so it is never printed.
    database_url: str = Field(default="", repr=False)
    # A file with the same, which keeps it out of the environment. database_url wins.
    database_url_file: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.database_url and self.database_url_file is not None:
            url = self.database_url_file.read_text(encoding="utf-8").strip()
            object.__setattr__(self, "database_url", url)

    def faults(self) -> list[str]:
        if self.database_url or self.database_url_file is not None:
            return super().faults()
        # Without it the driver would choose a server itself.
        needed = f"one of {variable('database_url')} and {variable('database_url_file')} is needed"
        return [needed, *super().faults()]


def read_or_exit(kind: type[Settings]) -> Settings:
    """For `__main__`: the settings, or else one line for each fault and exit code 2, as for a wrong command line."""
    try:
        return kind.from_environment()
    except InvalidSettings as failure:
        sys.stderr.write("".join(f"{fault}\n" for fault in failure.faults))
        sys.exit(2)
