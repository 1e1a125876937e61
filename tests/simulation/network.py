"""The network between the simulated processes: what gRPC does, in memory.

A call is a connection of its own with two directions. Its messages are bytes, so both borders are exercised. In one
direction they keep their order; everything else may be late. A link (client, server) may be cut, in one direction or in
both: then its messages are held, as TCP does, until the link is mended or the connection is given up. When a process
ends, its peers learn it after a moment, or only after a long time.

While there is trouble with calls, each unary call may meet a fate (`CallFate`): it or its answer is late, so that calls
overtake each other, or is lost, or it arrives twice, as when a client or a proxy repeats it. No message of a stream is
lost, doubled or overtaken alone: HTTP/2 keeps their order, and a stream that misses one is over. So streams only break.

Servers and clients are those of the product, down to the generated stubs: `Channel` (channels.py) takes the place of a
channel, `Server` of a server.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from random import Random
from typing import Any, Final

import grpc

from services.chassis.grpc.errors import status_code, status_of, trailers_of
from services.chassis.grpc.health import HealthBoard
from services.chassis.identity.callers import CallerKind, Identity, set_caller
from tests.simulation.loop import Host, VirtualLoop, present_host

# A message on its way: the bytes, or one of these.
_OPEN, _END = object(), object()
# How long a peer may not notice that the other side is gone: keepalive finds it.
UNNOTICED_SECONDS = 4.0
# How late a call or its answer may be. It is longer than any caller waits, and than the pauses between its attempts.
LATE_SECONDS = 3.0
# (server's method, whether it goes to the server, the connection, bytes)
Tap = Callable[["Connection", bool, bytes], None]


class CallFate(Enum):
    """What becomes of a unary call."""

    DONE = "done"
    # Other calls overtake it. Its caller may have given it up by then.
    LATE = "late"
    ANSWER_LATE = "answer late"
    # The caller sees UNAVAILABLE, or nothing until its deadline.
    LOST = "lost"
    # It may also arrive after the caller was told that it failed.
    ANSWER_LOST = "answer lost"
    TWICE = "twice"


_BAD_FATES: Final = tuple(fate for fate in CallFate if fate is not CallFate.DONE)


class Broken(grpc.aio.AioRpcError):
    """The connection has ended without a status of the server."""

    def __init__(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, message: str = "connection lost") -> None:
        super().__init__(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=message)


def _refused(failure: BaseException, method: str) -> grpc.aio.AioRpcError:
    status = status_of(failure, where=method)
    trailers = grpc.aio.Metadata(*trailers_of(status))
    return grpc.aio.AioRpcError(status_code(status), grpc.aio.Metadata(), trailers, details=status.message)


class Network:
    def __init__(self, loop: VirtualLoop, random: Random, note: Callable[[str], None]) -> None:
        self.loop = loop
        self.random = random
        self.note = note
        self.taps: list[Tap] = []
        # The most that a message takes. Faults raise it for a while.
        self.delay_max = 0.003
        # The share of unary calls that meet a bad fate, and how many have met each.
        self.call_trouble = 0.0
        self.cases: Counter[str] = Counter()
        self._servers: dict[str, Server] = {}
        # Directions that are cut: from one name to another.
        self._cut: set[tuple[str, str]] = set()
        self._connections: dict[Connection, None] = {}

    def delay(self) -> float:
        return self.random.uniform(0.0002, self.delay_max)

    def call_fate(self) -> CallFate:
        if not self.call_trouble or self.random.random() >= self.call_trouble:
            return CallFate.DONE
        fate = self.random.choice(_BAD_FATES)
        self.cases[f"call {fate.value}"] += 1
        return fate

    def lateness(self) -> float:
        return self.random.choice([self.random.uniform(0.0, 0.1), self.random.uniform(0.0, LATE_SECONDS)])

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def cut(self, source: str, target: str) -> None:
        self._cut.add((source, target))

    def mend(self, source: str, target: str) -> None:
        self._cut.discard((source, target))
        for connection in list(self._connections):
            connection.flush()

    def mend_all(self) -> None:
        self._cut.clear()
        self.delay_max, self.call_trouble = 0.003, 0.0
        for connection in list(self._connections):
            connection.flush()

    def break_connection(self, connection: Connection) -> None:
        """Reset it: what is under way is lost, and each side notices for itself."""
        connection.reset(self.delay(), self.delay())

    def connections(self) -> list[Connection]:
        """Those that are open, oldest first."""
        return list(self._connections)

    def host_ended(self, host: Host) -> None:
        """The process is gone. Whether its peers learn it soon depends on how it went."""
        is_silent = self.random.random() < 0.3
        seconds = self.random.uniform(1.0, UNNOTICED_SECONDS) if is_silent else self.delay()
        for connection in list(self._connections):
            if host in (connection.client, connection.server_host):
                connection.reset(seconds, seconds)
        for address in [address for address, server in self._servers.items() if server.host is host]:
            del self._servers[address]

    # ── for servers and connections ──────────────────────────────────────────────────────────────────────────────

    def listen(self, address: str, server: Server) -> None:
        self._servers[address] = server

    def close(self, server: Server) -> None:
        for address in [address for address, each in self._servers.items() if each is server]:
            del self._servers[address]
        for connection in list(self._connections):
            if connection.server is server:
                connection.reset(0.0, self.delay())

    def server_at(self, address: str) -> Server | None:
        return self._servers.get(address)

    def opened(self, connection: Connection) -> None:
        self._connections[connection] = None

    def over(self, connection: Connection) -> None:
        self._connections.pop(connection, None)


class Pipe:
    """One direction of a connection. `arrive` gets each item at the other end."""

    def __init__(self, connection: Connection, arrive: Callable[[Any], None]) -> None:
        self._connection = connection
        self._arrive = arrive
        self._latest = 0.0
        self._is_dead = False
        # Items that wait for the link.
        self._held: deque[Any] = deque()
        self.is_up = True

    def send(self, item: Any, delay: float | None = None) -> None:
        network = self._connection.network
        at = max(self._latest, network.loop.time() + (network.delay() if delay is None else delay))
        self._latest = at
        network.loop.call_as(network.loop.world, at - network.loop.time(), self._travelled, item)

    def hold_back(self, seconds: float) -> None:
        """What is sent from now on arrives so much later."""
        self._latest = self._connection.network.loop.time() + seconds

    def kill(self) -> None:
        """What is under way is lost."""
        self._is_dead = True
        self._held.clear()

    def flush(self) -> None:
        held, self._held = self._held, deque()
        for item in held:
            self._travelled(item)

    def _travelled(self, item: Any) -> None:
        if self._is_dead:
            return
        if self._held or self._connection.is_cut(to_server=self.is_up):
            self._held.append(item)
        else:
            self._arrive(item)


class Inbox:
    """What has arrived at one end, and the one reader that waits for it."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._items: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.end: BaseException | object | None = None

    def put(self, item: Any) -> None:
        if self.end is None:
            self._items.append(item)
            self._wake()

    def close(self, end: BaseException | object) -> None:
        """No item follows. The reader gets this after those that are there."""
        if self.end is None:
            self.end = end
            self._wake()

    def interrupt(self) -> None:
        """The call was cancelled: so is a read that waits."""
        self._items.clear()
        self.end = grpc.aio.EOF
        if self._waiter is not None and not self._waiter.done():
            self._waiter.cancel()

    async def get(self) -> Any:
        while not self._items:
            if isinstance(self.end, BaseException):
                raise self.end
            if self.end is not None:
                return grpc.aio.EOF
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._items.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Connection:
    """One call from a process to another."""

    def __init__(self, network: Network, client: Host, address: str, method: str) -> None:
        self.network = network
        self.client = client
        self.address = address
        self.method = method
        self.server: Server | None = None
        self.server_host: Host | None = None
        self.up = Pipe(self, self._at_server)
        self.down = Pipe(self, self._at_client)
        self.down.is_up = False
        self.for_client = Inbox(network.loop)
        self.for_server = Inbox(network.loop)
        self.is_over = False
        # What the server does for the call. It is cancelled when its caller is gone, wherever it is.
        self.serving: asyncio.Task[None] | None = None
        self.done_callbacks: list[Callable[[Any], object]] = []
        network.opened(self)
        self.up.send(_OPEN)

    def is_cut(self, *, to_server: bool) -> bool:
        names = (self.client.name, self.address.partition(":")[0])
        return self.network.is_cut(*(names if to_server else names[::-1]))

    def flush(self) -> None:
        self.up.flush()
        self.down.flush()

    def reset(self, at_client: float, at_server: float) -> None:
        self.up.kill()
        self.down.kill()
        loop = self.network.loop
        loop.call_as(loop.world, at_client, self.for_client.close, Broken())
        loop.call_as(loop.world, at_server, self._ended_at_server)
        self.network.over(self)

    def finish(self, end: BaseException | object) -> None:
        """The server has ended the call."""
        self.is_over = True
        self.down.send((_END, end))
        self._call_back()

    def cancel(self) -> None:
        """The client has ended the call."""
        self.down.kill()
        self.up.send(_END)

    def _at_server(self, item: Any) -> None:
        if item is _OPEN:
            self.server = self.network.server_at(self.address)
            if self.server is None:
                self.down.send((_END, Broken(message="connection refused")))
                return
            self.server_host = self.server.host
            self.network.loop.call_as(self.server.host, 0.0, self.server.accept, self)
        elif item is _END:
            self._ended_at_server()
            self.network.over(self)
        else:
            self._noted(item, to_server=True)
            self.for_server.put(item)

    def _at_client(self, item: Any) -> None:
        if isinstance(item, tuple):
            self.for_client.close(item[1])
            self.network.over(self)
        else:
            self._noted(item, to_server=False)
            self.for_client.put(item)

    def _noted(self, data: bytes, *, to_server: bool) -> None:
        arrow = ">" if to_server else "<"
        self.network.note(f"{self.client.name} {arrow} {self.address} {self.method} {len(data)}")

    def _ended_at_server(self) -> None:
        self.for_server.close(grpc.aio.EOF)
        if self.serving is not None and self.server_host is not None and not self.is_over:
            self.network.loop.call_as(self.server_host, 0.0, self.serving.cancel)
        self.is_over = True
        self._call_back()

    def _call_back(self) -> None:
        callbacks, self.done_callbacks = self.done_callbacks, []
        if self.server_host is not None:
            for each in callbacks:
                self.network.loop.call_as(self.server_host, 0.0, each, self)


