"""Circuits as a user sees them: a server that fails is left alone, and when it answers again all work is done."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest_asyncio
from aiohttp import web

from tests.support.api import Client
from tests.support.command_line import windlass
from tests.support.probe import eventually
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import circuits_pb2, executions_pb2, resources_pb2

Circuit = circuits_pb2.Circuit
SUCCESS = resources_pb2.Execution.SUCCESS
COORDINATORS = 2
# Long enough for all work to be held back, and too short for its executions to be parked.
OPEN_MS = 6_000
# Leases, and with them the times of circuits, are scaled by a tenth. Windows and permits are long, so that a busy
# machine changes nothing; and a target cools down for a second.
SETTINGS = [
    "coordinator:WINDLASS_CIRCUIT_PERMIT_SECONDS=600",
    "coordinator:WINDLASS_CIRCUIT_WINDOW_SECONDS=6000",
    "coordinator:WINDLASS_CIRCUIT_COOL_DOWN_SECONDS=10",
    "coordinator:WINDLASS_CIRCUIT_COOL_DOWN_SECONDS_MAX=20",
]


class Server:
    """A server that answers with the status that a test has given last."""

    def __init__(self) -> None:
        self.port = 0
        self.status = 503
        self.requests = 0
        # Requests wait for this before they are answered.
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.waiting = 0

    @property
    def target(self) -> str:
        return f"http.request@1 127.0.0.1:{self.port}"

    async def answer(self, _: web.Request) -> web.Response:
        self.requests += 1
        self.waiting += 1
        await self.goes_on.wait()
        self.waiting -= 1
        return web.json_response({}, status=self.status)


@contextlib.asynccontextmanager
async def a_server() -> AsyncIterator[Server]:
    made = Server()
    application = web.Application()
    application.router.add_route("*", "/", made.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    yield made
    made.goes_on.set()
    await runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack(coordinators=COORDINATORS, runners=2, allow_net=["127.0.0.1"], extra_env=SETTINGS) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[Server]:
    async with a_server() as made:
        yield made


async def apply(client: Client, server: Server, *, is_literal: bool) -> str:
    """A workflow that calls the server. Only its runner knows whom, unless the address is in the definition."""
    name = f"calls-{server.port}-{'literal' if is_literal else 'templated'}"
    url = f"http://127.0.0.1:{server.port if is_literal else '{{ input.port }}'}/"
    # Until the circuit opens, each of them may fail several times.
    retry = {"attempts": 100, "initialDelay": "100ms", "maxDelay": "500ms"}
    await client.apply(name, [{"id": "call", "module": "http.request@1", "config": {"url": url}, "retry": retry}])
    return name


async def start(client: Client, server: Server, workflow: str, count: int) -> list[str]:
    one = executions_pb2.StartExecutionRequest(workflow=workflow)
    one.input.update({"port": server.port})
    request = executions_pb2.BatchStartExecutionsRequest(requests=[one] * count)
    answer = await client.call(client.executions.BatchStartExecutions, request)
    return [item.result.execution.id for item in answer.items]


async def circuit_of(client: Client, server: Server) -> Any:
    request = circuits_pb2.ListCircuitsRequest(target_prefix=server.target)
    found = (await client.call(client.circuits.ListCircuits, request)).circuits
    return found[0] if found else None


async def is_in(client: Client, server: Server, *states: int) -> Any:
    circuit = await circuit_of(client, server)
    return circuit if circuit is not None and circuit.state in states else None


async def ends(client: Client, ids: Sequence[str]) -> list[Any]:
    return await asyncio.gather(*[client.end_of(id_) for id_ in ids])


async def test_work_for_a_server_that_fails_waits_and_is_done_when_it_answers_again(
    stack: Stack, server: Server
) -> None:
    client = Client(stack)
    templated = await apply(client, server, is_literal=False)
    literal = await apply(client, server, is_literal=True)
    ids = await start(client, server, templated, 30)
    opened = await eventually(lambda: is_in(client, server, Circuit.OPEN), 20, "the circuit to open")
    assert opened.failure_count >= 10
    assert all(opened.HasField(name) for name in ("open_time", "next_retry_time", "last_failure_time"))
    ids += await start(client, server, literal, 30)
    await eventually(lambda: has_waiting(client, server, 20), 20, "work to wait")
    requests = server.requests
    server.status = 200
    executions = await ends(client, ids)
    assert {each.state for each in executions} == {SUCCESS}
    closed = await eventually(lambda: is_in(client, server, Circuit.CLOSED), 20, "the circuit to close")
    assert not closed.HasField("next_retry_time")
    # Whatever was held back has cost no attempt: every retry is a request that was made.
    assert sum(each.metrics.retries for each in executions) == server.requests - len(ids)
    assert requests < server.requests
    assert "a circuit is open" in stack.log("coordinator", 0) + stack.log("coordinator", 1)
    held = [await events_of(client, id_, "WorkHeldBack") for id_ in ids]
    assert sum(map(bool, held)) >= 20
    (event, *_) = next(filter(None, held))
    assert event.details["target"] == server.target


async def has_waiting(client: Client, server: Server, count: int) -> bool:
    circuit = await circuit_of(client, server)
    return circuit is not None and circuit.waiting >= count


async def events_of(client: Client, execution_id: str, kind: str) -> list[Any]:
    request = executions_pb2.ListEventsRequest(execution_id=execution_id, page_size=1_000)
    found = await client.call(client.executions.ListEvents, request)
    return [event for event in found.events if event.type == kind]


async def test_coordinators_that_die_with_permits_let_no_more_through(stack: Stack, server: Server) -> None:
    """S20 with SIGKILL: the probes go on at their runners, and nobody else calls the server meanwhile."""
    client = Client(stack)
    workflow = await apply(client, server, is_literal=False)
    server.status = 200
    opening = circuits_pb2.OpenCircuitRequest(target=server.target)
    opening.until.FromMilliseconds(time.time_ns() // 1_000_000 + OPEN_MS)
    await client.call(client.circuits.OpenCircuit, opening)
    await eventually(lambda: all_know_of_one(stack), 20, "all coordinators to hear of it")
    server.goes_on.clear()
    ids = await start(client, server, workflow, 40)

    async def are_probed() -> bool:
        return server.waiting == 3 and await is_in(client, server, Circuit.HALF_OPEN) is not None

    await eventually(are_probed, 30, "three probes")
    requests = server.requests
    for replica in range(COORDINATORS):
        pid = stack.kill("coordinator", replica)
        await stack.ready_again("coordinator", replica, pid)
    # The successors have taken the executions over when they renew the permits of the probes.
    before = await permits(stack, server)
    await eventually(lambda: are_renewed(stack, server, before), 30, "the permits to be renewed")
    assert (server.requests, server.waiting) == (requests, 3)
    server.goes_on.set()
    assert {each.state for each in await ends(client, ids)} == {SUCCESS}


async def all_know_of_one(stack: Stack) -> bool:
    pages = [await stack.metrics("coordinator", replica) for replica in range(COORDINATORS)]
    return all("coordinator_circuits_open 1.0" in page for page in pages)


async def are_parked(stack: Stack, ids: Sequence[str]) -> bool:
    """They have given back their slots, and no coordinator holds them."""
    rows = await stack.rows("SELECT state FROM dispatcher.queue WHERE execution_id = ANY(%s::uuid[])", list(ids))
    return [row[0] for row in rows] == [4] * len(ids)


async def permits(stack: Stack, server: Server) -> dict[str, int]:
    ((found,),) = await stack.rows("SELECT permits FROM coordinator.circuits WHERE target = %s", server.target)
    return dict(found)


async def are_renewed(stack: Stack, server: Server, before: dict[str, int]) -> bool:
    later = await permits(stack, server)
    return len(later) == 3 and all(later.get(name, 0) > until for name, until in before.items())


async def test_people_list_open_and_reset_circuits_by_command(stack: Stack, server: Server) -> None:
    client = Client(stack)
    server.status = 200
    workflow = await apply(client, server, is_literal=True)
    home = ("--home", stack.options.home)
    opened = await asyncio.to_thread(windlass, "circuits", "open", server.target, "--for", "1h", "--json", *home)
    assert opened.returncode == 0, opened.stderr
    assert json.loads(opened.stdout)["state"] == "OPEN"
    await eventually(lambda: all_know_of_one(stack), 20, "all coordinators to hear of it")
    ids = await start(client, server, workflow, 15)
    await eventually(lambda: has_waiting(client, server, 15), 20, "the work to wait")
    await eventually(lambda: are_parked(stack, ids), 20, "the executions to be parked")
    shown = await asyncio.to_thread(windlass, "circuits", "list", "--state", "OPEN", *home)
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith(server.target)]
    assert line.removeprefix(server.target).split()[:4] == ["OPEN", "0", "0", "15"]
    got = await asyncio.to_thread(windlass, "circuits", "get", server.target, "--json", *home)
    assert json.loads(got.stdout)["nextRetryTime"] > json.loads(opened.stdout)["openTime"]
    reset = await asyncio.to_thread(windlass, "circuits", "reset", server.target, "--json", *home)
    assert json.loads(reset.stdout)["state"] == "CLOSED"
    # By themselves they would look at the circuit after minutes.
    assert {each.state for each in await ends(client, ids)} == {SUCCESS}
    assert server.requests == 15
    unknown = await asyncio.to_thread(windlass, "circuits", "get", "x.y@1 ghost", *home)
    assert (unknown.returncode, "CIRCUIT_NOT_FOUND" in unknown.stderr) == (1, True)
    audited = await stack.rows("SELECT action FROM api.audit WHERE subject = %s ORDER BY audit_id", server.target)
    assert [row[0] for row in audited] == ["OpenCircuit", "ResetCircuit"]
