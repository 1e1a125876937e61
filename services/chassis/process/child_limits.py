"""A child process for work that could take all memory or time. Its own limits end it, because no Python code of ours
runs while a library is at work in it.

    parent ──length, request──► child ──length, head, length, answer──► parent

The child sends one empty frame when it is ready. It ends with its input, so also when its parent is killed.

This module imports little, because each child pays for its imports when it starts.
"""

import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, Final, NamedTuple

# Every frame begins with its length in this number of bytes.
LENGTH_BYTES: Final = 4
# A child that keeps more than this after a request ends, because the next request would have too little memory.
LEFT_OVER_BYTES_MAX: Final = 128 * 1024 * 1024
_GOOD: Final = 1
_LAST: Final = 2


class ChildLimits(NamedTuple):
    """The limits of one request: its CPU time, and its memory in addition to what the child holds already."""

    cpu_seconds: float
    memory_bytes: int


class Head(NamedTuple):
    """The frame before each answer."""

    # False: the answer is the text of a fault.
    is_good: bool
    # The child ends after this answer.
    is_last: bool

    def encoded(self) -> bytes:
        return bytes([_GOOD * self.is_good | _LAST * self.is_last])

    @classmethod
    def decoded(cls, frame: bytes) -> "Head":
        return cls(bool(frame[0] & _GOOD), bool(frame[0] & _LAST))


def environment() -> dict[str, str]:
    """The environment of the child. It can import what this process can, and gets none of the settings."""
    paths = [path or os.getcwd() for path in sys.path]  # noqa: PTH109 - a text for another's sys.path
    return {"PYTHONPATH": os.pathsep.join(paths)}


def serve(answered: Callable[[bytes], tuple[bool, bytes]], limits: Callable[[bytes], ChildLimits]) -> None:
    """Answer requests until the input ends, or a request has left too much memory behind."""
    _settle()
    source, target, at_start = sys.stdin.buffer, sys.stdout.buffer, memory_bytes()
    _send(target, b"")
    is_last = False
    while not is_last and (request := _received(source)) is not None:
        cpu_seconds, memory = limits(request)
        limit_memory(memory_bytes() + memory)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        is_good, answer = answered(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        limit_memory(resource.RLIM_INFINITY)
        del request
        is_last = memory_bytes() - at_start > LEFT_OVER_BYTES_MAX
        _send(target, Head(is_good, is_last).encoded(), answer)


def memory_bytes() -> int:
    """The present address space, because that is what the limit counts."""
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123
        return int(statm.read().split()[0]) * resource.getpagesize()


def limit_memory(limit: int) -> None:
    """Set the limit of the address space, but not above the hard limit of the service."""
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    if most != resource.RLIM_INFINITY:
        limit = most if limit == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def _settle() -> None:
    # A signal to the whole process group does not end the child. It ends with its input, after its service drained.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # When the machine runs out of memory, this process is killed first.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:  # noqa: PTH123
        score.write("1000")
    # A library that dies writes to standard error, which would appear in the service's log.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


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
