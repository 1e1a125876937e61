"""Restate on the same workloads: `workloads.py INGRESS ADMIN SERVICE0 SERVICE1 SERVER_PID SERVICE0_PID SERVICE1_PID`
prints one JSON line.

Each execution is one request to the ingress, which answers with its result. The requests are made with aiohttp, because
the SDK's client uses httpx, which costs more CPU than the server and the service together.
The fastest number of service copies and of requests in flight depends on the machine, so W2 tries its forms on a short
piece of work first, and only the fastest is measured.
"""

import asyncio
import sys
from functools import partial
from itertools import cycle

import aiohttp

from benchmarks.pace import many_at_once
from benchmarks.peers.client import print_line, retried

INGRESS, ADMIN, *SERVICES = sys.argv[1:5]
PIDS = [int(pid) for pid in sys.argv[5:]]
TRIAL_EXECUTIONS = 500


class RestateClient:
    """Connections to the ingress, one per call in flight."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def register(self) -> None:
        """Register the services at the server. Raises ClientError while one of them is not up."""
        async with self._session.get(f"{INGRESS}/restate/health", raise_for_status=True):
            pass
        for service in SERVICES:
            async with self._session.post(f"{ADMIN}/deployments", json={"uri": service}, raise_for_status=True):
                pass

    async def run(self, handler: str, copy: int = 0) -> None:
        """Start an execution and wait for its result in the same call."""
        # The handlers take no input, and the ingress then refuses a content type.
        call = self._session.post(f"{INGRESS}/bench{copy}/{handler}", skip_auto_headers=("Content-Type",))
        async with call as answer:
            body = await answer.text()
            if not answer.ok:
                raise RuntimeError(f"{handler}: {answer.status} {body}")


async def fives(client: RestateClient, copies: int, in_flight: int, count: int) -> float:
    """Seconds for all executions, which are spread evenly over the copies of the service."""
    copy = cycle(range(copies))
    return await many_at_once(lambda: client.run("five", next(copy)), count, in_flight)


async def main() -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        client = RestateClient(session)
        await retried(client.register, aiohttp.ClientError)
        forms = {
            f"service processes: {copies}, in flight: {in_flight}": partial(fives, client, copies, in_flight)
            for copies in (1, 2)
            for in_flight in (64, 256, 1_024)
        }
        one, fan_out = partial(client.run, "one"), partial(client.run, "fan_out")
        await print_line(one, forms, fan_out, pids=PIDS, trial_executions=TRIAL_EXECUTIONS)


asyncio.run(main())
