"""Threads that their calls have abandoned are counted until they return."""

import asyncio
import threading

import pytest

from services.runner.app.module_threads import ModuleThreads


async def test_thread_that_returns_when_its_call_is_cancelled_frees_no_second_place() -> None:
    threads, counts = ModuleThreads(), list[int]()
    threads.on_return = lambda: counts.append(threads.abandoned)
    begun: asyncio.Future[threading.Thread] = asyncio.get_running_loop().create_future()
    may_return = threading.Event()

    def work() -> None:
        begun.get_loop().call_soon_threadsafe(begun.set_result, threading.current_thread())
        may_return.wait()

    call = asyncio.create_task(threads.call(work))
    thread = await begun
    may_return.set()
    thread.join()  # it calls the event loop, which is blocked here until after the cancellation
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0)
    assert threads.abandoned == 0
    assert min(counts, default=0) == 0
