"""Waiting for a child that renders costs no attempt, holds no place for long, and can be given up."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from services.rendering.children import RenderingChildren
from services.rendering.cpu_budget import BURST_SECONDS, CpuBudgets
from services.runner.app.worker import RENDERING_SECONDS_MAX
from services.runner.core.job import Job, Released, Stopped, Succeeded
from tests.support.probe import until
from tests.support.runner_bench import Bench, a_job
from windlass.sdk import Context

CONCURRENCY = 3
# Of a run.
TIMEOUT_SECONDS = 0.5


class Slow:
    """A template of the same workspace, which takes until a test lets it go."""

    def __init__(self, bench: Bench, workspace: str = "default") -> None:
        self._gate, self._begun = threading.Event(), threading.Event()
        self._line, self._workspace = bench.rendering.queue, workspace
        self._call = asyncio.create_task(self._line.call(workspace, 0.0, self._work))

    def _work(self) -> str:
        self._begun.set()
        self._gate.wait()
        return "done"

    async def begin(self) -> None:
        await asyncio.to_thread(self._begun.wait)

    async def end(self) -> str:
        """Returns when every call that waited is done, too."""
        self._gate.set()
        await self._line.call(self._workspace, 0.0, lambda: None)
        done: str = await self._call
        return done


@pytest_asyncio.fixture(loop_scope="session")
async def bench(tmp_path: Any) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, concurrency=CONCURRENCY)

    async def doubles(_ctx: Context, inputs: Any, _config: Any) -> Any:
        return inputs

    made.registry.declare("test.doubles@1")(doubles)
    yield made
    await asyncio.to_thread(made.close)


@pytest_asyncio.fixture(loop_scope="session")
async def slow(bench: Bench) -> Slow:
    made = Slow(bench)
    await made.begin()
    return made


def computing(module: str) -> Job:
    if module == "condition@1":
        return a_job(module, config={"expression": "input.id * 2 > 13"})
    return a_job(module, inputs={"a": "{{ input.id * 2 }}"}, has_templates=True, timeout_seconds=TIMEOUT_SECONDS)


async def in_line(bench: Bench, job: Job) -> None:
    bench.worker.take([job])
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.worker.going == 1
    assert bench.desk.ended == []


@pytest.mark.parametrize("module", ["transform@1", "condition@1", "test.doubles@1"])
async def test_a_run_that_waits_long_for_the_child_is_handed_back_unbegun(
    bench: Bench, slow: Slow, module: str
) -> None:
    await in_line(bench, computing(module))
    bench.clock.advance(RENDERING_SECONDS_MAX)
    bench.worker.tend()
    bench.clock.advance(0.5)
    bench.worker.tend()
    assert [each.outcome for each in await bench.desk.until(1)] == [Released("RENDERER_BUSY", False)]
    assert await slow.end() == "done"
    assert bench.rendering.children.pids == [], "it was rendered all the same"
    assert bench.worker.going == 0


@pytest.mark.parametrize(
    ("module", "output"),
    [("transform@1", b'{"a":14}'), ("condition@1", b'{"result":true}'), ("test.doubles@1", b'{"a":14}')],
)
async def test_a_run_that_waits_for_the_child_a_little_has_all_its_time_afterwards(
    bench: Bench, slow: Slow, module: str, output: bytes
) -> None:
    loop = asyncio.get_running_loop()
    timed_out = loop.time() + TIMEOUT_SECONDS
    await in_line(bench, computing(module))
    bench.clock.advance(RENDERING_SECONDS_MAX)
    bench.worker.tend()
    await until(lambda: loop.time() > timed_out, 10, "more time than the run has")
    await slow.end()
    (ended,) = await bench.desk.until(1)
    assert isinstance(ended.outcome, Succeeded)
    assert ended.outcome.output == output


@pytest.mark.parametrize("module", ["transform@1", "condition@1", "test.doubles@1"])
async def test_a_run_that_is_stopped_leaves_the_line(bench: Bench, slow: Slow, module: str) -> None:
    await in_line(bench, computing(module))
    bench.worker.stop(["e.1"])
    assert [each.outcome for each in await bench.desk.until(1)] == [Stopped()]
    bench.worker.tend()
    assert bench.desk.capacity == CONCURRENCY, "a place is held for it"
    await slow.end()
    assert bench.rendering.children.pids == [], "it was rendered all the same"


@pytest.mark.parametrize("module", ["transform@1", "condition@1", "test.doubles@1", "test.evaluates@1"])
async def test_slow_templates_of_one_workspace_hold_up_no_other(bench: Bench, slow: Slow, module: str) -> None:
    """One of them is rendered, and sixty wait."""

    def evaluates(ctx: Context, _inputs: Any, _config: Any) -> Any:
        return ctx.evaluate("input.id * 2")

    bench.registry.declare("test.evaluates@1")(evaluates)
    waiting = [asyncio.create_task(bench.rendering.queue.call("default", 0.0, lambda: None)) for _ in range(60)]
    await asyncio.sleep(0)
    bench.worker.take([replace(computing(module), workspace="quiet", timeout_seconds=0.0)])
    (ended,) = await bench.desk.until(1)
    assert isinstance(ended.outcome, Succeeded)
    assert not any(each.done() for each in waiting)
    await slow.end()
    await asyncio.gather(*waiting)


async def test_workspaces_take_turns(bench: Bench) -> None:
    slows = [Slow(bench, "flood"), Slow(bench, "other")]
    for each in slows:
        await each.begin()
    served: list[str] = []
    calls = [
        asyncio.create_task(bench.rendering.queue.call(name, 0.0, partial(served.append, name)))
        for name in ["flood"] * 3 + ["a", "b"]
    ]
    await asyncio.sleep(0)
    await slows[1].end()
    await asyncio.gather(*calls[3:])
    assert served == ["a", "b"], "flood has a child"
    await slows[0].end()
    await asyncio.gather(*calls)


def test_a_workspace_that_has_used_up_its_cpu_time_waits() -> None:
    now, budgets = [0.0], CpuBudgets()
    budgets.spend("greedy", BURST_SECONDS + 2.0, 0.0)
    children = RenderingChildren(1, budgets, lambda: now[0])
    try:
        waits, served = children.submit("greedy", lambda: "late"), children.submit("quiet", lambda: "at once")
        assert served.result(10) == "at once"
        assert not waits.done()
        now[0] += 4.0
        children.submit("quiet", lambda: None).result(10)
        assert waits.result(10) == "late"
    finally:
        children.close()


def test_the_cpu_time_of_a_child_is_charged_to_the_workspace() -> None:
    now, budgets = [0.0], CpuBudgets()
    children = RenderingChildren(1, budgets, lambda: now[0])
    try:
        while not budgets.wait("greedy", 0.0):
            budgets.spend("greedy", BURST_SECONDS / 2, 0.0)
        before = budgets.wait("greedy", 0.0)
        now[0] += before
        assert children.of("greedy").evaluate("1 + 1", {}) == 2
        assert children.submit("other", lambda: None).result(10) is None
        assert budgets.wait("greedy", now[0]) > 0.0
    finally:
        children.close()


async def test_short_work_is_rendered_and_done_in_one_thread(bench: Bench) -> None:
    names: list[str] = []

    def notes(_ctx: Context, inputs: Any, _config: Any) -> Any:
        names.append(threading.current_thread().name)
        return inputs

    bench.registry.declare("test.notes@1", inline=True)(notes)
    for number in (1, 2):
        job = a_job("test.notes@1", number, inputs={"a": "{{ input.id * 2 }}"}, has_templates=True)
        assert await bench.outcome(job) == Succeeded(b'{"a":14}')
    assert {name.split("_")[0] for name in names} == {"rendering"}
    await until(lambda: bench.worker.going == 0, 10, "the runs to be over")


async def test_run_that_is_in_line_at_the_end_of_a_drain_has_not_begun(bench: Bench, slow: Slow) -> None:
    await in_line(bench, computing("test.doubles@1"))
    bench.worker.drain()
    bench.worker.hand_back_going()
    assert [each.outcome for each in bench.desk.ended] == [Released("DRAINING", may_have_begun=False)]
    await slow.end()
