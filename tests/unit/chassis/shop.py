"""A shop that sells shoes, served on the chassis; compiled from the shop.proto beside this file."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest

from services.chassis.grpc.client import Channel, ChannelPool
from services.chassis.grpc.errors import DependencyUnavailable, Refusal, RemoteError, Violation, remote_error
from services.chassis.grpc.guard import Guard
from services.chassis.grpc.server import GrpcServer
from services.chassis.identity.callers import (
    CallerKind,
    Identity,
    KeyReader,
    Rule,
    ServiceCredential,
    caller,
    members,
    services,
)
from services.chassis.telemetry.tracing import present_trace

_HERE = Path(__file__).parent
_VENDORED = _HERE.parents[2] / "protos" / "vendored" / "protovalidate"


class Shop:
    """The generated modules of shop.proto."""

    def __init__(self, messages: ModuleType, services: ModuleType) -> None:
        self.messages = messages
        self.services = services


@contextmanager
def compiled_into(target: Path) -> Iterator[Shop]:
    from grpc_tools import protoc

    arguments = [f"-I{_HERE}", f"-I{_VENDORED}", f"-I{_well_known()}"]
    outputs = [f"--python_out={target}", f"--grpc_python_out={target}"]
    assert protoc.main(["protoc", *arguments, *outputs, str(_HERE / "shop.proto")]) == 0
    sys.path.insert(0, str(target))
    try:
        yield Shop(importlib.import_module("shop_pb2"), importlib.import_module("shop_pb2_grpc"))
    finally:
        sys.path.remove(str(target))


def _well_known() -> Path:
    import grpc_tools

    return Path(grpc_tools.__path__[0]) / "_proto"


SHOP_METHODS = tuple(f"/shoes.v1.ShopService/{name}" for name in ("Buy", "Follow", "Chat", "Pack"))
LARGE = "x" * 100_000
SECRET = b"the secret of the whole shop"


class KeyRing(KeyReader):
    """Knows three keys; cannot reach its own store for a fourth."""

    async def identify(self, key: str) -> Identity:
        if key == "unreachable":
            raise DependencyUnavailable("the key store")
        roles = {"admin": "ADMIN", "viewer": "VIEWER"}
        if key == "system":
            return Identity(CallerKind.SYSTEM, "key-system")
        if key not in roles:
            raise Refusal("KEY_INVALID", "no such key")
        return Identity(CallerKind.MEMBER, f"key-{key}", "w", roles[key])


def servicer_of(shop: Shop) -> Any:
    """A servicer whose behaviour is chosen by the shoe of the order."""

    class Servicer(shop.services.ShopServiceServicer):  # type: ignore[misc, name-defined]
        async def Buy(self, request: Any, context: Any) -> Any:
            match request.shoe:
                case "bug":
                    raise RuntimeError("SELECT secret FROM till")
                case "slow":
                    await asyncio.Event().wait()
                case "trace":
                    trace = present_trace()
                    return shop.messages.BuyResponse(receipt=trace.header() if trace else "")
                case "large":
                    return shop.messages.BuyResponse(receipt=LARGE)
                case "faults":
                    many = [Violation(f"nodes[{n}]", "CYCLE", "x" * 100) for n in range(2_000)]
                    raise Refusal("INVALID_DEFINITION", "very wrong", violations=many)
                case _:
                    pass
            return shop.messages.BuyResponse(receipt=f"{caller().grade} {caller().name}")

        async def Follow(self, request: Any, context: Any) -> AsyncIterator[Any]:
            for number in range(request.pairs):
                yield shop.messages.BuyResponse(receipt=LARGE if request.shoe == "large" else str(number))
            if request.shoe == "bug":
                raise RuntimeError("SELECT secret FROM till")

        async def Chat(self, requests: Any, context: Any) -> None:
            while (request := await context.read()) is not grpc.aio.EOF:
                if request.shoe == "bug":
                    raise RuntimeError("SELECT secret FROM till")
                await context.write(shop.messages.BuyResponse(receipt=request.shoe))

        async def Pack(self, requests: Any, context: Any) -> Any:
            shoes = [request.shoe async for request in requests]
            return shop.messages.BuyResponse(receipt=" ".join(shoes))

    return Servicer()


class Counter:
    """A served shop: its server, and stubs of any caller."""

    def __init__(self, shop: Shop, server: GrpcServer, port: int) -> None:
        self.shop, self.server, self.port = shop, server, port
        self.address = f"127.0.0.1:{port}"
        self._pools: list[ChannelPool] = []

    def channel(self, **who: Any) -> Channel:
        return self.channel_to(self.address, **who)

    def channel_to(self, address: str, **who: Any) -> Channel:
        """An address that leads to the server."""
        self._pools.append(ChannelPool(**who))
        return self._pools[-1].get(address)

    def stub(self, **who: Any) -> Any:
        return self.stub_to(self.address, **who)

    def stub_to(self, address: str, **who: Any) -> Any:
        return self.shop.services.ShopServiceStub(self.channel_to(address, **who))

    def order(self, shoe: str = "clog", pairs: int = 1, **fields: Any) -> Any:
        return self.shop.messages.BuyRequest(shoe=shoe, pairs=pairs, **fields)

    async def close(self) -> None:
        for pool in self._pools:
            await pool.close()
        await self.server.stop(0)


@asynccontextmanager
async def open_shop(shop: Shop, guard: Guard, **options: Any) -> AsyncIterator[Counter]:
    server = GrpcServer("127.0.0.1:0", guard=guard, **options)
    shop.services.add_ShopServiceServicer_to_server(servicer_of(shop), server)
    counter = Counter(shop, server, await server.start())
    try:
        yield counter
    finally:
        await counter.close()


def guard_of(rule: Rule | None = None, **options: Any) -> Guard:
    rule = members("ADMIN") | services("api") if rule is None else rule
    return Guard(
        dict.fromkeys(SHOP_METHODS, rule), keys=KeyRing(), credential=ServiceCredential([SECRET], "shop"), **options
    )


async def refused(call: Awaitable[Any]) -> RemoteError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return remote_error(caught.value)
