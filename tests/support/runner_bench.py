"""A bench for a runner's worker: a session that keeps its reports, and jobs for it."""

import asyncio
import threading
from ipaddress import ip_network
from typing import Any

import orjson

from services.rendering import Rendering
from services.runner.app.modules import built_in
from services.runner.app.worker import Worker
from services.runner.core.egress import Egress
from services.runner.core.failures import Failure, FailureClass
from services.runner.core.job import Ended, Job, RunLease
from services.runner.store.outputs import DirectoryOutputs
from tests.support.manual_clock import ManualClock
from windlass.sdk import Registry

# A run that is not reported by then will never be.
HANGS_SECONDS = 60
# The servers of a test are on loopback.
TO_THIS_MACHINE = Egress((ip_network("127.0.0.0/8"), ip_network("::1/128")))
# By the clock of the bench.
STALLED_SECONDS_MAX = 60.0


class Signal:
    """An event for a test and its async modules, which run on different event loops."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.set, self.clear, self.is_set = self._event.set, self._event.clear, self._event.is_set

    async def wait(self) -> None:
        assert await asyncio.to_thread(self._event.wait, HANGS_SECONDS), "it was never set"


class Desk:
    """Takes the place of the session: it keeps the reports, and says whether work may begin."""

    def __init__(self) -> None:
        self.is_fenced = False
        # Work waits for a place.
        self.is_demanded = False
        self.capacity = 0
        self.ended: list[Ended] = []
        self.news = asyncio.Event()

    def may_start(self) -> bool:
        return not self.is_fenced

    def has_demand(self) -> bool:
        return self.is_demanded

    def set_capacity(self, capacity: int) -> None:
        self.capacity = capacity

    def report(self, ended: Ended) -> None:
        self.ended.append(ended)
        self.news.set()

    async def until(self, count: int) -> list[Ended]:
        async with asyncio.timeout(HANGS_SECONDS):
            while len(self.ended) < count:
                self.news.clear()
                await self.news.wait()
        return self.ended


class Bench:
    """A worker with the built-in modules and some modules of the test."""

    def __init__(
        self, directory: Any, concurrency: int = 10, desk: Desk | None = None, egress: Egress = TO_THIS_MACHINE
    ) -> None:
        self.desk = desk or Desk()
        self.clock = ManualClock()
        self.registry = Registry()
        self.rendering = Rendering()
        for module in built_in(egress, self.rendering):
            self.registry.add(module)
        self.outputs = DirectoryOutputs(directory)
        self.worker = Worker(
            self.registry, self.rendering, self.outputs, self.desk, self.clock, concurrency, STALLED_SECONDS_MAX
        )

    def close(self) -> None:
        """End the child that renders and the loop of the modules, if they were needed."""
        self.rendering.close()
        self.worker.close()

    async def outcome(self, job: Job) -> Any:
        """The outcome in the next report."""
        before = len(self.desk.ended)
        self.worker.take([job])
        return (await self.desk.until(before + 1))[-1].outcome

    async def failure(self, job: Job) -> tuple[FailureClass, str]:
        """The class and the type of the error in the next report, which tells of a failure."""
        outcome = await self.outcome(job)
        assert isinstance(outcome, Failure), outcome
        return outcome.failure_class, outcome.type


# A UUIDv7 of August 2026.
EXECUTION_ID = "019fcef6-0c00-7000-8000-000000000000"
INPUT = b'{"id": 7}'
RUN_LEASE = RunLease(f"{EXECUTION_ID}.1", 2, "default")


def a_job(module: str = "noop@1", number: int = 1, **given: Any) -> Job:
    values: dict[str, Any] = {
        "run_id": f"e.{number}",
        "epoch": 2,
        "execution_id": EXECUTION_ID,
        "workspace": "default",
        "workflow": "w",
        "node": "n",
        "module": module,
        "attempt": 1,
        "config": b"{}",
        "inputs": b"{}",
        "has_templates": False,
        "execution_input": INPUT,
        "state": b"{}",
        "outputs": {},
        "timeout_seconds": 0.0,
        "effect_key": "key",
        "may_have_run_before": False,
        "is_render_only": False,
        "traceparent": "",
        "cursor": b"",
    }
    return Job(
        **(values | {k: orjson.dumps(v) if isinstance(v, dict) and k != "outputs" else v for k, v in given.items()})
    )
