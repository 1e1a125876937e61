"""Plain functions off the event loop, each in a thread of its own.

A thread cannot be stopped. One whose run timed out or was taken back works on as it likes, and counts as `abandoned`
until it returns: whoever hands out places holds one back for it, so that a hung module costs no place but its own, and
there are never more threads than places. A pool would be wedged by them, and would keep the process from ending.

Hazard: the threads are daemons; at the end of the process they stop wherever they are.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class ModuleThreads:
    """Counts what it cannot end. `on_return` is told in the event loop that an abandoned one is back."""

    def __init__(self) -> None:
        self.abandoned = 0
        self.on_return: Callable[[], None] = lambda: None

    async def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """What the function returns or raises. Cancelled, it leaves the thread behind."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        is_back = is_abandoned = False

        def returned(value: Any, error: BaseException | None) -> None:
            nonlocal is_back
            is_back = True
            if is_abandoned:
                self._came_back()
            elif not over.done():
                over.set_result((value, error))

        def work() -> None:
            value, error = None, None
            try:
                value = function(*given)
            except BaseException as raised:  # noqa: BLE001 - a module may raise anything; it is told where it is awaited
                error = raised
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(returned, value, error)

        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(work,), name="module", daemon=True).start()
        try:
            value, error = await over
        except asyncio.CancelledError:
            if not is_back:
                is_abandoned = True
                self.abandoned += 1
            raise
        if error is not None:
            raise error
        return value

    def _came_back(self) -> None:
        self.abandoned -= 1
        self.on_return()
