"""Ends calls that may last for long when the key that opened them is no longer valid.

The guard identifies a caller once, when the call arrives. A watch or a waiting start may then go on for hours, so the
key of each is checked again every CHECK_SECONDS. While the keys cannot be read, no call is ended. A caller with a
certificate or a service credential has no key, and is not checked.

A call is registered once its request has been read, because a pending read must not be cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.identity.callers import KeyReader
from services.chassis.telemetry.logs import logger

log = logger(__name__)

CHECK_SECONDS: Final = 2.0
_AT_ONCE: Final = 50


class LongCalls:
    def __init__(self) -> None:
        # The calls of each key, with the refusal that ends them.
        self._calls: dict[str, dict[asyncio.Task[Any], Refusal | None]] = {}

    async def run(self, key: str, handler: Coroutine[Any, Any, Any]) -> Any:
        """The handler's result. Raises the Refusal of the key once it is no longer valid."""
        task = asyncio.current_task()
        assert task is not None
        calls = self._calls.setdefault(key, {})
        calls[task] = None
        try:
            return await handler
        except asyncio.CancelledError:
            refusal = calls[task]
            if refusal is None:
                raise
            task.uncancel()
            try:
                # Each call raises it without the frames of the others.
                raise refusal.with_traceback(None) from None
            finally:
                # It holds this frame, which must not hold it in turn (aborting.py).
                del refusal
        finally:
            del calls[task]
            if not calls:
                self._calls.pop(key, None)

    async def check_keys(self, keys: KeyReader) -> None:
        """Run for ever."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            present = list(self._calls)
            for start in range(0, len(present), _AT_ONCE):
                await asyncio.gather(*(self._check(keys, key) for key in present[start : start + _AT_ONCE]))

    async def _check(self, keys: KeyReader, key: str) -> None:
        try:
            await keys.identify(key)
        except DependencyUnavailable as failure:
            log.warning("the keys of open calls cannot be checked", error=str(failure))
        except Refusal as refusal:
            calls = self._calls.get(key, {})
            log.info("calls end with their key", reason=refusal.reason, calls=len(calls))
            for task in calls:
                calls[task] = refusal
                task.cancel()
