"""The stack that a hostile and a quiet workspace share, and the http server of the hostile one."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from aiohttp import web

from services.runner.app.modules.http_request import ANSWER_BYTES_MAX
from tests.support.api import Client
from tests.support.coordinator_stage import StageRunner
from tests.support.own_runner import own_runner
from tests.support.probe import until
from tests.support.stack import Stack
from windlass.api.v1 import workspaces_pb2
from windlass.api.v1.workspaces_pb2_grpc import ApiKeyServiceStub

SERVICES = ("api", "dispatcher", "coordinator", "runner")
# The only network that the operator has opened, and an address of this machine outside of it.
OPEN, HIDDEN = "127.0.0.1", "127.0.0.2"
ATTACK_SECONDS_MAX = 90.0
# Shorter terms would be lost to a busy machine, and not to an attack.
LEASE_SCALE = 0.3
# Executions of the quiet workspace that have to end well in each attack, however soon it is over.
SERVED_MIN = 20
# Each of its letters is put into the text before it, so the time to decode it grows with the square of its length.
SLOW_TEXT = b"ab-" + b"cde" * 540_000
# Many small values: parsed, each takes many times its size.
LARGE_JSON = b"[" + b",".join([b"{}"] * ((ANSWER_BYTES_MAX - 2) // 3)) + b"]"


class HostileServer(NamedTuple):
    """An http server with two open origins and a hidden one, by their ports. It keeps the headers of all requests."""

    home: int
    abroad: int
    hidden: int
    # By the port that was asked, and the path.
    heard: dict[tuple[int, str], list[dict[str, str]]]


class Arena(NamedTuple):
    """One stack, and the two workspaces that share it."""

    stack: Stack
    hostile: Client
    quiet: Client
    server: HostileServer
    # The executions of the quiet workspace that have ended well.
    served: list[str]

    async def serves_on(self) -> None:
        """Wait until the quiet workspace has been served as often as it has to be."""
        enough = len(self.served) + SERVED_MIN
        await until(lambda: len(self.served) >= enough, ATTACK_SECONDS_MAX, "the neighbour to be served")

    async def key(self, role: workspaces_pb2.Role.ValueType) -> tuple[str, list[tuple[str, str]]]:
        """The id and the metadata of a new key of the hostile workspace."""
        request = workspaces_pb2.CreateApiKeyRequest(role=role, title="an attack")
        made = await ApiKeyServiceStub(self.stack.channel()).CreateApiKey(request, metadata=self.hostile.metadata)
        return made.api_key.key_id, [("authorization", f"Bearer {made.key}")]

    def own_runner(self, module: str) -> AbstractAsyncContextManager[StageRunner]:
        """A runner of the hostile workspace."""
        return own_runner(self.stack, self.hostile.metadata, module, lease_scale=LEASE_SCALE)


@contextlib.asynccontextmanager
async def hostile_server() -> AsyncIterator[HostileServer]:
    heard: dict[tuple[int, str], list[dict[str, str]]] = defaultdict(list)
    ports: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        port = request.transport.get_extra_info("sockname")[1]
        heard[port, request.path].append(dict(request.headers))
        if request.path == "/go":
            raise web.HTTPFound(f"http://{OPEN}:{ports[1]}/there")
        if request.path == "/slow":
            return web.Response(body=SLOW_TEXT, headers={"Content-Type": "text/plain; charset=punycode"})
        if request.path == "/large":
            return web.Response(body=LARGE_JSON, content_type="application/json")
        return web.Response(text="there")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    for host in (OPEN, OPEN, HIDDEN):
        await web.TCPSite(runner, host, 0).start()
    ports += [address[1] for address in runner.addresses]
    try:
        home, abroad, hidden = ports
        yield HostileServer(home, abroad, hidden, heard)
    finally:
        await runner.cleanup()
