"""Async modules have an event loop of their own, and one that blocks it harms the others as little as can be."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from services.runner.app.module_loop import LoopStalled, ModuleLoop
from tests.support.probe import until
from tests.support.runner_bench import HANGS_SECONDS, Signal


@pytest.fixture
def modules() -> Iterator[ModuleLoop]:
    made = ModuleLoop()
    yield made
    made.close()
    made.join()


class Block:
    """Holds the loop of the modules until the test ends it."""

    def __init__(self, modules: ModuleLoop) -> None:
        self._modules = modules
        self._begun = Signal()
        self._gate = threading.Event()

    async def begin(self, name: str = "run e.1") -> asyncio.Task[Any]:
        task = asyncio.create_task(self._modules.call(name, self._block))
        await self._begun.wait()
        return task

    async def _block(self) -> str:
        self._begun.set()
        assert self._gate.wait(HANGS_SECONDS)
        return "done"

    def end(self) -> None:
        self._gate.set()


@pytest.fixture
def block(modules: ModuleLoop) -> Iterator[Block]:
    made = Block(modules)
    yield made
    made.end()


async def one() -> int:
    return 1


async def test_a_function_runs_in_another_thread_than_its_caller(modules: ModuleLoop) -> None:
    async def thread() -> threading.Thread:
        return threading.current_thread()

    assert await modules.call("run e.1", thread) is not threading.current_thread()


async def test_a_loop_that_does_not_answer_is_stalled_until_it_does(modules: ModuleLoop, block: Block) -> None:
    assert modules.stalled_seconds(9.5) == 0, "a loop that nobody has used is well"
    blocked = await block.begin()
    assert [modules.stalled_seconds(now) for now in (10.0, 10.5, 11.0, 11.5)] == [0, 0, 1.0, 1.5]
    blocker = modules.blocker()
    assert (blocker.task, "threading.py" in blocker.place) == ("run e.1", True)
    block.end()
    assert await blocked == "done"
    await until(lambda: modules.stalled_seconds(11.5) == 0, HANGS_SECONDS, "an answer")
    assert modules.blocker().task == ""


async def test_the_time_in_which_nobody_asked_makes_no_stall(modules: ModuleLoop, block: Block) -> None:
    await block.begin()
    modules.stalled_seconds(10.0)
    assert modules.stalled_seconds(100.0) == 0, "the whole process may have been stopped"


async def test_a_call_that_has_not_begun_in_a_stalled_loop_can_be_sent_away(modules: ModuleLoop, block: Block) -> None:
    begun: list[int] = []

    async def begin() -> None:
        begun.append(1)

    blocked = await block.begin()
    waits = asyncio.create_task(modules.call("run e.2", begin))
    await asyncio.sleep(0)
    modules.send_away()
    with pytest.raises(LoopStalled):
        await waits
    block.end()
    assert await blocked == "done", "what has begun is not sent away"
    assert await modules.call("run e.3", one) == 1
    assert begun == []


async def test_a_call_that_is_cancelled_before_it_begins_does_not_wait_for_the_loop(
    modules: ModuleLoop, block: Block
) -> None:
    await block.begin()
    waits = asyncio.create_task(modules.call("run e.2", one))
    await asyncio.sleep(0)
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits


async def test_a_call_that_is_cancelled_is_over_when_its_function_is(modules: ModuleLoop) -> None:
    begun, may_end = Signal(), Signal()
    ended: list[str] = []

    async def cleans_up() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            ended.append("cleaned up")

    call = asyncio.create_task(modules.call("run e.1", cleans_up))
    await begun.wait()
    call.cancel()
    assert await modules.call("run e.2", one) == 1
    assert not call.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended == ["cleaned up"]


async def test_a_task_of_a_module_has_the_name_of_its_run(modules: ModuleLoop) -> None:
    async def name() -> str:
        task = asyncio.current_task()
        assert task is not None
        return task.get_name()

    async def names() -> list[str]:
        return list(await asyncio.gather(name(), asyncio.create_task(name(), name="own")))

    assert await modules.call("run e.1", names) == ["run e.1", "own"]


async def test_a_task_of_a_module_that_tries_to_end_the_process_ends_no_other(modules: ModuleLoop) -> None:
    async def exits() -> None:
        raise SystemExit(3)

    async def makes() -> None:
        await asyncio.create_task(exits())

    with pytest.raises(SystemExit):
        await modules.call("run e.1", makes)
    assert await modules.call("run e.2", one) == 1


async def test_what_is_going_is_cancelled_when_the_loop_is_closed(modules: ModuleLoop) -> None:
    begun = Signal()

    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    call = asyncio.create_task(modules.call("run e.1", waits))
    await begun.wait()
    modules.close()
    with pytest.raises(asyncio.CancelledError):
        await call
