"""What a hostile workspace does to a stack that it shares: one function for each attack, and the table of them all.

Each ends by itself, and asserts that it was refused or bounded as it should be. Whether the neighbour keeps its service
meanwhile is in test_red_team.py. Nothing here leaves this machine: addresses that are not its own must be refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any, NamedTuple

import grpc
import pytest
from aiohttp import web

from services.chassis.grpc.errors import remote_error
from services.runner.app.modules.http_request import ANSWER_BYTES_MAX
from tests.chaos.test_busy_runner import HELD_SECONDS, node
from tests.e2e import test_secrets as secrets
from tests.e2e import test_session_floods as sessions
from tests.e2e.test_call_floods import CALLS, GET, PARTS, attacking, viewer
from tests.integration.runner.test_rendering import METHODS
from tests.support.api import Client
from tests.support.careless_server import careless_server
from tests.support.probe import until
from tests.support.stack import Stack
from tests.unit.definition.test_words import CALLS as TEMPLATES_THAT_CALL
from tests.unit.runner.test_egress import METADATA, PRIVATE, PRIVATE_V6, forms_of
from windlass.api.v1 import executions_pb2, resources_pb2, workspaces_pb2
from windlass.api.v1.workspaces_pb2_grpc import ApiKeyServiceStub

Execution = resources_pb2.Execution
SERVICES = ("api", "dispatcher", "coordinator", "runner")
# The only network that the operator has opened, and an address of this machine outside of it.
OPEN, HIDDEN = "127.0.0.1", "127.0.0.2"
# The same address, as only some parsers read it.
ODD_FORMS = ("2130706434", "0x7f000002", "0177.0.0.2", "127.2", "127.0.2", "0x7f.0.0.2", "①②⑦.⓪.⓪.②")
CREDENTIALS = {"Authorization": "Bearer canary-1", "X-Api-Key": "canary-2", "Cookie": "session=canary-3"}
ATTACK_SECONDS_MAX = 90.0
# Each of its letters is put into the text before it, so the time to decode it grows with the square of its length.
SLOW_TEXT = b"ab-" + b"cde" * 540_000
# Many small values: parsed, each takes many times its size.
LARGE_JSON = b"[" + b",".join([b"{}"] * ((ANSWER_BYTES_MAX - 2) // 3)) + b"]"
READERS = 6
WATCHES = 40
ATTACHES = 50
BLOCKS = 3


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

    async def key(self, role: workspaces_pb2.Role.ValueType) -> tuple[str, list[tuple[str, str]]]:
        """The id and the metadata of a new key of the hostile workspace."""
        request = workspaces_pb2.CreateApiKeyRequest(role=role, title="an attack")
        made = await ApiKeyServiceStub(self.stack.channel()).CreateApiKey(request, metadata=self.hostile.metadata)
        return made.api_key.key_id, [("authorization", f"Bearer {made.key}")]


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


def requests_of(urls: Mapping[str, str], **config: Any) -> list[dict[str, Any]]:
    return [{"id": id, "module": "http.request@1", "config": {"url": url, **config}} for id, url in urls.items()]


# ── what they do ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def opens_calls_without_end(arena: Arena) -> None:
    metadata = await viewer(arena.stack)
    options: dict[str, Any] = {"calls": CALLS, "connections": 4, "seconds_max": 60.0}
    with attacking("open_calls", arena.stack.member("api").grpc, GET, metadata, **options) as process:
        await until(lambda: process.poll() is not None, ATTACK_SECONDS_MAX, "the end of the calls")
        assert process.stdout is not None
        assert int(process.stdout.read()) == CALLS


async def sends_parts_of_messages(arena: Arena) -> None:
    """To each service without a key, and to the api with one."""
    targets: list[tuple[str, str, list[tuple[str, str]]]] = [
        (service, "/grpc.health.v1.Health/Watch", []) for service in SERVICES
    ]
    for service, method, metadata in [*targets, ("api", GET, await viewer(arena.stack))]:
        with attacking("send_parts", arena.stack.member(service).grpc, method, metadata, **PARTS) as process:
            await until(lambda: process.poll() is not None, ATTACK_SECONDS_MAX, "the end of the parts")
            assert process.returncode == 0


def private_hosts() -> Iterator[str]:
    for address in [HIDDEN, *PRIVATE, *METADATA, *PRIVATE_V6]:
        is_v4 = "." in address
        if address != OPEN and "%" not in address:
            yield address if is_v4 else f"[{address}]"
            yield from (f"[{form}]" for form in (forms_of(address) if is_v4 else ()))
    yield from ODD_FORMS


async def calls_private_addresses(arena: Arena) -> None:
    hosts = list(private_hosts())
    urls = {f"n{number}": f"http://{host}:{arena.server.hidden}/" for number, host in enumerate(hosts)}
    errors = await errors_of(arena, "private", requests_of(urls, timeout="2s"))
    assert len(errors) == len(hosts)
    types = dict(zip(hosts, (errors[id] for id in urls), strict=True))
    invalid = {host for host, type_ in types.items() if type_ == "HTTP_INVALID"}
    assert invalid <= {*ODD_FORMS}
    assert {type_ for host, type_ in types.items() if host not in invalid} == {"ADDRESS_DENIED"}
    assert arena.server.hidden not in {port for port, _ in arena.server.heard}


async def redirects_with_credentials(arena: Arena) -> None:
    urls = {f"n{number}": f"http://{OPEN}:{arena.server.home}/go" for number in range(20)}
    assert not await errors_of(arena, "redirects", requests_of(urls, headers=CREDENTIALS))
    heard = arena.server.heard
    home, abroad = heard[arena.server.home, "/go"], heard[arena.server.abroad, "/there"]
    assert len(home) == len(abroad) == len(urls)
    assert all("Idempotency-Key" in headers for headers in home)
    for headers in abroad:
        assert "canary" not in str(headers)
        assert "Idempotency-Key" not in headers


async def sends_secrets_that_fail(arena: Arena) -> None:
    async with careless_server() as port:
        execution = await secrets.fails_with_secrets(arena.hostile, port)
    assert execution.state == Execution.FAILED
    assert secrets.CANARY not in str([execution, *await arena.hostile.runs_of(execution.id)])
    held = {table async for table, row in secrets.rows_of(arena.stack) if secrets.CANARY.encode() in row}
    assert held == secrets.DEFINITIONS
    for log in arena.stack.home.root.rglob("*.log"):
        assert secrets.CANARY not in log.read_text(), log


async def answers_in_a_slow_charset(arena: Arena) -> None:
    urls = {f"n{number}": f"http://{OPEN}:{arena.server.home}/slow" for number in range(READERS)}
    assert not await errors_of(arena, "slow", requests_of(urls))


async def reads_huge_outputs(arena: Arena) -> None:
    """One node gets all values of one output, which are too many. The other one counts those of all outputs."""
    urls = {f"n{number}": f"http://{OPEN}:{arena.server.home}/large" for number in range(READERS)}
    reading: dict[str, Any] = {"module": "transform@1"}
    nodes = [
        *requests_of(urls),
        {"id": "one", **reading, "inputs": {"x": "{{ nodes.n0.output.body }}"}},
        {"id": "all", **reading, "inputs": {id: f"{{{{ nodes.{id}.output.body | length }}}}" for id in urls}},
    ]
    edges = [{"from": id, "to": to} for id in urls for to in ("one", "all")]
    errors = await errors_of(arena, "huge", nodes, edges=edges)
    assert errors["one"] == "TEMPLATE_ERROR"
    assert errors.keys() <= {"one", "all"}


async def calls_methods_in_templates(arena: Arena) -> None:
    for template in TEMPLATES_THAT_CALL:
        with_call = [{"id": "a", "module": "transform@1", "inputs": {"x": template}}]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await arena.hostile.apply("calls", with_call)
        assert remote_error(refused.value).reason == "INVALID_DEFINITION"
    nodes = [
        {"id": f"n{number}", "module": "transform@1", "inputs": {"x": f"{{{{ input.{name}|default(1) }}}}"}}
        for number, name in enumerate(METHODS)
    ]
    assert not await errors_of(arena, "methods", nodes)


async def watches_after_its_key_is_revoked(arena: Arena) -> None:
    await arena.hostile.apply("long", [{"id": "a", "module": "sleep@1", "config": {"duration": "1h"}}])
    execution = await arena.hostile.start("long")
    key_id, metadata = await arena.key(workspaces_pb2.VIEWER)
    request = executions_pb2.WatchExecutionRequest(execution_id=execution.id)
    watches = [
        arena.hostile.executions.WatchExecution(request, metadata=metadata, timeout=ATTACK_SECONDS_MAX)
        for _ in range(WATCHES)
    ]
    for watch in watches:
        await watch.read()
    await ApiKeyServiceStub(arena.stack.channel()).RevokeApiKey(
        workspaces_pb2.RevokeApiKeyRequest(key_id=key_id), metadata=arena.hostile.metadata
    )

    async def ended(watch: Any) -> None:
        while await watch.read() is not grpc.aio.EOF:
            pass

    ends = await asyncio.gather(*map(ended, watches), return_exceptions=True)
    assert all(isinstance(each, grpc.aio.AioRpcError) for each in ends)
    assert {await watch.code() for watch in watches} == {grpc.StatusCode.UNAUTHENTICATED}
    await arena.hostile.cancel(execution.id)


async def attaches_as_another_runner(arena: Arena) -> None:
    """Under the instance of the stack's own runner, with a key that may attach runners."""
    _, metadata = await arena.key(workspaces_pb2.RUNNER)
    target = sessions.HOPS["coordinator"].on(arena.stack)._replace(metadata=metadata)
    find = f"SELECT instance_id FROM {target.hop.table} WHERE state = 'LIVE'"
    ((instance_id,),) = await arena.stack.rows(find)
    for _ in range(ATTACHES):
        async with sessions.session(target, ATTACK_SECONDS_MAX) as stranger:
            await stranger.say(sessions.attach_of(target.hop, instance_id))
            assert await stranger.fault() == "INSTANCE_ENDED"
    assert await arena.stack.rows(find) == [(instance_id,)]


