"""What is not worth a frame or a commit of its own waits a moment for one that happens anyway.

A frame costs both processes a wake-up, which on an idle system is most of what an execution costs. Nobody waits for
the acknowledgement of a report, for the count of taken grants or for a slot while the queue is empty, and nearly always
something follows at once that takes them along. Whatever somebody does wait for never comes here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

COMPANY_SECONDS: Final = 0.02


class Company:
    """Calls `over` once, a moment after the first `wanted` since the last call."""

    __slots__ = ("_is_waiting", "_over")

    def __init__(self, over: Callable[[], None]) -> None:
        self._over = over
        self._is_waiting = False

    def wanted(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            asyncio.get_running_loop().call_later(COMPANY_SECONDS, self._end)

    def _end(self) -> None:
        self._is_waiting = False
        self._over()
