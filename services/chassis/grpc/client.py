"""Channels to our own services, made once per address, with the credential and a deadline on every call.

A channel here is a thin wrapper that adds what each call must carry; interceptors would do the same at
several times the cost. Deadlines go as `timeout=` on each call, because one in a service config fires early
and never reaches the server.
Hazard: a channel reconnects by itself for ever; `forget` those whose address has left the address book.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc

from services.chassis.identity.callers import ServiceCredential
from services.chassis.identity.tls import Tls

MEBIBYTE: Final = 1024 * 1024
Metadata = tuple[tuple[str, str], ...]

CHANNEL_OPTIONS: Final[Sequence[tuple[str, Any]]] = (
    ("grpc.max_receive_message_length", 64 * MEBIBYTE),
    ("grpc.max_send_message_length", 64 * MEBIBYTE),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.absolute_max_metadata_size", 32 * 1024),
    # A peer that vanished without a word is noticed in 15 s; the servers permit pings this often.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC adds its own jitter (a fifth) to these.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Each pool its own connections: channels that share one also share its fate and its flow control.
    ("grpc.use_local_subchannel_pool", 1),
)


class _Call:
    """One method: adds the metadata, and the timeout where the caller gave none."""

    def __init__(self, inner: Any, metadata: Metadata, seconds: float | None) -> None:
        self._inner = inner
        self._metadata = metadata
        self._seconds = seconds

    def __call__(
        self,
        request: Any = None,
        *,
        timeout: float | None = None,
        metadata: Metadata = (),
        **more: Any,
    ) -> Any:
        if request is not None:
            more["request" if self._seconds is not None else _request_name(self._inner)] = request
        return self._inner(
            timeout=self._seconds if timeout is None else timeout,
            metadata=self._metadata + tuple(metadata),
            **more,
        )


def _request_name(inner: Any) -> str:
    is_stream = isinstance(inner, (grpc.aio.StreamUnaryMultiCallable, grpc.aio.StreamStreamMultiCallable))
    return "request_iterator" if is_stream else "request"


class Channel(grpc.aio.Channel):
    """What generated stubs take."""

    def __init__(self, inner: grpc.aio.Channel, metadata: Metadata, call_seconds: float) -> None:
        self._inner = inner
        self._metadata = metadata
        self._call_seconds = call_seconds

    def unary_unary(self, *positional: Any, **named: Any) -> Any:
        return _Call(self._inner.unary_unary(*positional, **named), self._metadata, self._call_seconds)

    def unary_stream(self, *positional: Any, **named: Any) -> Any:
        return _Call(self._inner.unary_stream(*positional, **named), self._metadata, None)

    def stream_unary(self, *positional: Any, **named: Any) -> Any:
        return _Call(self._inner.stream_unary(*positional, **named), self._metadata, None)

    def stream_stream(self, *positional: Any, **named: Any) -> Any:
        return _Call(self._inner.stream_stream(*positional, **named), self._metadata, None)

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
        # What is given wins over the defaults of the same name.
        self._options = tuple({**dict(CHANNEL_OPTIONS), **dict(options)}.items())
        self._channels: dict[str, Channel] = {}
        self._open: Callable[[str], grpc.aio.Channel] = self._secure if tls else self._insecure

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

    def _insecure(self, address: str) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(address, options=self._options)

    def _secure(self, address: str) -> grpc.aio.Channel:
        assert self._tls is not None
        options = self._options
        if self._tls.server_name:
            options += (("grpc.ssl_target_name_override", self._tls.server_name),)
        return grpc.aio.secure_channel(address, self._tls.for_client(), options=options)
