"""The child in which an input is checked that might take long: one for each, one at a time.

    wait for one's turn ──► start the child ──► its answer
            │                     └──► it died of its limits: the input is too large for its schema
            └──► too many before it: try again later

Hazard: who waits here waits for other tenants' inputs too, each for the limit of CPU time at most; hence the turn has
an end, and none of it is on the way of an input that is known to cost little.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Final

import orjson

from services.api.app.checking.engine import LENGTH_BYTES
from services.chassis.grpc.errors import DependencyUnavailable, Violation
from services.chassis.process.child_limits import environment

TURN_SECONDS_MAX: Final = 5.0
# Its CPU time ends it long before; only a full machine, or somebody who stops it, keeps it so long.
SILENT_SECONDS_MAX: Final = 15.0
SAID_BYTES_MAX: Final = 500
_RETRY_SECONDS: Final = 5.0
# By which its limits end it: time, memory (allocators abort), and the stack.
_LIMITS: Final = (signal.SIGPROF, signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV)


class CheckerProcess:
    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)

    async def violations(self, schema: bytes, document: bytes) -> list[Violation]:
        """Empty when it fits; else the first there is. Both as JSON."""
        try:
            async with asyncio.timeout(TURN_SECONDS_MAX):
                await self._turn.acquire()
        except TimeoutError:
            raise _busy() from None
        try:
            code, answer, said = await _checked(len(schema).to_bytes(LENGTH_BYTES, "big") + schema + document)
        finally:
            self._turn.release()
        if -code in _LIMITS:
            message = "takes too long to check against the inputSchema"
            return [Violation("input", "TOO_LARGE", message)]
        if code:
            raise RuntimeError(f"the child that checks inputs ended with {code}: {said[-SAID_BYTES_MAX:]!r}")
        found = orjson.loads(answer)
        return [] if found is None else [Violation(*found)]


async def _checked(request: bytes) -> tuple[int, bytes, bytes]:
    """Exit code, negative for a signal; its answer; and what it said besides, which is no line of our log."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "services.api.app.checking"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    try:
        async with asyncio.timeout(SILENT_SECONDS_MAX):
            answer, said = await child.communicate(request)
    except TimeoutError:
        raise _busy() from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode is not None
    return child.returncode, answer, said


def _busy() -> DependencyUnavailable:
    return DependencyUnavailable("the check of large inputs", retry_after=_RETRY_SECONDS)
