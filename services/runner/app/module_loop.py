"""Runs async modules on an event loop of their own, in a thread of its own.

A module that computes or blocks between two awaits has this loop for itself until it is done. It holds up other async
modules, and nothing else: the session beats, short modules and plain functions go on, and the leases live. `Worker`
asks again and again whether the loop answers. While it does not, the worker says so and lets nothing new begin there.

A call is in one of three states: it waits to begin, its function has begun, or it is over. Both threads agree on the
first step by the call's `Future`: either the loop of the modules has begun the function, or the worker has taken the
call back and it never begins.

Hazards: the function runs in another thread than its caller, so the two share only plain values. A function that is
being cancelled is awaited, also when it blocks. Code in C that keeps the interpreter's lock (a regular expression that
backtracks without end) holds up the whole process all the same.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from services.chassis.telemetry.logs import logger
from services.runner.app.short_turns import take_short_turns

log = logger(__name__)

# A loop that has not answered for this long is stalled. A module that computes a little between awaits does no harm.
STALLED_SECONDS: Final = 1.0
# The interval in which the loop is asked. When more time has passed, the whole process may have stood still, and no
# more counts.
LOOK_SECONDS: Final = 0.5
_JOIN_SECONDS: Final = 1.0

_Ending = tuple[Any, BaseException | None]


class LoopStalled(Exception):
    """The loop is stalled, and the call has not begun and never will."""


class LoopBlocker(NamedTuple):
    """What the loop is doing: the name of its task, and the place in the code."""

    task: str
    place: str


class ModuleLoop:
    """All methods belong to the event loop of the worker. The thread starts with the first call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._serve, name="module loop", daemon=True)
        self._is_closed = False
        # Calls that are not over.
        self._calls: set[Future[_Ending]] = set()
        self._has_answered = True
        self._silent_seconds = 0.0
        self._looked_at = 0.0

    async def call(self, name: str, function: Callable[..., Awaitable[Any]], *given: Any) -> Any:
        """Return or raise what the function does, in a task of this name. A cancellation is handed on to the function,
        and what the function makes of it is the outcome. Raises LoopStalled if the call was sent away."""
        loop = self._started()
        call: Future[_Ending] = Future()
        tasks: list[asyncio.Task[_Ending]] = []

        def begin() -> None:
            if call.set_running_or_notify_cancel():
                tasks.append(loop.create_task(_ending_of(function, given), name=name))
                tasks[0].add_done_callback(lambda task: call.set_result(_result_of(task)))

        def cancel() -> None:
            # Sent after `begin`, so the task is there.
            tasks[0].cancel()

        over = asyncio.wrap_future(call)
        self._calls.add(call)
        loop.call_soon_threadsafe(begin)
        try:
            while not over.done():
                try:
                    await asyncio.wait([over])
                except asyncio.CancelledError:
                    if call.cancel() or self._is_closed:
                        raise
                    loop.call_soon_threadsafe(cancel)
        finally:
            self._calls.discard(call)
        if over.cancelled():
            raise LoopStalled
        value, error = over.result()
        if error is not None:
            raise error
        return value

    def stalled_seconds(self, now: float) -> float:
        """For how long the loop has not answered; 0 unless it is stalled. Call this every LOOK_SECONDS."""
        passed, self._looked_at = min(now - self._looked_at, LOOK_SECONDS), now
        if self._loop is None or self._is_closed:
            return 0.0
        if self._has_answered:
            self._has_answered, self._silent_seconds = False, 0.0
            self._loop.call_soon_threadsafe(self._answer)
        else:
            self._silent_seconds += passed
        return self._silent_seconds if self._silent_seconds >= STALLED_SECONDS else 0.0

    def blocker(self) -> LoopBlocker:
        """What the loop is doing now."""
        task = None if self._loop is None else asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._thread.ident or 0)
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
        return LoopBlocker("" if task is None else task.get_name(), place)

    def send_away(self) -> None:
        """Take back the calls that have not begun. They raise LoopStalled."""
        for call in self._calls:
            call.cancel()

    def close(self) -> None:
        """Cancel what is going and end the thread, as soon as the loop answers. A call that is cancelled from now on
        waits for nothing."""
        if self._loop is not None and not self._is_closed:
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)

    def join(self) -> None:
        """Wait a moment for the thread to end."""
        if self._loop is not None:
            self._thread.join(_JOIN_SECONDS)

    def _answer(self) -> None:
        self._has_answered = True

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.set_task_factory(_task_of_run)
            take_short_turns()
            self._thread.start()
        return self._loop

    def _serve(self) -> None:
        loop = self._loop
        assert loop is not None
        # At its end, `asyncio.Runner` cancels what is going and closes the loop.
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.get_loop()
            while not self._is_closed:
                try:
                    loop.run_forever()
                except BaseException as raised:
                    # A task that a module has made raised SystemExit. The loop can go on.
                    log.error("a task of a module has tried to end the process", exc_info=raised)


async def _ending_of(function: Callable[..., Awaitable[Any]], given: tuple[Any, ...]) -> _Ending:
    """What the function returns or raises. A task that raises SystemExit would end its loop."""
    try:
        return await function(*given), None
    except BaseException as raised:  # noqa: BLE001 - a module may raise anything; the awaiting call raises it
        return None, raised


def _result_of(task: asyncio.Task[_Ending]) -> _Ending:
    # A task that is cancelled before its first step has no result.
    return (None, asyncio.CancelledError()) if task.cancelled() else task.result()


def _task_of_run(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any] | Generator[Any, None, Any], /, **more: Any
) -> asyncio.Task[Any]:
    """A task that a module makes has the name of its run, unless the module names it."""
    parent = asyncio.current_task(loop)
    if parent is not None:
        more["name"] = more.get("name") or parent.get_name()
    return asyncio.Task(work, loop=loop, **more)
