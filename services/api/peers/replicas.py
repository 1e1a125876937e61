"""The replicas of another service: their addresses, streams to each of them, and calls to any of them.

Hazard: `call` repeats a failed request, on another replica if there is one. Use it only for reads and for writes that
carry an id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar

import grpc

from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import Channel, ChannelPool
from services.chassis.grpc.errors import DependencyUnavailable, remote_error
from services.chassis.identity.callers import caller
from services.chassis.process.backoff import Backoff
from services.chassis.process.fair_line import FairLine, NoTurn
from services.chassis.telemetry.logs import logger

log = logger(__name__)
Request = TypeVar("Request")
Answer = TypeVar("Answer")
Part = TypeVar("Part")
Method = Callable[[Channel], grpc.aio.UnaryUnaryMultiCallable[Request, Answer]]
Serve = Callable[[str, Channel], Coroutine[Any, Any, None]]

# The deadline of one try. After it the next replica is tried.
TRY_SECONDS: Final = 3.0
# Calls under way at once, of all workspaces and of one. An answer has up to some megabytes, so without a limit a
# workspace that reads much could fill the memory of this process, and of the peer.
CALLS_MAX: Final = 32
WORKSPACE_CALLS_MAX: Final = 8
# A channel is closed this long after its replica has gone, because closing it ends the calls that are under way.
_FORGET_SECONDS: Final = TRY_SECONDS + 1.0


class Replicas:
    def __init__(self, name: str, book: AddressBook, channels: ChannelPool, *, call_seconds: float) -> None:
        self.name = name
        self._book = book
        self._channels = channels
        self._call_seconds = call_seconds
        self._line = FairLine(CALLS_MAX, places_of_each=WORKSPACE_CALLS_MAX)
        self._addresses: list[str] = []
        # Those that have not answered the last call.
        self._silent: set[str] = set()
        self._serves: list[Serve] = []

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self._addresses)

    def channel(self, address: str) -> Channel:
        return self._channels.get(address)

    def keep(self, serve: Serve) -> None:
        """Run `serve` for each replica while it is listed. It has to handle its own failures."""
        self._serves.append(serve)

    async def run(self) -> None:
        """Follow the address book."""
        tasks: dict[str, list[asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as group:
            async for present in self._book.changes():
                for address in sorted(present - tasks.keys()):
                    channel = self._channels.get(address)
                    tasks[address] = [group.create_task(serve(address, channel)) for serve in self._serves]
                self._addresses = sorted(present)
                self._silent &= present
                for address in tasks.keys() - present:
                    await self._leave(tasks.pop(address))
                    group.create_task(self._channels.forget(address, _FORGET_SECONDS))
                log.info("peers changed", peers_of=self.name, addresses=self._addresses)

    async def call(self, method: Method[Request, Answer], request: Request) -> Answer:
        """The answer of the first replica that gives one. A refusal is an answer, and is raised."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._call_seconds
        backoff = Backoff(first=0.02, cap=0.5)
        failures = 0
        while (left := end - loop.time()) > 0:
            if not self._addresses:
                await asyncio.sleep(min(0.05, left))
                continue
            address = self._addresses[0]
            channel = self._channels.get(address)
            # gRPC connects again by itself. Until then each call would fail at once.
            if channel.get_state(try_to_connect=True) is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                try:
                    async with self._line.turn(caller().tenant, left):
                        answer = await method(channel)(request, timeout=min(TRY_SECONDS, left))
                except NoTurn:
                    # Too many calls of this workspace wait.
                    break
                except grpc.aio.AioRpcError as failure:
                    remote = remote_error(failure)
                    if not remote.may_retry:
                        self._silent.discard(address)
                        raise remote.refusal() from None
                    self._failed(address, str(remote))
                else:
                    self._silent.discard(address)
                    return answer
            self._pass_over(address)
            failures += 1
            if failures % max(1, len(self._addresses)) == 0:
                await asyncio.sleep(min(backoff.next(), max(0.0, end - loop.time())))
        raise DependencyUnavailable(self.name)

    async def parts(
        self, ask: Callable[[Channel], AsyncIterable[Answer]], part_of: Callable[[Answer], Part]
    ) -> AsyncIterator[Part]:
        """The part that each message of a stream brings. If a replica fails before its first one, the next is asked."""
        for address in self.addresses:
            has_begun = False
            try:
                async for message in ask(self._channels.get(address)):
                    has_begun = True
                    yield part_of(message)
            except grpc.aio.AioRpcError as failure:
                remote = remote_error(failure)
                if not has_begun and remote.may_retry:
                    continue
                raise remote.refusal() from None
            return
        raise DependencyUnavailable(self.name)

    async def close(self) -> None:
        await self._channels.close()

    async def _leave(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _failed(self, address: str, error: str) -> None:
        """Say so once, until it answers again: many calls may fail in each second."""
        if address not in self._silent:
            self._silent.add(address)
            log.info("a peer did not answer", peer=address, error=error)

    def _pass_over(self, address: str) -> None:
        """Move this replica to the end of the list."""
        if address in self._addresses:
            self._addresses.remove(address)
            self._addresses.append(address)


def pieces(ids: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    """The ids in pieces of limited length, because an answer has at most 64 MiB."""
    return (ids[start : start + most] for start in range(0, len(ids), most))
