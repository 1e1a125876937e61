"""The lifecycle of a process: its loops, its drain and its end.

All background work runs in one TaskGroup. When a loop raises, or returns although the process was not asked to stop,
the process ends with exit code 1 and its supervisor starts it again. A process that still answers although a part of it
has ended would be worse.

    wiring ──► running ──SIGTERM──► draining ──hooks done or time over──► closing ──► exit 0
                  └──a loop dies──────────────────────────────────────────► closing ──► exit 1

Drain hooks run one after another in the order of registration, with one time limit for all. Close hooks always run,
in reverse order. A second signal ends the process at once. A task that swallows its cancellation, or a thread that
hangs, cannot keep the process alive much longer than the drain and close limits together.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from services.chassis.telemetry.logs import logger

log = logger(__name__)

Loop = Callable[[], Awaitable[object]]
Hook = Callable[[], Awaitable[object]]
# Each with its name, by which the log speaks of it.
Loops = Sequence[tuple[str, Loop]]
Steps = Sequence[tuple[str, Hook]]
Wire = Callable[["Process"], Awaitable[object]]
_CLOSE_SECONDS: Final = 3.0
# Executors and exporters join their threads at exit without a time limit.
_LAST_RESORT_SECONDS: Final = 3.0


class LoopEnded(Exception):
    """A loop has returned although the process was not asked to stop."""


class Process:
    def __init__(self, name: str, *, drain_seconds: float = 10.0) -> None:
        self.name = name
        self.draining = asyncio.Event()
        self._drain_seconds = drain_seconds
        self._drain_hooks: list[tuple[str, Hook]] = []
        self._close_hooks: list[tuple[str, Hook]] = []
        self._loops: list[tuple[str, Loop]] = []
        self._group: asyncio.TaskGroup | None = None
        self._stop_asked = asyncio.Event()
        self._owns_interpreter = False

    def loop(self, name: str, run: Loop) -> None:
        """Run this loop until the process ends. It may be added before the start and at any time afterwards."""
        if self._group is None:
            self._loops.append((name, run))
        else:
            self._group.create_task(self._guarded(name, run), name=name)

    def on_drain(self, name: str, hook: Hook) -> None:
        self._drain_hooks.append((name, hook))

    def on_close(self, name: str, hook: Hook) -> None:
        self._close_hooks.append((name, hook))

    def stop(self) -> None:
        """End the process as SIGTERM does."""
        self._stop_asked.set()
        self._limit_the_end(self._drain_seconds)

    def main(self, wire: Wire, *, new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> int:
        """Run on a new event loop for `__main__`, handle signals, and return the exit code."""
        self._owns_interpreter = True

        async def run() -> int:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._signalled, number)
            return await self.run(wire)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            code = runner.run(run())
            _exit_after(_LAST_RESORT_SECONDS, code)
        return code

    async def run(self, wire: Wire) -> int:
        """Wire, run until asked to stop or until a loop dies, and close."""
        code = 0
        try:
            async with asyncio.TaskGroup() as group:
                life = group.create_task(self._live(wire, group), name="process")
                await life
                for task in list(group._tasks):
                    task.cancel()
        except* Exception as died:
            log.error("the process goes down", process=self.name, exc_info=died)
            code = 1
        finally:
            self._group = None
            if not await _attempt_all(self._close_hooks[::-1], _CLOSE_SECONDS):
                log.warning("the time for closing is over", process=self.name)
        log.info("ended", process=self.name, exit_code=code)
        return code

    async def _live(self, wire: Wire, group: asyncio.TaskGroup) -> None:
        if not await self._wired(wire):
            return
        self._group = group
        for name, run in self._loops:
            group.create_task(self._guarded(name, run), name=name)
        log.info("running", process=self.name)
        await self._stop_asked.wait()
        log.info("draining", process=self.name, seconds=self._drain_seconds)
        self.draining.set()
        if not await _attempt_all(self._drain_hooks, self._drain_seconds):
            log.warning("the time for draining is over", process=self.name)

    async def _wired(self, wire: Wire) -> bool:
        """Wire the process. Returns False when it was asked to stop before that was done."""
        wiring = asyncio.ensure_future(wire(self))
        stop = asyncio.ensure_future(self._stop_asked.wait())
        try:
            await asyncio.wait({wiring, stop}, return_when=asyncio.FIRST_COMPLETED)
            if wiring.done():
                await wiring
                return True
            return False
        finally:
            for task in (wiring, stop):
                task.cancel()
            await asyncio.gather(wiring, stop, return_exceptions=True)

    async def _guarded(self, name: str, run: Loop) -> None:
        try:
            await run()
            if not self.draining.is_set():
                raise LoopEnded(name)
        except asyncio.CancelledError:
            if is_being_cancelled() or self.draining.is_set():
                raise
            # The loop awaited something that was cancelled. A TaskGroup ignores CancelledError, so the loop would end
            # unnoticed.
            self._limit_the_end(0.0)
            raise LoopEnded(name) from None
        except Exception:
            self._limit_the_end(0.0)
            raise

    def _limit_the_end(self, drain_seconds: float) -> None:
        """Make sure that the process ends, even if a task swallows its cancellation or a hook blocks the event loop."""
        if self._owns_interpreter:
            _exit_after(drain_seconds + _CLOSE_SECONDS + _LAST_RESORT_SECONDS, 1)

    def _signalled(self, number: signal.Signals) -> None:
        if self._stop_asked.is_set():
            log.warning("second signal, ending at once", signal=number.name)
            os._exit(128 + number)
        self.stop()


async def _attempt_all(hooks: Steps, seconds: float) -> bool:
    """Run the hooks one after another. Returns False when the time was over before the last one ended."""
    try:
        async with asyncio.timeout(seconds):
            for name, hook in hooks:
                await _attempt(name, hook)
    except TimeoutError:
        return False
    return True


async def _attempt(name: str, hook: Hook) -> None:
    """Run one hook. When it fails, the others still run."""
    try:
        await hook()
    except Exception as failure:
        log.error("a hook failed", hook=name, exc_info=failure)


def is_being_cancelled() -> bool:
    """True: this task is being cancelled. False: only something that it awaits was."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _exit_after(seconds: float, code: int) -> None:
    def end() -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
