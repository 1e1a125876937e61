"""The client's side of a call in the simulated network: what generated stubs and services get in place of channels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc

from tests.simulation.loop import present_host
from tests.simulation.network import Broken, CallFate, Connection, Network
from tests.simulation.settings import SCALE

# How long a unary call may take when its caller says nothing, before it is scaled.
_CALL_SECONDS: Final = 5.0


class StreamCall:
    """A stream as a client has it."""

    def __init__(
        self, connection: Connection, serialize: Callable[[Any], bytes], parse: Callable[[bytes], Any]
    ) -> None:
        self._connection = connection
        self._serialize = serialize
        self._parse = parse
        self._is_cancelled = False

    async def read(self) -> Any:
        if self._is_cancelled:
            raise asyncio.CancelledError
        item = await self._connection.for_client.get()
        return item if item is grpc.aio.EOF else self._parse(item)

    async def write(self, message: Any) -> None:
        connection = self._connection
        if self._is_cancelled or connection.for_client.end is not None:
            raise asyncio.InvalidStateError("the call is over")
        data = self._serialize(message)
        for tap in connection.network.taps:
            tap(connection, True, data)
        connection.up.send(data)
        await asyncio.sleep(0)

    def cancel(self) -> bool:
        if not self._is_cancelled:
            self._is_cancelled = True
            self._connection.for_client.interrupt()
            self._connection.cancel()
        return True


class UnaryCall:
    def __init__(self, channel: Channel, method: str, serialize: Any, parse: Any) -> None:
        self._channel = channel
        self._method = method
        self._serialize = serialize
        self._parse = parse

    async def __call__(self, request: Any, *, timeout: float | None = None) -> Any:
        connection = self._channel.connect(self._method)
        self._send(connection, self._serialize(request), connection.network.call_fate())
        try:
            async with asyncio.timeout((timeout or _CALL_SECONDS) * SCALE):
                answer = await connection.for_client.get()
        except TimeoutError:
            raise Broken(grpc.StatusCode.DEADLINE_EXCEEDED, "the time for this call is over") from None
        finally:
            connection.cancel()
        if answer is grpc.aio.EOF:
            raise Broken(grpc.StatusCode.UNKNOWN, "no answer came")
        return self._parse(answer)

    def _send(self, connection: Connection, data: bytes, fate: CallFate) -> None:
        network = connection.network
        if fate is not CallFate.DONE:
            network.note(f"{connection.client.name} {self._method} is {fate.value}")
        if fate is CallFate.LATE:
            connection.up.hold_back(network.lateness())
        if fate is CallFate.ANSWER_LATE:
            connection.down.hold_back(network.lateness())
        if fate is CallFate.TWICE:
            copy = self._channel.connect(self._method)
            copy.up.hold_back(network.lateness())
            copy.up.send(data)
        if fate is not CallFate.LOST:
            connection.up.send(data)
        if fate in (CallFate.LOST, CallFate.ANSWER_LOST):
            connection.down.kill()
            if network.random.random() < 0.5:
                network.loop.call_as(network.loop.world, network.lateness(), connection.for_client.close, Broken())


class Channel:
    """A channel for generated stubs."""

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address

    def connect(self, method: str) -> Connection:
        return Connection(self._network, present_host(), self._address, method)

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> UnaryCall:
        return UnaryCall(self, method, request_serializer, response_deserializer)

    def stream_stream(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return lambda: StreamCall(self.connect(method), request_serializer, response_deserializer)

    def unary_stream(self, method: str, *_: Any, **__: Any) -> Any:
        return self._never(method)

    stream_unary = unary_stream

    @staticmethod
    def _never(method: str) -> Callable[[], None]:
        def call(*_: Any, **__: Any) -> None:
            raise AssertionError(f"{method} is not simulated")

        return call


class Channels:
    """What a service gets its channels from."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def get(self, address: str) -> Any:
        return Channel(self._network, address)

    async def forget(self, address: str, grace: float | None = None) -> None:
        """A channel keeps nothing."""

    async def close(self, grace: float | None = None) -> None:
        """As above."""
