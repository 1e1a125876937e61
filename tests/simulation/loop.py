"""An event loop whose time jumps to the next timer, shared by all simulated processes.

Every callback belongs to the process in whose context it was scheduled; tasks inherit the context. So a process can be
ended between any two of its steps (nothing of it runs any more), or stopped for a while (its callbacks wait, while its
timers and messages go on falling due).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 11, 3, 12, tzinfo=UTC)
_START_NS = int(START.timestamp()) * 1_000_000_000


# Steps at one moment. A loop that never waits would go on for ever.
_STEPS_MAX = 200_000


class NeverWaits(Exception):
    """Some task goes on and on, and no time passes."""


class Host:
    """What a callback belongs to: one life of a process, or the world around the processes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_stopped = False
        # True once it was stopped or cut off; it may have missed that its leases are gone.
        self.was_disturbed = False
        self.held_back: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []


NOWHERE = Host("world")
_host: ContextVar[Host] = ContextVar("host")


def present_host() -> Host:
    return _host.get(NOWHERE)


class _NumberedTask(asyncio.Task[Any]):
    """Sets of tasks have the same order in every run, because the hash of a task is no address."""

    def __init__(self, number: int, *given: Any, **more: Any) -> None:
        self._number = number
        super().__init__(*given, **more)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.AbstractEventLoop):
    """As much of an event loop as the simulated code needs. There are no sockets, threads or signals."""

    def __init__(self) -> None:
        self.world = Host("world")
        self.failures: list[dict[str, Any]] = []
        self.steps = 0
        self._now = 0.0
        self._order = itertools.count()
        self._ready: deque[tuple[Host, asyncio.Handle]] = deque()
        self._timers: list[tuple[float, int, Host, asyncio.Handle]] = []

    # ── what asyncio asks for ────────────────────────────────────────────────────────────────────────────────────

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override] # the stubs know no context
        self, coro: Coroutine[Any, Any, Any], *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = _NumberedTask(next(self._order), coro, loop=self, name=str(name) if name else "task", context=context)
        host = context[_host] if context is not None and _host in context else _host.get(self.world)
        host.tasks.append(task)
        return task

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = context or copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append((context.get(_host) or self.world, handle))
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = context or copy_context()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        # An endless sleep needs no timer.
        if when != float("inf"):
            heapq.heappush(self._timers, (when, next(self._order), context.get(_host) or self.world, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are passed over when their time comes."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context)

    # ── hosts ────────────────────────────────────────────────────────────────────────────────────────────────────

    def call_as(self, host: Host, delay: float, callback: Callable[..., object], *args: Any) -> None:
        """Call it as this host after a time."""
        self.call_later(delay, callback, *args, context=self._context_of(host))

    def spawn_as(self, host: Host, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.create_task(work, context=self._context_of(host))

    @staticmethod
    def _context_of(host: Host) -> Context:
        context = Context()
        context.run(_host.set, host)
        return context

    def end(self, host: Host) -> None:
        """Nothing of the host runs any more, not even what its tasks do at their end."""
        host.is_dead = True
        host.held_back.clear()

    def stop_host(self, host: Host) -> None:
        host.is_stopped = host.was_disturbed = True

    def go_on(self, host: Host) -> None:
        host.is_stopped = False
        self._ready.extend((host, handle) for handle in host.held_back)
        host.held_back.clear()

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────

    def run_until(self, is_done: Callable[[], bool], until: float) -> bool:
        """Run until it is done or the time has come. False: the time has come."""
        asyncio._set_running_loop(self)
        steps_before = self.steps
        try:
            while not is_done():
                if not self._ready:
                    if not self._next_timers(until):
                        self._now = max(self._now, until)
                        return False
                    steps_before = self.steps
                if self.steps > steps_before + _STEPS_MAX:
                    raise NeverWaits
                self._run_ready()
            return True
        finally:
            asyncio._set_running_loop(None)

    def _next_timers(self, until: float) -> bool:
        """Move the time to the next timers, and make them ready."""
        timers = self._timers
        while timers and timers[0][3].cancelled():
            heapq.heappop(timers)
        if not timers or timers[0][0] > until:
            return False
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            _, _, host, handle = heapq.heappop(timers)
            self._ready.append((host, handle))
        return True

    def _run_ready(self) -> None:
        ready = self._ready
        for _ in range(len(ready)):
            host, handle = ready.popleft()
            if host.is_dead or handle.cancelled():
                continue
            if host.is_stopped:
                host.held_back.append(handle)
                continue
            self.steps += 1
            handle._run()

    def dispose(self, hosts: list[Host]) -> None:
        """Forget all tasks without running them on."""
        for host in [self.world, *hosts]:
            host.is_dead = True
            for task in host.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined] # it is meant to be pending
                _close(task.get_coro())
            host.tasks.clear()
            host.held_back.clear()
        self._ready.clear()
        self._timers.clear()


def _close(coroutine: Any) -> None:
    try:
        coroutine.close()
    except BaseException:  # noqa: BLE001 - what belongs to a world that is over may fail in any way
        return


def _complete(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


class VirtualClock:
    """The clock of the processes: that of the loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> datetime:
        return START + timedelta(seconds=self._loop.time())

    def epoch_ns(self) -> int:
        return _START_NS + round(self._loop.time() * 1e6) * 1_000

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        over = self._loop.create_future()
        self._loop.call_later(seconds, _complete, over)
        await over
