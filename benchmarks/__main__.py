"""`make bench`: Windlass and its peers in interleaved rounds on this machine; one JSON line each, medians.

Every round starts a fresh stack of real processes (leases at full length, fsync on, tracing at its default sampling,
keys and validation on) and an equal PostgreSQL for the peer. Compare lines of one run only: the machine's speed varies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import cpu_seconds, median, percentile, pss_mb, tree
from benchmarks.workloads import Client, chain, fan, latency, w1, w2, w2b, w3
from deploy.local.postgres import PostgresServer
from tests.support.postgres import free_port, reachable_directory
from tests.support.stack import Stack, running_stack

ROOT = Path(__file__).resolve().parents[1]
PEER_ENVIRONMENT = ROOT / ".tools" / "peer-dbos"
STEPS = 10_000


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


async def dbos_round() -> dict[str, Any]:
    place = reachable_directory("windlass-bench-")
    server = PostgresServer(
        place / "data", port=free_port(), password_file=place / "password", log=place / "log"
    )
    await server.start()
    try:
        command = [str(PEER_ENVIRONMENT / "bin" / "python"), str(ROOT / "benchmarks/peers/dbos_peer.py")]
        url = server.url().replace("postgresql://", "postgresql+psycopg://")
        child = await asyncio.create_subprocess_exec(
            *command, url, str(server.pid), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        output, _ = await child.communicate()
    finally:
        await server.stop()
    line: dict[str, Any] = json.loads(output.splitlines()[-1])
    return line


def install_dbos() -> None:
    """The peer has an environment of its own, so that its pins are not ours."""
    if not (PEER_ENVIRONMENT / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEER_ENVIRONMENT)], check=True)
    pip = [str(PEER_ENVIRONMENT / "bin" / "pip"), "install", "-q", "-r", "requirements-dbos.txt"]
    subprocess.run(pip, check=True, cwd=ROOT / "benchmarks" / "peers")


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
    parser.add_argument("--peers", default="dbos", help="'dbos' or ''")
    given = parser.parse_args()
    if given.peers:
        install_dbos()
    ours, theirs = [], []
    for number in range(given.rounds):
        ours.append(await windlass_round(set(given.parts.split(","))))
        say(f"round {number + 1}: windlass {json.dumps(medians(ours[-1:]))}")
        if given.peers:
            theirs.append(await dbos_round())
            say(f"round {number + 1}: dbos {json.dumps(theirs[-1])}")
    for peer, rounds in (("windlass", ours), ("dbos", theirs)):
        if rounds:
            sys.stdout.write(json.dumps({"peer": peer, **medians(rounds), "cores": os.cpu_count()}) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
