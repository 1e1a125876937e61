"""Runs the workloads of a peer with an asynchronous SDK in their order, and prints their JSON line.

It runs in the environment of the peer, so it may import only modules that need nothing but psutil installed.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from benchmarks.measure import cpu_seconds, percentile, pss_mb, tree
from benchmarks.pace import RunOne, one_by_one

EXECUTIONS = 2_000
READY_SECONDS = 60
T = TypeVar("T")
# Runs this number of executions of five steps, and returns the seconds that they took together.
PeerForm = Callable[[int], Awaitable[float]]


async def retried(call: Callable[[], Awaitable[T]], *errors: type[Exception]) -> T:
    """The answer to a call that raises these errors as long as the server is not ready."""
    async with asyncio.timeout(READY_SECONDS):
        while True:
            try:
                return await call()
            except errors:
                await asyncio.sleep(0.1)


async def print_line(
    one: RunOne, fives: Mapping[str, PeerForm], fan: RunOne, *, pids: Sequence[int], trial_executions: int
) -> None:
    """W2 runs in the form that is the fastest in a short trial. The memory is that of the first pid, the server."""
    await one_by_one(one, 30)
    times = await one_by_one(one)
    line = {
        "W1": {"p50_ms": percentile(times, 0.5), "p95_ms": percentile(times, 0.95)},
        "W2": await _w2(fives, tree([*pids, os.getpid()]), trial_executions),
        "memory_pss_mb": pss_mb(pids[:1]),
        "W3": {"wall_s": (await one_by_one(fan, 1))[0] / 1e3},
    }
    print(json.dumps(line), flush=True)


async def _w2(forms: Mapping[str, PeerForm], pids: Sequence[int], trial_executions: int) -> dict[str, object]:
    trials = {}
    for name, form in forms.items():
        await form(trial_executions // 4)  # opens the connections
        trials[name] = await form(trial_executions)
    best = min(trials, key=lambda name: trials[name])
    before_s = cpu_seconds(pids)
    wall_s = await forms[best](EXECUTIONS)
    cpu_s = cpu_seconds(pids) - before_s
    steps = 5 * EXECUTIONS
    return {"form": best, "steps_per_s": steps / wall_s, "cpu_s_per_1000_steps": cpu_s * 1_000 / steps}
