"""`make bench`: Windlass and its peers in interleaved rounds on this machine; one JSON line each, medians.

Every round starts a fresh stack of real processes (leases at full length, fsync on, tracing at its default sampling,
keys and validation on), and each peer on data of its own. Compare lines of one run only: the machine's speed varies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from benchmarks.measure import cpu_seconds, median, percentile, pss_mb, tree
from benchmarks.peers import Peer, dbos, restate
from benchmarks.workloads import Client, chain, fan, latency, w1, w2, w2b, w3
from tests.support.stack import Stack, running_stack

PEERS: dict[str, Peer] = {"dbos": dbos, "restate": restate}
STEPS = 10_000
Round = Callable[[], Awaitable[dict[str, Any]]]


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


async def windlass_round(parts: set[str]) -> dict[str, Any]:
    async with running_stack(lease_scale=1.0) as stack:
        address = stack.entries("api")[0]["grpc"]
        client = Client.of_home(stack.home.root, address)
        try:
            for definition in (chain("bench-one", 1), chain("bench-five", 5), fan("bench-fan", 1_000)):
                await client.apply(definition)
            await w1(client, 30)
            return await _workloads(client, stack, parts)
        finally:
            await client.close()


async def _workloads(client: Client, stack: Stack, parts: set[str]) -> dict[str, Any]:
    pids = tree([stack.process.pid, os.getpid()])
    found: dict[str, Any] = {}

    async def counted(work: Callable[[Client], Any]) -> dict[str, float]:
        before = cpu_seconds(pids)
        wall_s = await work(client)
        cpu_s = cpu_seconds(pids) - before
        return {"steps_per_s": STEPS / wall_s, "cpu_s_per_1000_steps": cpu_s * 1_000 / STEPS}

    if "W1" in parts:
        times = await w1(client)
        found["W1"] = {"p50_ms": percentile(times, 0.5), "p95_ms": percentile(times, 0.95)}
    if "W2" in parts:
        found["W2"] = await counted(w2)
        services = [entry["pid"] for entry in stack.up()["processes"]]
        found["memory_pss_mb"] = pss_mb(services)
    if "W2b" in parts:
        found["W2b"] = await counted(w2b)
    if "W3" in parts:
        found["W3"] = {"wall_s": await w3(client)}
    if "L" in parts:
        found["L"] = await latency(client, 50)
        found["L500"] = await latency(client, 500)
    return found


def installed(names: list[str]) -> dict[str, Peer]:
    """Those that can be had on this machine; of the others a word on stderr."""
    found = {}
    for name in names:
        try:
            PEERS[name].install()
        except (OSError, subprocess.CalledProcessError) as error:
            say(f"{name} is left out, as it cannot be installed: {error}")
        else:
            found[name] = PEERS[name]
    return found


def medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Number by number, over rounds of one shape."""
    joined: dict[str, Any] = {}
    for key, first in rounds[0].items():
        values = [entry[key] for entry in rounds]
        if isinstance(first, dict):
            joined[key] = medians(values)
        elif isinstance(first, str):
            joined[key] = first
        else:
            joined[key] = round(median(values), 3)
    return joined


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", default="W1,W2,W2b,W3,L")
    parser.add_argument("--peers", default=",".join(PEERS), help="'' leaves all out; default: %(default)s")
    given = parser.parse_args()
    names = [name for name in given.peers.split(",") if name]
    if unknown := set(names) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    rounds_of: dict[str, Round] = {"windlass": partial(windlass_round, set(given.parts.split(",")))}
    rounds_of |= {name: peer.run_round for name, peer in installed(names).items()}
    lines: dict[str, list[dict[str, Any]]] = {name: [] for name in rounds_of}
    for number in range(given.rounds):
        for name, run_round in rounds_of.items():
            lines[name].append(await run_round())
            say(f"round {number + 1}: {name} {json.dumps(medians(lines[name][-1:]))}")
    for name, rounds in lines.items():
        sys.stdout.write(json.dumps({"peer": name, **medians(rounds), "cores": os.cpu_count()}) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
