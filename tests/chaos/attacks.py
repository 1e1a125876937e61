"""What a hostile workspace does to a stack that it shares: one function for each attack, and the table of them all.

Each ends by itself, and asserts that it was refused or bounded as it should be. Whether the neighbour keeps its service
meanwhile is in test_red_team.py. Nothing here leaves this machine: addresses that are not its own must be refused.
A mutant opens the door that each of them tries (tests/mutants/doors.py), and then its test must fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from itertools import cycle, pairwise
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct

from services.chassis.blobs import BlobRef
from services.chassis.grpc.errors import remote_error
from services.coordinator.core.retry import hand_back_delay
from tests.chaos.arena import ATTACK_SECONDS_MAX, HIDDEN, LEASE_SCALE, OPEN, SERVICES, Arena
from tests.chaos.key_attacks import (
    asks_for_what_services_call,
    attaches_as_another_runner,
    brings_two_keys,
    looks_for_the_service_secret,
    watches_after_its_key_is_revoked,
    watches_after_its_workspace_is_closed,
)
from tests.chaos.test_busy_runner import node
from tests.e2e import test_secrets as secrets
from tests.e2e.test_call_floods import CALLS, GET, PARTS, attacking, viewer
from tests.e2e.test_fair_shares import FLOOD_MAX, SLOW
from tests.integration.api.test_checking import HOSTILE
from tests.integration.api.test_checking import SLOW as SLOW_VALUES
from tests.integration.coordinator.test_hand_backs import refuse, release
from tests.integration.coordinator.test_untrue_reports import stored
from tests.integration.runner.test_rendering import METHODS
from tests.support.api import Client, new_workspace
from tests.support.careless_server import careless_server
from tests.support.probe import eventually, until
from tests.unit.definition.test_words import CALLS as TEMPLATES_THAT_CALL
from tests.unit.runner.test_egress import METADATA, PRIVATE, PRIVATE_V6, forms_of
from windlass.api.v1 import executions_pb2, runs_pb2, workspaces_pb2
from windlass.api.v1.resources_pb2 import Execution, OutputRef, Run

# The same address, as only some parsers read it.
ODD_FORMS = ("2130706434", "0x7f000002", "0177.0.0.2", "127.2", "127.0.2", "0x7f.0.0.2", "①②⑦.⓪.⓪.②")
CREDENTIALS = {"Authorization": "Bearer canary-1", "X-Api-Key": "canary-2", "Cookie": "session=canary-3"}
READERS = 6
# Longer than a silent runner would keep its leases.
HELD_SECONDS = 25 * LEASE_SCALE
DELAYS, SLOW_TEMPLATES = 40, 60
# Each node is handed back so often, which takes a runner 2 s.
HANDED_BACK, HAND_BACKS = 20, 4
STARTERS = 20
STREAMS = 2_000
RUNNER_STREAMS = (
    "/windlass.coordinator.v1.RunnerSessions/Session",
    "/windlass.coordinator.v1.RunnerOutputs/UploadOutput",
)
# Longer than a stream may take to begin.
STREAM_SECONDS_MAX = 20.0
# Starts that wait. The api would hold twice the memory that it may have, if it took all of them.
WAITERS = 60
WATCH = "/windlass.api.v1.ExecutionService/WatchExecution"
# If all of its answers were kept, they would take more memory than the api may have.
UNREAD: dict[str, Any] = {"calls": 300, "connections": 4, "hold_seconds": 5.0}
# Small values, each of which takes far more memory than bytes of an input, up to the largest input that is taken.
DEEP_INPUT = {"x": [[[[[[[[0]]]]]]]] * 13_000}
# They keep a child that checks busy for longer than anybody waits for a turn.
CHECKED = 8


def requests_of(urls: Mapping[str, str], **config: Any) -> list[dict[str, Any]]:
    return [{"id": id, "module": "http.request@1", "config": {"url": url, **config}} for id, url in urls.items()]


# ── what they do ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def opens_calls_without_end(arena: Arena) -> None:
    """One key of it opens more calls than a server has places, and never finishes a request."""
    metadata = await viewer(arena.stack)
    options: dict[str, Any] = {"calls": CALLS, "connections": 4, "seconds_max": 60.0}
    with attacking("open_calls", arena.stack.member("api").grpc, GET, metadata, **options) as process:
        await until(lambda: process.poll() is not None, ATTACK_SECONDS_MAX, "the end of the calls")
        assert process.stdout is not None
        assert int(process.stdout.read()) == CALLS


async def sends_parts_of_messages(arena: Arena) -> None:
    """It sends the greater part of large requests to each service without a key, and to the api with one."""
    targets: list[tuple[str, str, list[tuple[str, str]]]] = [
        (service, "/grpc.health.v1.Health/Watch", []) for service in SERVICES
    ]
    for service, method, metadata in [*targets, ("api", GET, await viewer(arena.stack))]:
        with attacking("send_parts", arena.stack.member(service).grpc, method, metadata, **PARTS) as process:
            await until(lambda: process.poll() is not None, ATTACK_SECONDS_MAX, "the end of the parts")
            assert process.returncode == 0


async def opens_streams_without_frames(arena: Arena) -> None:
    """A runner of it opens more streams than it may have, and sends nothing on them."""
    _, metadata = await arena.key(workspaces_pb2.RUNNER)
    options: dict[str, Any] = {"calls": STREAMS, "connections": 8, "seconds_max": STREAM_SECONDS_MAX}
    for method in RUNNER_STREAMS:
        with attacking("open_calls", arena.stack.member("coordinator").grpc, method, metadata, **options) as process:
            await until(lambda: process.poll() is not None, ATTACK_SECONDS_MAX, "the end of the streams")
            assert process.stdout is not None
            assert int(process.stdout.read()) == STREAMS, method


async def waits_with_large_inputs(arena: Arena) -> None:
    """Many of its starts wait for their end at the same time, with inputs that take much memory."""
    await arena.hostile.apply("waits", [{"id": "a", "module": "sleep@1", "config": {"duration": "1h"}}])
    request = executions_pb2.StartExecutionRequest(workflow="waits", timeout=Duration(seconds=5))
    request.wait.FromSeconds(60)
    request.input.update(DEEP_INPUT)

    async def end_of_one() -> str:
        while True:
            try:
                answer = await arena.hostile.executions.StartExecution(request, metadata=arena.hostile.metadata)
                return Execution.State.Name(answer.execution.state)
            except grpc.aio.AioRpcError as refused:
                # On a busy machine some of them arrive too slowly.
                if (reason := remote_error(refused).reason) != "SLOW_REQUESTS_EXCEEDED":
                    return reason

    ends = await asyncio.gather(*(end_of_one() for _ in range(WAITERS)))
    assert set(ends) == {"TIMEOUT", "LARGE_REQUESTS_EXCEEDED"}


async def leaves_answers_unread(arena: Arena) -> None:
    """It asks for much, again and again, and reads no answer."""
    nodes = [{"id": f"n{number}", "module": "transform@1", "inputs": {"x": "{{ input.text }}"}} for number in range(20)]
    await arena.hostile.apply("large", nodes, output={"x": "{{ nodes.n0.output.x }}"})
    execution = await arena.hostile.run("large", input={"text": "x" * 200_000})
    assert execution.state == Execution.SUCCESS
    requests = {
        GET: executions_pb2.GetExecutionRequest(execution_id=execution.id),
        "/windlass.api.v1.RunService/ListRuns": runs_pb2.ListRunsRequest(execution_id=execution.id),
        WATCH: executions_pb2.WatchExecutionRequest(execution_id=execution.id),
    }
    address, metadata = arena.stack.member("api").grpc, await viewer(arena.stack)
    for method, request in requests.items():
        asked = {"message": request.SerializeToString().hex(), **UNREAD}
        with attacking("leave_unread", address, method, metadata, **asked) as process:
            await until(lambda: process.poll() is not None, ATTACK_SECONDS_MAX, "the end of the calls")
            assert process.returncode == 0


def private_hosts() -> Iterator[str]:
    for address in [HIDDEN, *PRIVATE, *METADATA, *PRIVATE_V6]:
        is_v4 = "." in address
        if address != OPEN and "%" not in address:
            yield address if is_v4 else f"[{address}]"
            yield from (f"[{form}]" for form in (forms_of(address) if is_v4 else ()))
    yield from ODD_FORMS


async def calls_private_addresses(arena: Arena) -> None:
    """Its workflows ask for addresses of private networks in every form of writing them."""
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
    """Its server redirects requests to another origin, which would like their credentials."""
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
    """Its server repeats in its answers the secrets that were sent to it."""
    async with careless_server() as port:
        execution = await secrets.fails_with_secrets(arena.hostile, port)
    assert execution.state == Execution.FAILED
    assert secrets.CANARY not in str([execution, *await arena.hostile.runs_of(execution.id)])
    held = {table async for table, row in secrets.rows_of(arena.stack) if secrets.CANARY.encode() in row}
    assert held == secrets.DEFINITIONS
    for log in arena.stack.home.root.rglob("*.log"):
        assert secrets.CANARY not in log.read_text(), log


async def answers_in_a_slow_charset(arena: Arena) -> None:
    """Its server answers in a charset whose decoder takes minutes."""
    urls = {f"n{number}": f"http://{OPEN}:{arena.server.home}/slow" for number in range(READERS)}
    assert not await errors_of(arena, "slow", requests_of(urls))


async def reads_huge_outputs(arena: Arena) -> None:
    """One node gets all values of one output, which are too many, and another counts those of all outputs."""
    urls = {f"n{number}": f"http://{OPEN}:{arena.server.home}/large" for number in range(READERS)}
    reading: dict[str, Any] = {"module": "transform@1"}
    nodes = [
        *requests_of(urls),
        {"id": "one", **reading, "inputs": {"x": "{{ nodes.n0.output.body }}"}},
        {"id": "all", **reading, "inputs": {id: f"{{{{ nodes.{id}.output.body | length }}}}" for id in urls}},
    ]
    edges = [{"from": id, "to": to} for id in urls for to in ("one", "all")]
    errors = await errors_of(arena, "huge", nodes, edges=edges)
    assert errors.get("one") == "TEMPLATE_ERROR"
    assert errors.keys() <= {"one", "all"}


async def calls_methods_in_templates(arena: Arena) -> None:
    """Its templates call functions, and name methods of the data."""
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


async def goes_on_from_untrue_cursors(arena: Arena) -> None:
    """Its own runner hands delays back with cursors that would have another runner wait for years."""
    cursors = cycle(json.dumps({"seconds_left": left}).encode() for left in (1e9, "1e9", "nan", "inf", [1e9]))
    nodes = [{"id": f"n{number}", "module": "delay@1", "config": {"duration": "100ms"}} for number in range(20)]
    await arena.hostile.apply("cursors", nodes)
    async with arena.own_runner("delay@1") as runner:
        runner.work = lambda grant: release(runner, grant, next(cursors))
        execution = await arena.hostile.start("cursors")
        assert (await arena.hostile.end_of(execution.id)).state == Execution.SUCCESS
        assert runner.grants


async def blocks_the_event_loop(arena: Arena) -> None:
    """Its module blocks the event loop of async modules for longer than leases of a silent runner live."""
    await arena.hostile.apply("blocks", node("ledger.hold@1", HELD_SECONDS))
    assert (await arena.hostile.run("blocks")).state == Execution.SUCCESS


async def fills_all_places(arena: Arena) -> None:
    """It has more delays of an hour than the runner has places."""
    nodes = [{"module": "delay@1", "config": {"duration": "1h"}}] * DELAYS
    await goes_on(arena, "delays", nodes, Run.RUNNING, FLOOD_MAX)


async def renders_slow_templates(arena: Arena) -> None:
    """Each of its templates takes more CPU time than a child may use."""
    nodes = [{"module": "transform@1", "inputs": {"x": SLOW}}] * SLOW_TEMPLATES
    await goes_on(arena, "slow-templates", nodes, Run.FAILED, 1, input={"long": "a" * 200_000})


async def goes_on(arena: Arena, name: str, nodes: list[dict[str, Any]], state: int, count: int, **fields: Any) -> None:
    """Serve the neighbour from when so many runs of these nodes are in the state, and until all is cancelled."""
    await arena.hostile.apply(name, [{"id": f"n{number}", **node} for number, node in enumerate(nodes)])
    execution = await arena.hostile.start(name, **fields)

    async def is_in_full_course() -> bool:
        runs = await arena.hostile.runs_of(execution.id)
        return sum(run.state == state for run in runs) >= count

    await eventually(is_in_full_course, ATTACK_SECONDS_MAX, name)
    await arena.serves_on()
    assert (await arena.hostile.get(execution.id)).state == Execution.RUNNING
    await arena.hostile.cancel(execution.id)
    await arena.hostile.end_of(execution.id)


async def hands_back_all_grants(arena: Arena) -> None:
    """Its own runner refuses or releases whatever it is granted, at once."""
    module, hand_backs = "attack.none@1", cycle((refuse, release))
    nodes = [{"id": f"n{number}", "module": module} for number in range(HANDED_BACK)]
    await arena.hostile.apply("hand-backs", nodes)
    async with arena.own_runner(module) as runner:
        runner.work = lambda grant: next(hand_backs)(runner, grant)
        execution = await arena.hostile.start("hand-backs")
        await until(lambda: len(runner.grants) >= HANDED_BACK * HAND_BACKS, ATTACK_SECONDS_MAX, "the hand-backs")
        await arena.hostile.cancel(execution.id)
        ended = await arena.hostile.end_of(execution.id)
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in await arena.hostile.runs_of(execution.id):
        runs[run.node].append(run)
    for of_node in runs.values():
        of_node.sort(key=lambda run: run.create_time.ToMicroseconds())
        for number, (before, after) in enumerate(pairwise(of_node), 1):
            assert after.create_time.ToMicroseconds() - before.end_time.ToMicroseconds() >= hand_back_delay(number)
    # Two events for each run, and those of the execution.
    assert ended.last_seq <= 2 * sum(map(len, runs.values())) + 10


async def reports_outputs_that_it_has_not(arena: Arena) -> None:
    """Its own runner reports an output of the neighbour, an invented one, and one of its own as empty."""

    async def kept(client: Client) -> OutputRef:
        await client.apply("kept", requests_of({"a": f"http://{OPEN}:{arena.server.home}/slow"}))
        (run,) = await client.runs_of((await client.run("kept")).id)
        return run.output_ref

    own, foreign, module, sha256 = await kept(arena.hostile), await kept(arena.quiet), "attack.keep@1", "ab" * 32
    untrue = {
        "foreign": (foreign.key, foreign.sha256, foreign.size_bytes),
        "invented": (own.key.replace(own.sha256, sha256), sha256, own.size_bytes),
        "empty": (own.key, own.sha256, 0),
    }
    async with arena.own_runner(module) as runner:
        runner.work = lambda grant: runner.report(grant, stored(BlobRef(*untrue[grant.node])))
        errors = await errors_of(arena, "untrue", [{"id": id, "module": module} for id in untrue])
    assert errors == dict.fromkeys(untrue, "OUTPUT_REF_INVALID")


async def starves_low_priorities(arena: Arena) -> None:
    """Its starts of priority 5 never end, and one of priority 1 has waited for as long as they may be preferred."""
    crowd = await new_workspace(arena.stack, "crowd", executions_max=1)
    await crowd.apply("one", [{"id": "a", "module": "noop@1"}])

    async def is_crowded() -> bool:
        find = "SELECT count(*) FROM dispatcher.queue WHERE workspace = 'crowd' AND state = 1"
        ((count,),) = await arena.stack.rows(find)
        return bool(count >= STARTERS // 2)

    async with over_and_over(STARTERS, lambda: crowd.run("one", priority=5)):
        await eventually(is_crowded, ATTACK_SECONDS_MAX, "a queue")
        low = await crowd.start("one", priority=1)
        age = "UPDATE dispatcher.queue SET enqueue_time = enqueue_time - interval '4 minutes'"
        assert await arena.stack.rows(f"{age} WHERE execution_id = %s::uuid AND state = 1 RETURNING 1", low.id)
        assert (await crowd.end_of(low.id)).state == Execution.SUCCESS


async def starts_with_slow_inputs(arena: Arena) -> None:
    """Each of its inputs takes more CPU time to check than a child may use."""
    await arena.hostile.apply("inputs", [{"id": "a", "module": "noop@1"}], inputSchema={"properties": {"x": HOSTILE}})
    input_ = Struct()
    # An input has at most 256 KiB.
    input_.update({"x": SLOW_VALUES[:50_000]})

    async def start() -> None:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await arena.hostile.start("inputs", input=input_)
        assert remote_error(refused.value).reason in ("INPUT_MISMATCH", "DEPENDENCY_UNAVAILABLE")

    async with over_and_over(CHECKED, start):
        await arena.serves_on()


@contextlib.asynccontextmanager
async def over_and_over(count: int, call: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
    """So many callers, who call again and again, until the block ends."""

    async def go_on() -> None:
        while True:
            await call()

    callers = [asyncio.create_task(go_on()) for _ in range(count)]
    try:
        yield
    finally:
        for caller in callers:
            caller.cancel()
        ends = await asyncio.gather(*callers, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends


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
    return {run.node: run.error.type for run in runs if run.state != Run.SUCCESS}


ATTACKS: dict[str, Callable[[Arena], Coroutine[Any, Any, None]]] = {
    attack.__name__: attack
    for attack in (
        opens_calls_without_end,
        sends_parts_of_messages,
        opens_streams_without_frames,
        waits_with_large_inputs,
        leaves_answers_unread,
        answers_in_a_slow_charset,
        reads_huge_outputs,
        blocks_the_event_loop,
        calls_private_addresses,
        redirects_with_credentials,
        sends_secrets_that_fail,
        watches_after_its_key_is_revoked,
        watches_after_its_workspace_is_closed,
        brings_two_keys,
        goes_on_from_untrue_cursors,
        asks_for_what_services_call,
        attaches_as_another_runner,
        looks_for_the_service_secret,
        calls_methods_in_templates,
        fills_all_places,
        renders_slow_templates,
        hands_back_all_grants,
        reports_outputs_that_it_has_not,
        starves_low_priorities,
        starts_with_slow_inputs,
    )
}
