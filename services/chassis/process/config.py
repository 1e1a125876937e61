"""Settings: the classes of settings that are read from the environment, and the settings that every process has.

    class ShopSettings(ProcessSettings): tills: int = Field(default=2, ge=1, le=9)      # WINDLASS_TILLS

They come from the environment alone (`WINDLASS_…`), so that no secret is on a command line. They are read once, at
start, and all their faults are reported together before anything is opened. It is written by hand, because
pydantic-settings costs every process 8 MB and a tenth of a second.

Hazard: an empty variable counts as unset, so that a template may leave it blank. A fault never shows a value, because
the value may be a secret.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar, dataclass_transform

from services.chassis.identity.callers import ServiceCredential
from services.chassis.identity.tls import Pair, PublicAddress, Tls, authority_fault
from services.chassis.process.naming import ENVIRONMENT_PREFIX

Settings = TypeVar("Settings", bound="ProcessSettings")


# For settings that are times of days.
DAY_SECONDS: Final = 86_400.0


class InvalidSettings(ValueError):
    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = sorted(faults)
        super().__init__("; ".join(self.faults))


# The comparison of each bound, and its words in a fault.
_BOUNDS: Final[Mapping[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "gt": (operator.gt, "more than"),
    "ge": (operator.ge, "at least"),
    "le": (operator.le, "at most"),
}


def Field(*, default: Any, repr: bool = True, **bounds: float) -> Any:  # noqa: A002 - the word that dataclasses use
    """A field with bounds (gt, ge, le), or one that must not be printed."""
    return dataclasses.field(default=default, repr=repr, metadata=bounds)


def _truth(text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    return known[text.lower()]


# The reader of a value, and the name of its type in a fault.
_READERS: Final[Mapping[type, tuple[Callable[[str], Any], str]]] = {
    str: (str, "text"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: (_truth, "true or false"),
    Path: (Path, "a path"),
}


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class EnvironmentSettings:
    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        if faults := self._faults_of_bounds() or self.faults():
            raise InvalidSettings(faults)

    def _faults_of_bounds(self) -> list[str]:
        return [
            f"{variable(field.name)} must be {_BOUNDS[name][1]} {bound}"
            for field in dataclasses.fields(self)  # type: ignore[arg-type] # each subclass is a dataclass
            for name, bound in field.metadata.items()
            if not _BOUNDS[name][0](getattr(self, field.name), bound)
        ]

    def faults(self) -> list[str]:
        """The faults of the settings taken together. Subclasses extend this."""
        return []

    @classmethod
    def from_environment(cls) -> Self:
        values: dict[str, Any] = {}
        faults: list[str] = []
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):  # type: ignore[arg-type] # as above
            reader, type_name = _READERS[_plain(hints[field.name])]
            try:
                if text := os.environ.get(variable(field.name), ""):
                    values[field.name] = reader(text)
            except (ValueError, KeyError):
                faults.append(f"{variable(field.name)} must be {type_name}")
        try:
            settings = cls(**values)
        except InvalidSettings as failure:
            faults += failure.faults
        if faults:
            raise InvalidSettings(faults)
        return settings


def variable(name: str) -> str:
    """The name of a setting in the environment."""
    return ENVIRONMENT_PREFIX + name.upper()


def _plain(hint: Any) -> type:
    """The type that the text is read as. For `X | None` it is X."""
    if isinstance(hint, types.UnionType):
        (hint,) = (each for each in typing.get_args(hint) if each is not types.NoneType)
    if hint not in _READERS:
        raise TypeError(f"a setting cannot be {hint!r}")
    plain: type = hint
    return plain


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
    # A file that holds the same URL, which keeps it out of the environment. database_url wins.
    database_url_file: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.database_url and self.database_url_file is not None:
            try:
                url = self.database_url_file.read_text(encoding="utf-8").strip()
            except OSError as failure:
                fault = f"{variable('database_url_file')} cannot be read: {failure.strerror}"
                raise InvalidSettings([fault]) from None
            object.__setattr__(self, "database_url", url)

    def faults(self) -> list[str]:
        if self.database_url or self.database_url_file is not None:
            return super().faults()
        # Without it the driver would choose a server itself.
        needed = f"one of {variable('database_url')} and {variable('database_url_file')} is needed"
        return [needed, *super().faults()]


def read_or_exit(kind: type[Settings]) -> Settings:
    """Return the settings for `__main__`, or print each fault and exit with code 2, as for a wrong command line."""
    try:
        return kind.from_environment()
    except InvalidSettings as failure:
        sys.stderr.write("".join(f"{fault}\n" for fault in failure.faults))
        sys.exit(2)
