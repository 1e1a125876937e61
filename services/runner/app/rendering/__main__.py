"""`python -m services.runner.app.rendering`: the child that renders for a runner; not for people to start.

Requests come on its input, answers go to its output, each a length and so many bytes. It has limits of its own for
memory and CPU time, set anew for each request, and dies of them rather than be asked to obey: a template that is at
work is inside the engine, where nothing of Python's is heard.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any, BinaryIO, Final

import orjson

from services.chassis.process.child_limits import limit_memory, settle
from services.runner.app.rendering.engine import Renderer
from services.runner.app.rendering.renderer_process import BYTES_PER_SECOND, LENGTH_BYTES
from windlass.sdk import PermanentError
from windlass.sdk.encoding import NotJson, encoded

# CPU time of one request. A template out of fuel has used a fraction of it.
CPU_SECONDS_MAX: Final = 3.0
# Beyond what the process has at its start; data takes several times its bytes when it is parsed.
MEMORY_BYTES_MAX: Final = 512 * 1024 * 1024
MEMORY_PER_REQUEST_BYTE: Final = 16
# With so much left over from the last request, the next would not have its own.
LEFT_OVER_BYTES_MAX: Final = 128 * 1024 * 1024


def memory_bytes() -> int:
    """Of address space, which is what the limit counts."""
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123
        return int(statm.read().split()[0]) * resource.getpagesize()


def answered(renderer: Renderer, request: bytes) -> tuple[bool, bytes]:
    """Whether it is good, and the value as JSON or the fault as text."""
    try:
        asked = orjson.loads(request)
        if "expression" in asked:
            value = renderer.evaluate(asked["expression"], asked["scope"], path=asked["path"])
            return True, _evaluated(value, asked["path"])
        value = renderer.render(asked["value"], asked["scope"], path=asked["path"])
        return True, _rendered(value, asked["path"])
    except PermanentError as error:
        return False, str(error).encode()
    except MemoryError:
        return False, b"the templates take too much memory"


def _rendered(value: Any, path: str) -> bytes:
    """Part by part, so that each may be as deep as it may be where it goes."""
    if isinstance(value, dict) and not path:
        return orjson.dumps({key: orjson.Fragment(_json(part, key)) for key, part in value.items()})
    return _json(value, path)


def _json(value: Any, path: str) -> bytes:
    try:
        return encoded(value)
    except NotJson as fault:
        raise PermanentError(
            f"{path}: the rendered value is not JSON: {fault}", type="TEMPLATE_ERROR"
        ) from None


def _evaluated(value: Any, path: str) -> bytes:
    """A module may do with a value what JSON could not carry: numbers of any size travel too."""
    try:
        return encoded(value)
    except NotJson as fault:
        if isinstance(value, int | float):
            return json.dumps(value).encode()
        raise PermanentError(f"{path}: the value is not JSON: {fault}", type="TEMPLATE_ERROR") from None


def _received(source: BinaryIO) -> bytes | None:
    """None at the end of the input."""
    head = source.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    length = int.from_bytes(head)
    body = source.read(length)
    return body if len(body) == length else None


def _send(target: BinaryIO, *frames: bytes) -> None:
    for frame in frames:
        target.write(len(frame).to_bytes(LENGTH_BYTES))
        target.write(frame)
    target.flush()


def _settle() -> None:
    settle()
    # What templates compute comes after what services do.
    os.nice(5)
    # The engine tells there of what it dies, which is told to the run.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Until the input ends, or a request has left too much behind."""
    renderer, at_start = Renderer(), memory_bytes()
    _send(target, b"")
    is_last = False
    while not is_last and (request := _received(source)) is not None:
        limit_memory(memory_bytes() + MEMORY_BYTES_MAX + MEMORY_PER_REQUEST_BYTE * len(request))
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS_MAX + len(request) / BYTES_PER_SECOND)
        is_good, body = answered(renderer, request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        limit_memory(resource.RLIM_INFINITY)
        del request
        is_last = memory_bytes() - at_start > LEFT_OVER_BYTES_MAX
        _send(target, orjson.dumps({"isGood": is_good, "isLast": is_last}), body)


if __name__ == "__main__":
    _settle()
    serve(sys.stdin.buffer, sys.stdout.buffer)
