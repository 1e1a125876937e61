"""Identities of callers, the rule that each RPC declares, and the credential between services.

A method without a rule is never served: the guard refuses to register it (grpc/guard.py). A service credential is
`<service>:<hex hmac-sha256(secret, "<product>-service:" + service)>`, so that the secret itself is never sent. The
secret file may have several secrets, one per line. The first one signs and all are accepted, so that the secret can be
changed without an outage.

Hazards: anyone who reads the traffic can replay the credential, so use mTLS between machines. The identity is then the
common name of the client's certificate, and the header is not accepted. Every certificate that the authority signs
makes its owner a service, so the authority must sign no other certificates (docs/security.md).
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from services.chassis.process.naming import PRODUCT, SERVICE_CREDENTIAL_KEY


class CallerKind(StrEnum):
    ANONYMOUS = "anonymous"
    MEMBER = "member"  # a key of one workspace, with a role
    SYSTEM = "system"  # the operator of the installation
    RUNNER = "runner"  # a process that runs modules, and may do nothing else
    SERVICE = "service"  # one of our own processes


class Identity(NamedTuple):
    kind: CallerKind
    name: str  # id of the key (never the key), or name of the service
    workspace: str = ""  # "": no workspace; for a runner, all of them
    role: str = ""
    title: str = ""  # the title of the key, for people

    @property
    def who(self) -> str:
        """The same text for the same key, or for the processes of the same service."""
        return f"{self.kind.value}:{self.name}"

    @property
    def tenant(self) -> str:
        """The owner of what this caller uses, when callers share something: its workspace, or else the caller."""
        return self.workspace or self.who

    @property
    def grade(self) -> str:
        """The form that rules use: `member:ADMIN`, `service:api`, `system`, `runner`."""
        if self.kind is CallerKind.MEMBER:
            return f"member:{self.role}"
        if self.kind is CallerKind.SERVICE:
            return f"service:{self.name}"
        return self.kind.value


ANONYMOUS: Final = Identity(CallerKind.ANONYMOUS, "")
_caller: ContextVar[Identity] = ContextVar("caller", default=ANONYMOUS)


def caller() -> Identity:
    """The caller of the RPC that this task serves, or for whom it works in the background."""
    return _caller.get()


def set_caller(identity: Identity) -> None:
    """The guard calls this for each RPC, and work in the background for whoever has ordered it. Each is a task with its
    own context, so that nothing has to be reset."""
    _caller.set(identity)


class KeyReader(Protocol):
    def known(self, key: str) -> Identity | None:
        """The owner of this key, if nobody has to be asked. Raises a Refusal like `identify`."""
        return None

    async def identify(self, key: str) -> Identity:
        """The owner of this key. Raises a Refusal (KEY_INVALID, KEY_EXPIRED) when there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Rule:
    """The callers that may call one method, and how long a call or a whole stream may take (None: without limit).

    `is_open`: the method needs no key. Its calls are few, and its requests small (grpc/limits.py). The methods below
    explain the other fields.
    """

    allow: frozenset[str]
    is_open: bool = False
    seconds_max: float | None = 30.0
    is_traced: bool = False
    judges_text: bool = False
    items_max: int | None = None
    bytes_max: int | None = None

    def __or__(self, other: Rule) -> Rule:
        return replace(self, allow=self.allow | other.allow, is_open=self.is_open or other.is_open)

    def within(self, seconds: float | None) -> Rule:
        return replace(self, seconds_max=seconds)

    def with_trace(self) -> Rule:
        """Let the guard begin a trace when the caller brings none and the sampler admits one."""
        return replace(self, is_traced=True)

    def judging_text(self) -> Rule:
        """The handler itself checks texts for NUL. This is for long documents and batches: the guard's search would
        cost more than the rest of the decoding, and one bad item would fail its whole batch.
        """
        return replace(self, judges_text=True)

    def holding(self, items_max: int) -> Rule:
        """Limit how many members all lists of one message may have together. This is for streams of batches, whose
        proto has no rule for each list. The members are counted before anything else reads them.
        """
        return replace(self, items_max=items_max)

    def receiving(self, bytes_max: int) -> Rule:
        """Limit the size of a message, below the limit of the server."""
        return replace(self, bytes_max=bytes_max)

    @property
    def is_only_for_services(self) -> bool:
        return not self.is_open and all(grade.startswith("service:") for grade in self.allow)

    def allows(self, identity: Identity) -> bool:
        return self.is_open or identity.grade in self.allow

    def __str__(self) -> str:
        return ", ".join(sorted(self.allow)) if not self.is_open else "anyone"


def members(*roles: str) -> Rule:
    return Rule(frozenset(f"member:{role}" for role in roles))


def services(*names: str) -> Rule:
    return Rule(frozenset(f"service:{name}" for name in names))


def system() -> Rule:
    return Rule(frozenset({CallerKind.SYSTEM.value}))


def runners() -> Rule:
    return Rule(frozenset({CallerKind.RUNNER.value}))


def anyone() -> Rule:
    """The method needs no credential, and ignores one that is sent."""
    return Rule(frozenset(), is_open=True)


class ServiceCredential:
    """Signs the calls of this process's service, and verifies those of other services."""

    def __init__(self, secrets: Sequence[bytes], service: str) -> None:
        if not secrets or any(len(secret) < 16 for secret in secrets):
            raise ValueError("a service secret has at least 16 bytes; use a longer one")
        self._secrets = tuple(secrets)
        self._header = f"{service}:{_signature(self._secrets[0], service)}"
        self._expected: dict[str, tuple[bytes, ...]] = {}

    @classmethod
    def from_file(cls, path: Path, service: str) -> ServiceCredential:
        lines = [line.strip() for line in path.read_bytes().splitlines()]
        return cls([line for line in lines if line], service)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return ((SERVICE_CREDENTIAL_KEY, self._header),)

    def verify(self, header: str) -> str | None:
        """The name of the service that signed. None: the signature is wrong."""
        service, _, signature = header.partition(":")
        given = signature.encode("utf-8", "replace")
        expected = self._expected.get(service)
        if expected is None:
            expected = tuple(_signature(secret, service).encode() for secret in self._secrets)
        # All secrets are compared, so that the time does not tell which one matches.
        matches = [hmac.compare_digest(given, each) for each in expected]
        if not any(matches):
            return None
        self._expected[service] = expected  # bounded, because only names with a good signature get here
        return service


def _signature(secret: bytes, service: str) -> str:
    message = f"{PRODUCT}-service:{service}".encode("utf-8", "replace")
    return hmac.digest(secret, message, "sha256").hex()
