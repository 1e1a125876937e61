"""Renders in a child process, whose end by a template is a failure of that template's run and of nothing else.

    no child ──first need──► idle ──request──► at work ──answer──► idle
        ▲                                        │ it ends, or says nothing for too long: killed
        └────────────────────────────────────────┘

One child for the runner, one rendering at a time. Calls block, so the thread of an event loop is refused: runs stand in
`queue.py`, and only modules that evaluate something themselves wait here, each in the thread that it has anyway.

The child is started as a program of its own: a fork of this process would carry gRPC's threads in a state they cannot
go on from. It ends by the end of its input, so also when this process is killed, and by its own timer when a template
keeps it from reading.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import orjson

from services.chassis.process.child_limits import LENGTH_BYTES, Head, environment
from windlass.sdk import ModuleError, PermanentError, TransientError

FRAME_BYTES_MAX: Final = 2**32 - 1
# For what no CPU time is used in: the child does nothing but work, so only a full machine, or somebody who stops it,
# keeps it so long. A template's own time is measured in the child, as CPU time.
SILENT_SECONDS_MAX: Final = 10.0
START_SECONDS_MAX: Final = 30.0
# More data may take longer, by a second for so many bytes.
BYTES_PER_SECOND: Final = 16 * 1024 * 1024

_TOO_LARGE = "the templates take too much memory"
# Signals a child ends by that a template can bring about, and what it has done then.
_FAULTS: Final = {
    signal.SIGPROF: "the templates take too much time",
    signal.SIGABRT: _TOO_LARGE,
    signal.SIGSEGV: "the templates are nested too deep",
    signal.SIGBUS: _TOO_LARGE,
}


class _Silent(Exception):
    """Nothing came, and nothing went, for too long."""


class _Ended(Exception):
    """The other end is closed."""


class _Child:
    """One process and its pipes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "services.runner.app.rendering"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.pid = self._process.pid
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)

    def receive(self, seconds: float) -> bytes:
        deadline = time.monotonic() + seconds
        length = int.from_bytes(self._exactly(LENGTH_BYTES, deadline))
        return self._exactly(length, deadline)

    def send(self, request: bytes, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for part in (len(request).to_bytes(LENGTH_BYTES), request):
            rest = memoryview(part)
            while rest:
                _await(self._stdin.fileno(), select.POLLOUT, deadline)
                try:
                    rest = rest[os.write(self._stdin.fileno(), rest) :]
                except BrokenPipeError:
                    raise _Ended from None

    def _exactly(self, count: int, deadline: float) -> bytes:
        found = bytearray()
        while len(found) < count:
            _await(self._stdout.fileno(), select.POLLIN, deadline)
            part = os.read(self._stdout.fileno(), min(count - len(found), 1 << 20))
            if not part:
                raise _Ended
            found += part
        return bytes(found)

    def end(self) -> int:
        """What it has ended by, as a return code; one that goes on is killed."""
        return self._reaped(0.0)

    def ended(self) -> int:
        """The same, with a moment for one that has closed its pipes and is on its way."""
        return self._reaped(1.0)

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()

    def _reaped(self, seconds: float) -> int:
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._stdin.close()
        self._stdout.close()
        return code


class RendererProcess:
    """Like `Renderer`, in a child; safe to call from any thread."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._child: _Child | None = None
        self._closed = threading.Event()

    @property
    def pid(self) -> int | None:
        """Of the child; None without one."""
        child = self._child
        return child.pid if child is not None else None

    def render(self, value: Any, scope: Mapping[str, Any], *, path: str = "") -> Any:
        """As `Renderer.render`; what was rendered to no JSON is a failure already here."""
        request = {"value": value, "scope": scope, "path": path}
        return orjson.loads(self._asked(orjson.dumps(request)))

    def evaluate(self, expression: str, scope: Mapping[str, Any], *, path: str = "expression") -> Any:
        """As `Renderer.evaluate`."""
        request = {"expression": expression, "scope": scope, "path": path}
        # Unlike the faster one it reads numbers of any size, and those that are none.
        return json.loads(self._asked(orjson.dumps(request)))

    def close(self) -> None:
        """End the child, whatever it is at; whoever waits for it is told that it is lost."""
        self._closed.set()
        child = self._child
        if child is not None:
            child.kill()
        with self._turn:
            self._give_up()

    def _asked(self, request: bytes) -> bytes:
        _refuse_event_loop()
        if len(request) > FRAME_BYTES_MAX:
            raise PermanentError("the data of the templates is too large", type="TEMPLATE_ERROR")
        with self._turn:
            try:
                child = self._child_ready()
                seconds = SILENT_SECONDS_MAX + len(request) / BYTES_PER_SECOND
                child.send(request, seconds)
                head = child.receive(seconds)
                body = child.receive(seconds)
            except _Silent:
                self._give_up()
                raise TransientError("the child that renders does not answer", type="RENDERER_LOST") from None
            except _Ended:
                raise self._lost() from None
            except BaseException:
                # The pipes are in the middle of something.
                self._give_up()
                raise
            verdict = Head.decoded(head)
            if verdict.is_last:
                self._give_up()
        if not verdict.is_good:
            raise PermanentError(body.decode(), type="TEMPLATE_ERROR")
        return body

    def _child_ready(self) -> _Child:
        if self._closed.is_set():
            raise TransientError("the runner ends", type="RENDERER_LOST")
        if self._child is not None and self._child.is_over:
            # While nobody used it.
            self._give_up()
        if self._child is None:
            self._child = _Child()
            if self._closed.is_set():
                self._child.kill()
            try:
                self._child.receive(START_SECONDS_MAX)
            except (_Silent, _Ended):
                self._give_up()
                raise TransientError("no child to render in could be started", type="RENDERER_LOST") from None
        return self._child

    def _lost(self) -> ModuleError:
        child, self._child = self._child, None
        assert child is not None
        fault = _FAULTS.get(signal.Signals(-code)) if (code := child.ended()) < 0 else None
        if fault is not None:
            return PermanentError(fault, type="TEMPLATE_ERROR")
        # By somebody else's hand: the template may be innocent, and the attempts of its node are counted.
        return TransientError("the child that rendered is lost", type="RENDERER_LOST")

    def _give_up(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


def _refuse_event_loop() -> None:
    """A wait on its thread would be one of every run of this process, and of its leases."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise PermanentError(
        "an expression that could grow is not evaluated on the event loop; in an async module write:"
        " await asyncio.to_thread(ctx.evaluate, expression)",
        type="BLOCKING_CALL",
    )


def _await(fd: int, event: int, deadline: float) -> None:
    waiting = select.poll()
    waiting.register(fd, event)
    # Looked at once in any case: this process may have been stopped meanwhile, and the answer be there.
    if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise _Silent
