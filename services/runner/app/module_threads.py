"""Runs plain functions off the event loop, each in a thread of its own.

A thread cannot be stopped. One whose run timed out or was taken back goes on, and counts as `abandoned` until it
returns. The worker keeps one place free for each abandoned thread: a hung module costs its own place only, and there
are never more threads than places. A pool would fill up with such threads, and would keep the process from ending.

Hazard: the threads are daemons. They stop wherever they are when the process ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from services.runner.app.short_turns import take_short_turns


class ModuleThreads:
    """Counts abandoned threads. `on_return` is called on the event loop when one of them has returned."""

    def __init__(self) -> None:
        self.abandoned = 0
        self.on_return: Callable[[], None] = lambda: None

    async def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """Return or raise what the function does. A cancelled call abandons its thread."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def returned(value: Any, error: BaseException | None) -> None:
            if over.cancelled():
                # This runs later, because the cancelled call may not have counted its thread yet.
                loop.call_soon(self._came_back)
            else:
                over.set_result((value, error))

        def work() -> None:
            value, error = None, None
            try:
                value = function(*given)
            except BaseException as raised:  # noqa: BLE001 - a module may raise anything; the awaiting call raises it
                error = raised
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(returned, value, error)

        take_short_turns()
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(work,), name="module", daemon=True).start()
        try:
            value, error = await over
        except asyncio.CancelledError:
            if over.cancelled():  # if not, the function has just returned
                self.abandoned += 1
            raise
        if error is not None:
            raise error
        return value

    def _came_back(self) -> None:
        self.abandoned -= 1
        self.on_return()
