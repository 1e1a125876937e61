"""Renders in a child process. A template that ends the child fails its own run and nothing else. The child also reads
what is too large to be read here: the data of templates, and the bodies of responses.

    no child ──first need──► idle ──request──► at work ──answer──► idle
        ▲                                        │ it ends, or stands still for too long: killed
        └────────────────────────────────────────┘

A child does one request at a time. Calls block, so they are refused on the thread of an event loop: runs wait in
`queue.py`, modules that evaluate expressions themselves in their own threads (`children.py`), and responses, which have
a child of their own, in a thread of `http.request`.

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
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from services.chassis.process.child_limits import LENGTH_BYTES, Head
from services.chassis.process.child_start import start_child
from services.rendering.once_more import WorkDocuments, WorkedOn, head_of, parts_of_work
from services.rendering.requests import request_of
from windlass.sdk import ModuleError, PermanentError, TransientError

FRAME_BYTES_MAX: Final = 2**32 - 1
# A child is lost when it has moved no data and used no CPU time for so long. A slow machine is no reason to end it:
# the child limits the CPU time of each request itself.
SILENT_SECONDS_MAX: Final = 10.0

# JSON that nobody has parsed yet, by its path in the scope.
Unparsed = Mapping[tuple[str, ...], bytes]
NOTHING: Final[Unparsed] = {}

_TOO_LARGE = "the templates take too much memory"
# A template can end the child by these signals, for these reasons.
_FAULTS: Final[Mapping[int, str]] = {
    signal.SIGPROF: "the templates take too much time",
    signal.SIGABRT: _TOO_LARGE,
    # A stack that cannot grow any more ends it too.
    signal.SIGSEGV: "the templates are nested too deep, or take too much memory",
    signal.SIGBUS: _TOO_LARGE,
}


class _Child:
    """One process and its pipes. `send` and `receive` raise TimeoutError if it stands still, EOFError if it ends."""

    def __init__(self) -> None:
        self.process = start_child("services.rendering")
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        # A full pipe must not block a write, which has no time limit.
        os.set_blocking(self._stdin.fileno(), False)

    def receive(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(LENGTH_BYTES)))

    def send(self, request: bytes) -> None:
        for part in (len(request).to_bytes(LENGTH_BYTES), request):
            rest = memoryview(part)
            while rest:
                self._await(self._stdin.fileno(), select.POLLOUT)
                try:
                    rest = rest[os.write(self._stdin.fileno(), rest) :]
                except BrokenPipeError:
                    raise EOFError from None

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            self._await(self._stdout.fileno(), select.POLLIN)
            part = os.read(self._stdout.fileno(), min(count - len(found), 1 << 20))
            if not part:
                raise EOFError
            found += part
        return bytes(found)

    def _await(self, pipe: int, event: int) -> None:
        waiting = select.poll()
        waiting.register(pipe, event)
        before_s = self.cpu_seconds()
        while not waiting.poll(SILENT_SECONDS_MAX * 1000):
            now_s = self.cpu_seconds()
            if now_s == before_s:
                raise TimeoutError
            before_s = now_s

    def cpu_seconds(self) -> float:
        """The CPU time of the child so far. Its clock has this number in Linux (clock_getcpuclockid)."""
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def end(self, seconds: float = 0.0) -> int:
        """The return code. A child that still runs after `seconds` is killed."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._stdin.close()
        self._stdout.close()
        return code


