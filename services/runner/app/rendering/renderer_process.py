"""Renders in a child process. A template that ends the child fails its own run and nothing else.

    no child ──first need──► idle ──request──► at work ──answer──► idle
        ▲                                        │ it ends, or says nothing for too long: killed
        └────────────────────────────────────────┘

A runner has one child, which renders one request at a time. Calls block, so they are refused on the thread of an event
loop: runs wait in `queue.py`, and only modules that evaluate expressions themselves wait here, in their own threads.

The child is a program of its own: a fork of this process would copy gRPC's threads in an unusable state. It ends with
its input, so also when this process is killed, and by its own timer when a template keeps it busy.
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
# The time of a template is measured in the child, as CPU time. Only an overloaded machine or a stopped child takes
# longer than this.
SILENT_SECONDS_MAX: Final = 10.0
START_SECONDS_MAX: Final = 30.0
# Each request may take one second more for so many bytes.
BYTES_PER_SECOND: Final = 16 * 1024 * 1024

_TOO_LARGE = "the templates take too much memory"
# A template can end the child by these signals, for these reasons.
_FAULTS: Final = {
    signal.SIGPROF: "the templates take too much time",
    signal.SIGABRT: _TOO_LARGE,
    signal.SIGSEGV: "the templates are nested too deep",
    signal.SIGBUS: _TOO_LARGE,
}


class _Child:
    """One process and its pipes. `send` and `receive` raise TimeoutError when nothing moves for too long, and EOFError
    when the other end is closed.
    """

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
                    raise EOFError from None

    def _exactly(self, count: int, deadline: float) -> bytes:
        found = bytearray()
        while len(found) < count:
            _await(self._stdout.fileno(), select.POLLIN, deadline)
            part = os.read(self._stdout.fileno(), min(count - len(found), 1 << 20))
            if not part:
                raise EOFError
            found += part
        return bytes(found)

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()

    def end(self, seconds: float = 0.0) -> int:
        """The return code. A child that still runs after `seconds` is killed."""
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
        """The child's; None without a child."""
        child = self._child
        return None if child is None else child.pid

    def render(self, value: Any, scope: Mapping[str, Any], *, path: str = "") -> Any:
        """Like `Renderer.render`. A value that is no JSON fails here already."""
        request = {"value": value, "scope": scope, "path": path}
        return orjson.loads(self._asked(orjson.dumps(request)))

    def evaluate(self, expression: str, scope: Mapping[str, Any], *, path: str = "expression") -> Any:
        """Like `Renderer.evaluate`."""
        request = {"expression": expression, "scope": scope, "path": path}
        # Unlike orjson this reads numbers of any size, NaN and infinities.
        return json.loads(self._asked(orjson.dumps(request)))

    def close(self) -> None:
        """End the child at once. A call that waits for it fails with RENDERER_LOST."""
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
            except TimeoutError:
                self._give_up()
                raise TransientError("the child that renders does not answer", type="RENDERER_LOST") from None
            except EOFError:
                raise self._lost() from None
            except BaseException:
                # The pipes hold half an answer.
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
            # It ended while it was idle.
            self._give_up()
        if self._child is None:
            self._child = _Child()
            if self._closed.is_set():
                self._child.kill()
            try:
                self._child.receive(START_SECONDS_MAX)
            except (TimeoutError, EOFError):
                self._give_up()
                raise TransientError("no child to render in could be started", type="RENDERER_LOST") from None
        return self._child

    def _lost(self) -> ModuleError:
        child, self._child = self._child, None
        assert child is not None
        fault = _FAULTS.get(signal.Signals(-code)) if (code := child.end(1.0)) < 0 else None
        if fault is not None:
            return PermanentError(fault, type="TEMPLATE_ERROR")
        # Something else killed it. The template may be innocent, and the attempts of its node are limited.
        return TransientError("the child that rendered is lost", type="RENDERER_LOST")

    def _give_up(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


def _refuse_event_loop() -> None:
    """A wait on the thread of the event loop would stop all runs of this process, and its beats."""
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
    # Polled once even after the deadline: this process may have been stopped while the answer came.
    if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError
