"""The children that check schemas and inputs. They are few, stay warm, and are replaced when they end.

    wait for a turn ──► a warm child, or a new one ──► its answer
          │                       └──► it died of its limits: the check takes too long
          └──► no turn came: try again later

Hazard: a caller that goes while a child works for it leaves a half-read answer in the socket, so that child is killed.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
from collections.abc import Sequence
from typing import Final

import orjson

from services.api.app.checking.request import CheckRequest
from services.chassis.grpc.errors import DependencyUnavailable, Violation
from services.chassis.process.child_limits import LENGTH_BYTES, Head
from services.chassis.process.child_start import start_child
from services.chassis.process.fair_line import FairLine, NoTurn

TURN_SECONDS_MAX: Final = 5.0
# The most expensive honest input (256 KiB of fractions against an enum of integers) took half a second, and a caller
# should have an answer within a second.
CPU_SECONDS_MAX: Final = 0.8
# The limits for compiling a schema when its definition is applied.
COMPILE_CPU_SECONDS_MAX: Final = 0.5
# Finding all misfits may take far longer than finding the first; beyond this time only the first is answered.
ALL_CPU_SECONDS_MAX: Final = 0.1
# The limit of CPU time ends a child long before. Only an overloaded machine or a stopped child takes so long.
SILENT_SECONDS_MAX: Final = 15.0
_RETRY_SECONDS: Final = 5.0
# The signals by which the limits end a child: time, memory (allocators abort), and the stack.
_LIMITS: Final = (signal.SIGPROF, signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
_TOO_LONG: Final = "takes too long to check against the inputSchema"


class _OverLimit(Exception):
    """The child died of its limits."""


class _Child:
    """One process, and the socket that is both its input and its output."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls) -> _Child:
        ours, its = socket.socketpair()
        with its:
            process = start_child("services.api.app.checking", its.fileno(), its.fileno())
        try:
            child = cls(process, *await asyncio.open_connection(sock=ours))
        except BaseException:
            process.kill()
            await asyncio.to_thread(process.wait)
            raise
        try:
            # The child sends an empty frame when it is ready.
            await child._frame()
        except BaseException:
            await child.end()
            raise
        return child

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    async def answer(self, request: bytes) -> tuple[Head, bytes]:
        """Raises asyncio.IncompleteReadError, or ConnectionError, when the child ends."""
        self._writer.write(len(request).to_bytes(LENGTH_BYTES) + request)
        await self._writer.drain()
        return Head.decoded(await self._frame()), await self._frame()

    async def ended(self) -> int:
        """The exit code of a child that has closed its socket; negative for a signal."""
        self._writer.close()
        return await asyncio.to_thread(self._process.wait)

    async def end(self) -> None:
        self._process.kill()
        await self.ended()

    async def _frame(self) -> bytes:
        length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES))
        return await self._reader.readexactly(length)


class Checkers:
    """The children of one event loop. Schemas and documents are given as JSON. Workspaces take turns; a call whose turn
    does not come in time raises DependencyUnavailable."""

    def __init__(self, children: int) -> None:
        self._line = FairLine(children)
        self._idle: list[_Child] = []

    async def fault(self, workspace: str, schema: bytes) -> str | None:
        """Why this is no schema that an input could be checked against; None when it is one."""
        try:
            # The empty input is checked too: a schema that refers to itself without end fails for every input.
            is_good, answer = await self._asked(workspace, CheckRequest(schema, b"{}", 1, COMPILE_CPU_SECONDS_MAX))
        except _OverLimit:
            return "takes too long to compile, or to check even an empty input"
        return None if is_good else answer.decode()

    async def violations(self, workspace: str, schema: bytes, document: bytes, most: int) -> Sequence[Violation]:
        """The first violations; empty when the document fits."""
        first = CheckRequest(schema, document, 1, CPU_SECONDS_MAX)
        try:
            found = await self._found(workspace, first)
        except _OverLimit:
            return [Violation("input", "TOO_LARGE", _TOO_LONG)]
        if found and most > 1:
            try:
                found = await self._found(workspace, first._replace(most=most, cpu_seconds=ALL_CPU_SECONDS_MAX))
            except _OverLimit:
                return found
        return found

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().end()

    async def _found(self, workspace: str, request: CheckRequest) -> Sequence[Violation]:
        is_good, answer = await self._asked(workspace, request)
        if not is_good:
            raise RuntimeError(f"a stored schema is invalid: {answer.decode()}")
        return [Violation(*misfit) for misfit in orjson.loads(answer)]

    async def _asked(self, workspace: str, request: CheckRequest) -> tuple[bool, bytes]:
        try:
            async with self._line.turn(workspace, TURN_SECONDS_MAX), asyncio.timeout(SILENT_SECONDS_MAX):
                return await self._answered(request.encoded())
        except (NoTurn, TimeoutError):
            raise DependencyUnavailable("the check of inputs", retry_after=_RETRY_SECONDS) from None

    async def _answered(self, request: bytes) -> tuple[bool, bytes]:
        child = self._idle.pop() if self._idle else await _Child.start()
        if child.is_over:
            # It ended while it was idle.
            await child.ended()
            child = await _Child.start()
        try:
            head, answer = await child.answer(request)
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await child.ended()
            if -code in _LIMITS:
                raise _OverLimit from None
            raise RuntimeError(f"the child that checks inputs ended with {code}") from None
        except BaseException:
            await child.end()
            raise
        if head.is_last:
            await child.end()
        else:
            self._idle.append(child)
        return head.is_good, answer
