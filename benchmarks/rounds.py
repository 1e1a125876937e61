"""One round of Windlass: a fresh stack per work tree, on which each workload runs before the next workload begins.

With one work tree this is what `make bench` publishes. With two it compares their code: both stacks run during the
whole round, and both get the same workload within seconds, so that changes of the machine's speed affect both. The
round reaches a work tree only by its own `windlass up` and by public RPCs.

W1: 200 sequential executions of one no-op node, from the start call to the result. W2: 2,000 executions of 5 sequential
no-op nodes, started one by one with up to 256 in flight, until all results are seen. W2b: the same in batches of 100.
W3: one execution of 1,000 parallel no-op nodes and a join. L: from the acknowledged start to the beginning of the first
run at a runner, at 50 and 500 starts a second (Poisson).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.collector import collector
from benchmarks.figures import Figures
from benchmarks.measure import cpu_seconds, percentile, pss_mb, tree
from benchmarks.pace import many_at_once, one_by_one
from benchmarks.peers.environment import ROOT, scratch
from benchmarks.workloads import Client, chain, fan, latency
from tests.support.stack import Stack, running_stack

STEPS = 10_000
T = TypeVar("T")


@dataclass(frozen=True)
class MeasuredStack:
    """A running stack with its client, and the figures that were measured there."""

    client: Client
    stack: Stack
    figures: Figures = field(default_factory=dict)

    async def counted(self, work: Awaitable[T]) -> tuple[T, float]:
        """The result of the work, and the CPU seconds that the services, PostgreSQL and the client used for it."""
        pids = [os.getpid(), *tree([self.stack.process.pid])]
        before_s = cpu_seconds(pids)
        found = await work
        return found, cpu_seconds(pids) - before_s

    async def throughput(self, work: Awaitable[float]) -> Figures:
        wall_s, cpu_s = await self.counted(work)
        return {"steps_per_s": STEPS / wall_s, "cpu_s_per_1000_steps": cpu_s * 1_000 / STEPS}

    def memory_mb(self) -> float:
        return pss_mb(entry["pid"] for entry in self.stack.up()["processes"])


async def _w1(subject: MeasuredStack) -> Figures:
    times, cpu_s = await subject.counted(one_by_one(partial(subject.client.run, "bench-one")))
    latencies = {"p50_ms": percentile(times, 0.5), "p95_ms": percentile(times, 0.95)}
    return {"W1": {**latencies, "cpu_ms_each": cpu_s * 1e3 / len(times)}}


async def _w2(subject: MeasuredStack) -> Figures:
    singles = many_at_once(partial(subject.client.run, "bench-five"))
    return {"W2": await subject.throughput(singles), "memory_pss_mb": subject.memory_mb()}


async def _w2b(subject: MeasuredStack) -> Figures:
    batches = many_at_once(partial(subject.client.run_batch, "bench-five", 100), count=20, in_flight=20)
    return {"W2b": await subject.throughput(batches)}


async def _w3(subject: MeasuredStack) -> Figures:
    (wall_ms,), cpu_s = await subject.counted(one_by_one(partial(subject.client.run, "bench-fan"), 1))
    return {"W3": {"wall_s": wall_ms / 1e3, "cpu_s": cpu_s}}


async def _latency(subject: MeasuredStack) -> Figures:
    return {"L": await latency(subject.client, 50), "L500": await latency(subject.client, 500)}


PARTS: dict[str, Callable[[MeasuredStack], Awaitable[Figures]]] = {
    "W1": _w1,
    "W2": _w2,
    "W2b": _w2b,
    "W3": _w3,
    "L": _latency,
}


async def windlass_round(parts: Collection[str], trees: Sequence[Path] = (ROOT,)) -> list[Figures]:
    """The figures of each work tree, measured in this order."""
    async with contextlib.AsyncExitStack() as running:
        subjects = [await running.enter_async_context(subject_of(root)) for root in trees]
        for name, part in PARTS.items():
            if name in parts:
                for subject in subjects:
                    subject.figures.update(await part(subject))
    return [subject.figures for subject in subjects]


@contextlib.asynccontextmanager
async def subject_of(root: Path) -> AsyncIterator[MeasuredStack]:
    """A fresh stack of the code in this work tree: leases at full length, tracing at its default sampling."""
    program = (str(root / ".venv/bin/windlass"),)
    with scratch() as place:
        async with collector(place / "collector.log") as collecting:
            cpu_before_s = cpu_seconds([collecting.pid])
            async with running_stack(lease_scale=1.0, program=program, otlp_endpoint=collecting.endpoint) as stack:
                subject = MeasuredStack(Client(stack.home.root, stack.entries("api")[0]["grpc"]), stack)
                try:
                    await _warm_up(subject.client)
                    yield subject
                finally:
                    await subject.client.close()
            # The services have sent their last spans, because they have ended.
            spans, cpu_s = await collecting.spans(), cpu_seconds([collecting.pid]) - cpu_before_s
            if spans == 0:
                raise RuntimeError(f"no span arrived from the stack of {root}: nothing was traced")
            subject.figures["collector"] = {"spans": spans, "cpu_s": cpu_s}


async def _warm_up(client: Client) -> None:
    for definition in (chain("bench-one", 1), chain("bench-five", 5), fan("bench-fan", 1_000)):
        await client.apply(definition)
    await one_by_one(partial(client.run, "bench-one"), 30)
