"""Does the long work of a call beside the event loop, so that all other calls are served meanwhile.

To read or to write a large document takes up to a tenth of a second, during which the loop could do nothing else. So
this is done in one thread, which workspaces use in turn (fair_line.py). Small work is done at once, where it is asked
for: a thread would cost it a tenth of a millisecond.

Hazard: only one of the two threads has the interpreter at a time. The loop waits for it, up to SWITCH_SECONDS, whenever
it has slept, which is some ten times for each call that it serves meanwhile. By default it would wait for 5 ms. So the
work has to be Python: a single call of a library, like the parsing of a message, does not give way.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from services.chassis.grpc.errors import Refusal
from services.chassis.identity.callers import caller
from services.chassis.process.fair_line import FairLine, NoTurn

_Result = TypeVar("_Result")

# JSON of this size has at most 4,000 values. To read or write them as messages takes up to 3 ms.
HERE_BYTES_MAX: Final = 8 * 1024
SWITCH_SECONDS: Final = 0.0002
_RETRY_SECONDS: Final = 1.0

# The thread begins with the first work. The setting is for the whole process, which otherwise keeps that of Python.
_thread = ThreadPoolExecutor(1, "beside", initializer=sys.setswitchinterval, initargs=(SWITCH_SECONDS,))
_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, FairLine] = WeakKeyDictionary()


async def beside(size_bytes: int, work: Callable[[], _Result]) -> _Result:
    """The result of the work, which reads or writes so many bytes of JSON."""
    if size_bytes <= HERE_BYTES_MAX:
        return work()
    loop = asyncio.get_running_loop()
    line = _lines.get(loop)
    if line is None:
        line = _lines[loop] = FairLine(1)
    try:
        async with line.turn(caller().tenant, None):
            return await loop.run_in_executor(_thread, work)
    except NoTurn:
        message = "too many large documents of this workspace wait to be read or written: try again in a moment"
        raise Refusal("LARGE_REQUESTS_EXCEEDED", message, retry_after=_RETRY_SECONDS) from None
