"""Channels to our own services: one per address, with the credential and a deadline on every call.

A channel is a thin wrapper that adds both, because interceptors would cost several times as much. The deadline is the
`timeout=` of each call, because one in a service config fires early and never reaches the server.

Hazards: a channel reconnects for ever. Call `forget` when its address has left the address book. A call that is under
way when its channel is closed would raise CancelledError, and a task that lets it pass ends without a trace. So such a
call fails with UNAVAILABLE instead, like one whose server has died.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final

import grpc

from services.chassis.identity.callers import ServiceCredential
from services.chassis.identity.tls import Tls
from services.chassis.process.lifecycle import is_being_cancelled

MEBIBYTE: Final = 1024 * 1024
Metadata = tuple[tuple[str, str], ...]

CHANNEL_OPTIONS: Final[Sequence[tuple[str, Any]]] = (
    ("grpc.max_receive_message_length", 64 * MEBIBYTE),
    ("grpc.max_send_message_length", 64 * MEBIBYTE),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.absolute_max_metadata_size", 32 * 1024),
    # A peer that has vanished silently is noticed in 15 s. The servers permit pings this often.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC adds a jitter of a fifth to these.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # In spite of its name, this limits one attempt to connect, with its handshakes. A lost packet is sent again after
    # a second, and a busy peer may need some tenths for its part of TLS.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # Each pool has its own connections, because channels that share one also share its failures and flow control.
    ("grpc.use_local_subchannel_pool", 1),
)


class _Call:
    """One method. It adds the metadata, and the timeout when the caller has given none."""

    def __init__(self, inner: Any, metadata: Metadata, seconds: float | None = None) -> None:
        self._inner = inner
        self._metadata = metadata
        self._seconds = seconds

    def __call__(self, *request: Any, timeout: float | None = None, metadata: Metadata = (), **more: Any) -> Any:
        seconds = self._seconds if timeout is None else timeout
        return self._inner(*request, timeout=seconds, metadata=self._metadata + tuple(metadata), **more)


class _UnaryCall(_Call):
    """A method with one request and one response."""

    def __call__(self, *request: Any, **named: Any) -> Any:
        return _answer(super().__call__(*request, **named))


async def _answer(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.UNAVAILABLE, nothing, nothing, details="the channel was closed during the call"
        ) from None


class Channel(grpc.aio.Channel):
    """A channel for generated stubs."""

    def __init__(self, inner: grpc.aio.Channel, metadata: Metadata, call_seconds: float) -> None:
        self._inner = inner
        self._metadata = metadata
        self._call_seconds = call_seconds

    def unary_unary(self, *positional: Any, **named: Any) -> Any:
        return _UnaryCall(self._inner.unary_unary(*positional, **named), self._metadata, self._call_seconds)

    def unary_stream(self, *positional: Any, **named: Any) -> Any:
        return _Call(self._inner.unary_stream(*positional, **named), self._metadata)

    def stream_unary(self, *positional: Any, **named: Any) -> Any:
        return _Call(self._inner.stream_unary(*positional, **named), self._metadata)

    def stream_stream(self, *positional: Any, **named: Any) -> Any:
        return _Call(self._inner.stream_stream(*positional, **named), self._metadata)

    async def close(self, grace: float | None = None) -> None:
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._inner.channel_ready()

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


class ChannelPool:
    def __init__(
        self,
        *,
        credential: ServiceCredential | None = None,
        bearer: str | None = None,
        tls: Tls | None = None,
        call_seconds: float = 5.0,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self._metadata: Metadata = credential.metadata if credential is not None else ()
        if bearer:
            self._metadata += (("authorization", f"Bearer {bearer}"),)
        self._tls = tls
        self._call_seconds = call_seconds
        # Given options replace the defaults of the same name.
        named = {**dict(CHANNEL_OPTIONS), **dict(options)}
        if tls is not None and tls.server_name:
            named["grpc.ssl_target_name_override"] = tls.server_name
        self._options = tuple(named.items())
        self._channels: dict[str, Channel] = {}

    def get(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = Channel(self._open(address), self._metadata, self._call_seconds)
            self._channels[address] = channel
        return channel

    async def forget(self, address: str, grace: float | None = None) -> None:
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close(grace)

    async def close(self, grace: float | None = None) -> None:
        for address in list(self._channels):
            await self.forget(address, grace)

    def _open(self, address: str) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options=self._options)
        return grpc.aio.secure_channel(address, self._tls.for_client(), options=self._options)
