"""`python -m benchmarks.tenants`: what a quiet workspace notices of the others on its stack.

It prints one JSON line for each load: the quiet one's times from the start call to the result, before and after the
load (`alone`) and during it (`beside`), and the ratio of their 95th percentiles. It fails if one is too high. The quiet
workflow is a no-op and a template behind it, run one at a time by a process of its own (quiet_tenant.py).

A load is one loud tenant, 49 of them, or one that attacks as in tests/chaos/attacks.py, again and again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.struct_pb2 import Struct

from benchmarks.measure import percentile
from tests.chaos.arena import LEASE_SCALE, OPEN, Arena, hostile_server
from tests.chaos.attacks import ATTACKS, over_and_over
from tests.chaos.test_red_team import MODULES
from tests.support.api import Client, new_workspace
from tests.support.stack import running_stack

QUIET: dict[str, Any] = {
    "nodes": [{"id": "a", "module": "noop@1"}, {"id": "b", "module": "transform@1", "inputs": {"x": "{{ input }}"}}],
    "edges": [{"from": "a", "to": "b"}],
}
# Until each of 49 tenants has had its turn.
SETTLE_SECONDS = 30.0
# Until an attack is under way.
ATTACK_SECONDS = 5.0
# Until nothing of a cancelled load is left.
CANCEL_SECONDS = 10.0
LOUD = 49
# How much longer than alone the 95th percentile of the quiet one may be.
RATIO_MAX = 1.5


async def held(client: Client, nodes: list[dict[str, Any]], count: int = 1, **fields: Any) -> list[str]:
    await client.apply("held", nodes)
    return [(await client.start("held", **fields)).id for _ in range(count)]


@contextlib.asynccontextmanager
async def cancelled_after(client: Client, ids: Sequence[str]) -> AsyncIterator[None]:
    """What has ended by then is left alone."""
    yield
    for id_ in ids:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await client.cancel(id_)


@contextlib.asynccontextmanager
async def repeated(clients: Sequence[Client], nodes: list[dict[str, Any]], **more: Any) -> AsyncIterator[None]:
    """Each client runs the workflow again and again."""
    over = asyncio.Event()

    async def run(client: Client) -> None:
        while not over.is_set():
            await client.run("repeated")

    for client in clients:
        await client.apply("repeated", nodes, **more)
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(run(client))
        try:
            yield
        finally:
            over.set()


def many(count: int, prefix: str, **node: Any) -> list[dict[str, Any]]:
    return [{"id": f"{prefix}{number}", **node} for number in range(count)]


def delays(count: int, duration: str) -> list[dict[str, Any]]:
    return many(count, "d", module="delay@1", config={"duration": duration})


@contextlib.asynccontextmanager
async def long_delays(loud: Sequence[Client]) -> AsyncIterator[None]:
    """One tenant: 120 runs of an hour."""
    async with cancelled_after(loud[0], await held(loud[0], delays(40, "1h"), 3)):
        yield


@contextlib.asynccontextmanager
async def slow_templates(loud: Sequence[Client]) -> AsyncIterator[None]:
    """One tenant: 60 nodes whose templates end by their CPU limit."""
    loops = "".join(f"{{% for a{depth} in input.many %}}" for depth in range(4)) + "{% endfor %}" * 4
    slow = many(60, "n", module="transform@1", inputs={"x": loops})
    numbers = Struct()
    numbers.update({"many": list(range(1_000))})
    async with cancelled_after(loud[0], await held(loud[0], slow, input=numbers)):
        yield


@contextlib.asynccontextmanager
async def waves(loud: Sequence[Client]) -> AsyncIterator[None]:
    """One tenant: 100 no-ops and 40 delays of 2 s, one such execution after another."""
    edges = [{"from": f"n{number}", "to": f"d{number}"} for number in range(40)]
    async with repeated(loud[:1], many(100, "n", module="noop@1") + delays(40, "2s"), edges=edges):
        yield


@contextlib.asynccontextmanager
async def short_delays_of_many(loud: Sequence[Client]) -> AsyncIterator[None]:
    """49 tenants: a delay of 2 s each, again and again. Together they want five times the places that there are."""
    async with repeated(loud, delays(1, "2s")):
        yield


@contextlib.asynccontextmanager
async def long_delays_of_many(loud: Sequence[Client]) -> AsyncIterator[None]:
    """49 tenants: 40 runs of an hour each."""
    async with contextlib.AsyncExitStack() as ends:
        for client in loud:
            await ends.enter_async_context(cancelled_after(client, await held(client, delays(40, "1h"))))
        yield


@contextlib.asynccontextmanager
async def large_answers(loud: Sequence[Client]) -> AsyncIterator[None]:
    """One tenant: an execution with an input of 50,000 numbers is read again and again, by four callers at once."""
    numbers = Struct()
    numbers.update({"many": [-1.5] * 50_000})
    client = loud[0]
    (id_,) = await held(client, many(1, "n", module="noop@1"), input=numbers)
    async with over_and_over(4, lambda: client.get(id_)):
        yield


LOADS: dict[str, Callable[[Sequence[Client]], AbstractAsyncContextManager[None]]] = {
    load.__name__: load
    for load in (long_delays, slow_templates, waves, long_delays_of_many, short_delays_of_many, large_answers)
}
# One hostile tenant.
ATTACKING = (
    "answers_in_a_slow_charset",
    "reads_huge_outputs",
    "blocks_the_event_loop",
    "hands_back_all_grants",
    "starts_with_slow_inputs",
    "opens_calls_without_end",
    "sends_parts_of_messages",
)


@contextlib.asynccontextmanager
async def attacked(arena: Arena, name: str) -> AsyncIterator[None]:
    async def attack() -> None:
        while True:
            await ATTACKS[name](arena)

    attacking = asyncio.create_task(attack())
    try:
        yield
    finally:
        attacking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await attacking


async def times_of(arena: Arena, count: int) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.quiet_tenant", arena.stack.member("api").grpc, "quiet", str(count)]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    try:
        printed, _ = await process.communicate(arena.quiet.key.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError("the quiet tenant was not served; its error is above")
    times_ms: list[float] = json.loads(printed)
    return times_ms


def figures(times_ms: Sequence[float]) -> dict[str, float]:
    return {f"p{share}_ms": round(percentile(times_ms, share / 100), 1) for share in (50, 95)}


async def measure(arena: Arena, names: Sequence[str], count: int) -> bool:
    """Whether the quiet one was served beside all of them as it should be."""
    stack, is_served = arena.stack, True
    loud = [await new_workspace(stack, f"loud-{number}", executions_max=3) for number in range(LOUD)]
    await arena.quiet.apply("quiet", **QUIET)
    await times_of(arena, 30)
    for name in names:
        alone = await times_of(arena, count)
        async with LOADS[name](loud) if name in LOADS else attacked(arena, name):
            await asyncio.sleep(SETTLE_SECONDS if name in LOADS else ATTACK_SECONDS)
            beside = await times_of(arena, count)
        await asyncio.sleep(CANCEL_SECONDS)
        alone += await times_of(arena, count)
        ratio = round(percentile(beside, 0.95) / percentile(alone, 0.95), 2)
        is_served = is_served and ratio <= RATIO_MAX
        line = {"load": name, "alone": figures(alone), "beside": figures(beside), "p95_ratio": ratio}
        print(json.dumps(line), flush=True)
    return is_served


@contextlib.asynccontextmanager
async def running_arena(coordinators: int) -> AsyncIterator[Arena]:
    with tempfile.TemporaryDirectory(prefix="windlass-ledger-") as ledger:
        (Path(ledger) / "effects").mkdir()
        environment = [f"runner:WINDLASS_TEST_LEDGER={ledger}"]
        async with (
            hostile_server() as server,
            running_stack(
                coordinators=coordinators,
                modules=[MODULES],
                allow_net=[OPEN],
                extra_env=environment,
                lease_scale=LEASE_SCALE,
            ) as stack,
        ):
            yield Arena(stack, Client(stack), await new_workspace(stack, "quiet", executions_max=5), server, [])


async def main() -> bool:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tenants")
    parser.add_argument("--loads", default=",".join([*LOADS, *ATTACKING]))
    parser.add_argument("--count", type=int, default=100, help="executions of the quiet workspace in each part")
    parser.add_argument("--coordinators", type=int, default=1)
    given = parser.parse_args()
    names = given.loads.split(",")
    if unknown := set(names) - {*LOADS, *ATTACKING}:
        parser.error(f"no such load: {', '.join(sorted(unknown))}")
    async with running_arena(given.coordinators) as arena:
        return await measure(arena, names, given.count)


if __name__ == "__main__":
    sys.exit(not asyncio.run(main()))