class RendererProcess:
    """Like `Renderer`, in a child; safe to call from any thread."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._child: _Child | None = None
        self._closed = threading.Event()
        # CPU time that requests have taken so far, with the starts of children. One that has ended its child counts by
        # the clock, because the dead cannot be asked.
        self.used_seconds = 0.0
        # The part of it that the present child has taken.
        self._of_child_s = 0.0

    @property
    def pid(self) -> int | None:
        """The child's; None without a child."""
        child = self._child
        return None if child is None else child.process.pid

    def render(self, documents: Mapping[str, Any], scope: Mapping[str, Any], unparsed: Unparsed = NOTHING) -> Any:
        """Like `Renderer.render`, for documents by name. A value that is no JSON fails here already.

        `unparsed` has more of the scope, as JSON by its path."""
        return orjson.loads(self._resolved({"documents": documents, "scope": scope}, unparsed))

    def evaluate(self, expression: str, scope: Mapping[str, Any], unparsed: Unparsed = NOTHING) -> Any:
        """Like `Renderer.evaluate`."""
        # Unlike orjson this reads numbers of any size, NaN and infinities.
        return json.loads(self._resolved({"expression": expression, "scope": scope}, unparsed))

    def render_once_more(self, work: WorkDocuments, scope: Mapping[str, Any], unparsed: Unparsed) -> WorkedOn:
        """Renders again what a run worked on. Nothing of it is parsed here."""
        asked = {**head_of(work, scope), "paths": list(unparsed)}
        return WorkedOn.of(self._asked(asked, [*parts_of_work(work), *unparsed.values()]))

    def body_as_json(self, raw: bytes, content_type: str) -> bytes:
        """Like `bodies.body_as_json`."""
        return self._asked({"content_type": content_type}, [raw])

    def _resolved(self, asked: Mapping[str, Any], unparsed: Unparsed) -> bytes:
        return self._asked({**asked, "paths": list(unparsed)}, list(unparsed.values()))

    def close(self) -> None:
        """End the child at once. A call that waits for it fails with RENDERER_LOST."""
        self._closed.set()
        child = self._child
        if child is not None:
            child.process.kill()
        with self._turn:
            self._give_up()

    def _asked(self, asked: Mapping[str, Any], parts: Sequence[bytes]) -> bytes:
        refuse_event_loop()
        request = request_of(asked, parts)
        if len(request) > FRAME_BYTES_MAX:
            raise PermanentError("the data of the templates is too large", type="TEMPLATE_ERROR")
        with self._turn:
            began = time.monotonic()
            try:
                child = self._child_ready()
                child.send(request)
                verdict, body = Head.decoded(child.receive()), child.receive()
                self._count(child.cpu_seconds())
            except TimeoutError:
                self.used_seconds += time.monotonic() - began
                self._give_up()
                raise TransientError("the child that renders does not answer", type="RENDERER_LOST") from None
            except EOFError:
                self.used_seconds += time.monotonic() - began
                raise self._lost() from None
            except BaseException:
                # The pipes hold half an answer.
                self._give_up()
                raise
            if verdict.is_last:
                self._give_up()
        if not verdict.is_good:
            raise PermanentError(body.decode(), type="TEMPLATE_ERROR")
        return body

    def _count(self, of_child_s: float) -> None:
        self.used_seconds += of_child_s - self._of_child_s
        self._of_child_s = of_child_s

    def _child_ready(self) -> _Child:
        if self._closed.is_set():
            raise TransientError("the runner ends", type="RENDERER_LOST")
        if self._child is not None and self._child.process.poll() is not None:
            # It ended while it was idle.
            self._give_up()
        if self._child is None:
            self._child, self._of_child_s = _Child(), 0.0
            if self._closed.is_set():
                self._child.process.kill()
            try:
                self._child.receive()
            except (TimeoutError, EOFError):
                self._give_up()
                raise TransientError("no child to render in could be started", type="RENDERER_LOST") from None
        return self._child

    def _lost(self) -> ModuleError:
        child, self._child = self._child, None
        assert child is not None
        if fault := _FAULTS.get(-child.end(1.0)):
            return PermanentError(fault, type="TEMPLATE_ERROR")
        # Something else killed it. The template may be innocent, and the attempts of its node are limited.
        return TransientError("the child that rendered is lost", type="RENDERER_LOST")

    def _give_up(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


def refuse_event_loop() -> None:
    """A wait on an event loop would stop all runs on it, and on the worker's also the beats."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise PermanentError(
        "an expression that could grow is not evaluated on the event loop; in an async module write:"
        " await asyncio.to_thread(ctx.evaluate, expression)",
        type="BLOCKING_CALL",
    )
