"""Counts the open calls of each caller and refuses those beyond its share, so that others find a place.

A call with a key takes a place of its key and of its workspace (shares.py): of all places a workspace alone gets at
most half, and a key a third. Its address does not count, because the callers behind one proxy share an address; only
while a key that is not known here is looked up, its call takes a place of its address. A call without a key takes a
place of its address for as long as it lasts. All methods that need no key share their places, because each such call
may hold memory of a request. Our own services are not counted.

Hazard: a call counts until gRPC is done with it. A caller that does not read the answer keeps the call open after its
handler has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Any
from urllib.parse import unquote

from services.chassis.grpc.errors import QuotaViolation, Refusal
from services.chassis.grpc.limits import ServerLimits
from services.chassis.grpc.shares import Shares
from services.chassis.identity.callers import Identity

# A key gets half of what its workspace gets, because one that opens calls without end should not stop the others.
_KEY_PORTIONS = 2


class OpenCalls:
    def __init__(self, limits: ServerLimits) -> None:
        # Calls whose key is being looked up, by address.
        self._unknown = Shares(limits.unknown_calls_max)
        self._keys = Shares(limits.key_calls_max)
        self._workspaces = Shares(limits.key_calls_max)
        # Calls of methods that need no key, by address.
        self._open = Shares(limits.open_calls_max)

    def count_open(self, address: str) -> None:
        """Count a call of a method that needs no key."""
        if not self._open.take(address):
            raise Refusal("OPEN_CALLS_EXCEEDED", "too many calls without a key are open, or too many of your address")
        _when_done(lambda _: self._open.give_back(address))

    def begin_lookup(self, address: str) -> None:
        """Count a call whose key is about to be looked up, until `end_lookup`."""
        if not self._unknown.take(address):
            raise Refusal("OPEN_CALLS_EXCEEDED", "too many keys are being looked up, or too many for your address")

    def end_lookup(self, address: str) -> None:
        self._unknown.give_back(address)

    def count(self, who: Identity) -> None:
        """Count a call of a caller with a key."""
        key, workspace = who.name, who.tenant
        if not self._keys.take(key, portions=_KEY_PORTIONS):
            raise _exceeded("this key")
        if not self._workspaces.take(workspace):
            self._keys.give_back(key)
            raise _exceeded("this workspace")

        def give_back(_: Any) -> None:
            self._keys.give_back(key)
            self._workspaces.give_back(workspace)

        _when_done(give_back)


def address_of(context: Any) -> str:
    """The address of the caller's machine, or the network of 64 bits that an IPv6 address belongs to."""
    # gRPC writes `ipv4:192.0.2.1:50000` or `ipv6:%5B2001:db8::1%5D:50000`.
    host: str = context.peer().rpartition(":")[0]
    return _network_of(host) if host.startswith("ipv6") else host


@lru_cache(maxsize=10_000)
def _network_of(host: str) -> str:
    try:
        address = IPv6Address(unquote(host).removeprefix("ipv6:").strip("[]"))
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return f"ipv4:{address.ipv4_mapped}"
    return address.packed[:8].hex()


def _when_done(callback: Callable[[Any], None]) -> None:
    """Call back when gRPC is done with the call that this task serves. A callback of the context would be called at the
    same time, but would keep the context and all that it holds until the next collection of garbage.
    """
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(callback)


def _exceeded(subject: str) -> Refusal:
    message = f"{subject} has too many open calls here: end some, or call another replica"
    return Refusal("CALLS_EXCEEDED", message, quota=[QuotaViolation(subject, message)])
