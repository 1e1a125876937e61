"""Asks api for the definitions of workflow versions and for the owners of runners' keys.

Definitions never change and stay cached; keys are cached for seconds. If one api replica does not answer, the next one
is asked.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

import grpc
import orjson

from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import ChannelPool
from services.chassis.grpc.errors import DependencyUnavailable, Refusal, remote_error
from services.chassis.identity.callers import CallerKind, Identity, KeyReader
from services.chassis.identity.named_tokens import NamedTokens
from services.chassis.process.clock import Clock
from services.chassis.telemetry.logs import logger
from services.coordinator.app.ports import DefinitionRefused, Version
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.effect_keys import EffectKeys
from windlass.api.v1.workspaces_pb2 import Role
from windlass.catalog.v1 import catalog_pb2 as pb
from windlass.catalog.v1.catalog_pb2_grpc import CatalogServiceStub
from windlass.coordinator.v1.sessions_pb2 import RunGrant

log = logger(__name__)

Answer = TypeVar("Answer")
_ROLES: Final[Mapping[int, str]] = {number: name for name, number in Role.items()}
_NO_KEY: Final = "API_KEY_NOT_FOUND"
_NO_VERSION: Final = "VERSION_NOT_FOUND"
# Api checks the tokens under the same purpose: the field in which they go out.
_COMPLETION: Final = RunGrant.DESCRIPTOR.fields_by_name["completion_token"].full_name
_VERSIONS_MAX: Final = 5_000
KEYS_MAX: Final = 10_000
# After this time a revoked key opens no session any more, and its open sessions are ended.
KEY_SECONDS: Final = 5.0
_CALL_SECONDS: Final = 3.0


class ApiReplicas:
    """Calls one replica after another until one answers."""

    def __init__(self, book: AddressBook, channels: ChannelPool, forget: Callable[[str], Awaitable[None]]) -> None:
        self._book = book
        self._channels = channels
        self._forget = forget
        self._present: tuple[str, ...] = ()
        self._next = 0

    async def run(self) -> None:
        async for present in self._book.changes():
            gone = [address for address in self._present if address not in present]
            self._present = tuple(sorted(present))
            for address in gone:
                await self._forget(address)

    def spread(self) -> None:
        """The next call begins with another replica, so that all of them share the work."""
        self._next += 1

    async def call(self, ask: Callable[[grpc.aio.Channel], Awaitable[Answer]], *answers: str) -> Answer:
        """Raises a Refusal if api answers with one of these reasons. Any other error says nothing about what was asked
        for."""
        present = self._present or tuple(sorted(await self._book.read()))
        failure: Exception | None = None
        for place in range(self._next, self._next + len(present)):
            address = present[place % len(present)]
            try:
                return await ask(self._channels.get(address))
            except grpc.aio.AioRpcError as error:
                # The next call begins with another replica.
                self._next += 1
                failure = remote = remote_error(error)
                if remote.reason in answers:
                    raise Refusal(remote.reason, remote.message, code=remote.code) from None
                if not remote.may_retry:
                    log.error("api did not answer", error=str(remote))
                    break
        raise DependencyUnavailable("api", str(failure or "no replica is known"))


class CatalogDefinitions:
    """Implements `Definitions`."""

    def __init__(self, replicas: ApiReplicas) -> None:
        self._replicas = replicas
        self._versions: OrderedDict[str, Version] = OrderedDict()

    def cached(self, version_id: str) -> Version | None:
        version = self._versions.get(version_id)
        if version is not None:
            self._versions.move_to_end(version_id)
        return version

    async def get(self, version_id: str) -> Version:
        request = pb.GetVersionRequest(version_id=version_id)
        try:
            found = await self._replicas.call(
                lambda channel: CatalogServiceStub(channel).GetVersion(request, timeout=_CALL_SECONDS), _NO_VERSION
            )
        except Refusal as refused:
            raise DefinitionRefused(_NO_VERSION, refused.message, is_permanent=True) from None
        try:
            references = orjson.loads(found.template_references or b"{}")
            definition = compile_definition(orjson.loads(found.definition), references)
        except Exception as failure:
            log.exception("a definition cannot be compiled", version_id=version_id)
            message = "this version's definition is damaged, or newer than the coordinator"
            raise DefinitionRefused("DEFINITION_CORRUPT", message, is_permanent=False) from failure
        secret = found.effect_secret
        version = Version(definition, EffectKeys(secret), NamedTokens(secret, _COMPLETION))
        self._versions[version_id] = version
        while len(self._versions) > _VERSIONS_MAX:
            self._versions.popitem(last=False)
        return version


class CatalogKeys(KeyReader):
    """It identifies keys of every role, so that all but RUNNER keys are refused for their role."""

    def __init__(self, replicas: ApiReplicas, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, Identity]] = OrderedDict()
        self._hashes: OrderedDict[str, bytes] = OrderedDict()

    async def identify(self, key: str) -> Identity:
        key_hash = hashlib.sha256(key.encode()).digest()
        known = self._known.get(key_hash)
        if known is not None and known[0] > self._clock.monotonic():
            return known[1]
        return await self._ask(key_hash)

    async def confirm(self, key_id: str) -> None:
        """Asks api again. Raises a Refusal when the key is no longer valid."""
        key_hash = self._hashes.get(key_id)
        if key_hash is None:
            raise Refusal("KEY_INVALID", "this key must be presented again")
        await self._ask(key_hash)

    async def _ask(self, key_hash: bytes) -> Identity:
        now = self._clock.monotonic()
        request = pb.IdentifyKeyRequest(key_hash=key_hash)
        try:
            found = await self._replicas.call(
                lambda channel: CatalogServiceStub(channel).IdentifyKey(request, timeout=_CALL_SECONDS), _NO_KEY
            )
        except Refusal as refused:
            self._known.pop(key_hash, None)
            raise Refusal("KEY_INVALID", refused.message) from None
        identity = _identity(found)
        self._known[key_hash] = (now + KEY_SECONDS, identity)
        self._hashes[identity.name] = key_hash
        # The keys that were asked for least recently are dropped first. Keys of open sessions are asked for often.
        self._known.move_to_end(key_hash)
        self._hashes.move_to_end(identity.name)
        for kept in (self._known, self._hashes):
            while len(kept) > KEYS_MAX:
                kept.popitem(last=False)
        return identity


def _identity(found: pb.IdentifyKeyResponse) -> Identity:
    kinds: Mapping[int, CallerKind] = {Role.RUNNER: CallerKind.RUNNER, Role.ROLE_UNSPECIFIED: CallerKind.SYSTEM}
    kind = kinds.get(found.role, CallerKind.MEMBER)
    role = _ROLES.get(found.role, "") if kind is CallerKind.MEMBER else ""
    return Identity(kind, found.key_id, found.workspace, role)