# ── the server's side ────────────────────────────────────────────────────────────────────────────────────────────────


class Context:
    """What a servicer method gets."""

    def __init__(self, connection: Connection, handler: Any) -> None:
        self._connection = connection
        self._handler = handler

    async def read(self) -> Any:
        item = await self._connection.for_server.get()
        return item if item is grpc.aio.EOF else self._handler.request_deserializer(item)

    async def write(self, message: Any) -> None:
        connection = self._connection
        if connection.is_over:
            raise grpc.aio.UsageError("the call is over")
        data = self._handler.response_serializer(message)
        for tap in connection.network.taps:
            tap(connection, False, data)
        connection.down.send(data)
        await asyncio.sleep(0)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._connection.done_callbacks.append(callback)


class Server:
    """What a service registers its servicers with."""

    def __init__(self, network: Network, address: str) -> None:
        self.health = HealthBoard()
        self.host = present_host()
        self._network = network
        self._address = address
        self._handlers: dict[str, Any] = {}

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        for name, handler in method_handlers.items():
            self._handlers[f"/{service_name}/{name}"] = handler

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[Any]) -> None:
        """Generated code registers the same handlers again in this older way."""

    async def start(self) -> int:
        self._network.listen(self._address, self)
        return 0

    async def stop(self, grace: float | None) -> None:
        self._network.close(self)

    def accept(self, connection: Connection) -> None:
        connection.serving = self._network.loop.spawn_as(self.host, self._serve(connection))

    async def _serve(self, connection: Connection) -> None:
        kind = connection.client.name.partition("-")[0]
        set_caller(Identity(CallerKind.SERVICE, kind))
        handler = self._handlers[connection.method]
        context = Context(connection, handler)
        end: BaseException | object = grpc.aio.EOF
        try:
            if handler.stream_stream is not None:
                await handler.stream_stream(None, context)
            else:
                request = await context.read()
                if request is not grpc.aio.EOF:
                    await context.write(await handler.unary_unary(request, context))
        except grpc.aio.UsageError:
            return
        except Exception as failure:  # noqa: BLE001 - the caller gets its status, as from the guard
            end = _refused(failure, connection.method)
        connection.finish(end)