async def blocks_the_event_loop(arena: Arena) -> None:
    """The runner goes on to beat, so that no run of anybody is lost."""
    await arena.hostile.apply("blocks", node("ledger.hold@1", HELD_SECONDS))
    for _ in range(BLOCKS):
        assert (await arena.hostile.run("blocks")).state == Execution.SUCCESS


async def errors_of(arena: Arena, name: str, nodes: list[dict[str, Any]], **more: Any) -> dict[str, str]:
    """Run a workflow of the hostile workspace to its end, and return the types of its errors by node."""
    await arena.hostile.apply(name, nodes, retry={"attempts": 1}, **more)
    execution = await arena.hostile.start(name)
    request = executions_pb2.WatchExecutionRequest(execution_id=execution.id)
    async for _ in arena.hostile.executions.WatchExecution(
        request, metadata=arena.hostile.metadata, timeout=ATTACK_SECONDS_MAX
    ):
        pass
    runs = await arena.hostile.runs_of(execution.id)
    assert {run.attempt for run in runs} == {1}
    return {run.node: run.error.type for run in runs if run.state != resources_pb2.Run.SUCCESS}


ATTACKS: dict[str, Callable[[Arena], Coroutine[Any, Any, None]]] = {
    attack.__name__: attack
    for attack in (
        opens_calls_without_end,
        sends_parts_of_messages,
        answers_in_a_slow_charset,
        reads_huge_outputs,
        blocks_the_event_loop,
        calls_private_addresses,
        redirects_with_credentials,
        sends_secrets_that_fail,
        watches_after_its_key_is_revoked,
        attaches_as_another_runner,
        calls_methods_in_templates,
    )
}
