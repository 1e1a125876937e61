"""Restate on the same workloads: `workloads.py INGRESS ADMIN SERVICE SERVER_PID SERVICE_PID` prints one JSON line.

Each execution is one request to the ingress, which answers with its result. The requests are made with aiohttp: the
client of the SDK stands on httpx, which costs more CPU than the server and the service together.
"""

import asyncio
import json
import os
import sys
import time

import aiohttp

from benchmarks.measure import cpu_seconds, percentile, pss_mb, tree
from benchmarks.pace import many_at_once, one_by_one

INGRESS, ADMIN, SERVICE = sys.argv[1:4]
SERVER_PID, SERVICE_PID = int(sys.argv[4]), int(sys.argv[5])
READY_SECONDS = 60


class Client:
    """Connections to the ingress, one per call in flight."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def register(self) -> None:
        """Tell the server of the service, as soon as both are up."""
        async with asyncio.timeout(READY_SECONDS):
            while True:
                if await self._accepted():
                    return
                await asyncio.sleep(0.1)

    async def _accepted(self) -> bool:
        try:
            async with self._session.get(f"{INGRESS}/restate/health") as answer:
                if not answer.ok:
                    return False
            async with self._session.post(f"{ADMIN}/deployments", json={"uri": SERVICE}) as answer:
                return answer.ok
        except aiohttp.ClientError:
            return False

    async def run(self, handler: str) -> None:
        """Start and wait in the call for the result."""
        # The handlers take nothing, and the ingress refuses a type for it.
        call = self._session.post(f"{INGRESS}/bench/{handler}", skip_auto_headers=("Content-Type",))
        async with call as answer:
            body = await answer.text()
            if not answer.ok:
                raise RuntimeError(f"{handler}: {answer.status} {body}")


async def w3(client: Client) -> float:
    """Seconds."""
    begun = time.perf_counter()
    await client.run("fan_out")
    return time.perf_counter() - begun


def cpu_s() -> float:
    """Of everything: server, service, client."""
    return cpu_seconds(tree([SERVER_PID, SERVICE_PID, os.getpid()]))


async def main() -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        client = Client(session)
        await client.register()
        await one_by_one(lambda: client.run("one"), 30)
        w1_ms = await one_by_one(lambda: client.run("one"))
        cpu_before_s = cpu_s()
        w2_s = await many_at_once(lambda: client.run("five"))
        cpu_w2_s = cpu_s() - cpu_before_s
        memory_mb = pss_mb([SERVER_PID])
        w3_s = await w3(client)
    line = {
        "peer": "restate",
        "W1": {"p50_ms": round(percentile(w1_ms, 0.5), 2), "p95_ms": round(percentile(w1_ms, 0.95), 2)},
        "W2": {"steps_per_s": round(10_000 / w2_s), "cpu_s_per_1000_steps": round(cpu_w2_s / 10, 3)},
        "memory_pss_mb": round(memory_mb, 1),
        "W3": {"wall_s": round(w3_s, 3)},
    }
    print(json.dumps(line), flush=True)


asyncio.run(main())
