"""The children that render, the threads that wait for them, and the lines in which workspaces wait for both.

    submit ──► the line of its workspace ──► a thread that is free ──► the child that was used last

Workspaces take turns, and each has at most one of the children at a time. So the slow templates of one workspace hold
up its own, and nobody else's. A workspace that has used up its CPU time (cpu_budget.py) is passed over.

Hazard: the threads are daemons, so that the end of the process does not wait for them. `close` ends their children.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeVar

from services.rendering.cpu_budget import CpuBudgets
from services.rendering.renderer_process import NOTHING, RendererProcess, Unparsed, refuse_event_loop

T = TypeVar("T")

# Two, so that one workspace cannot take all. Each has some 30 MiB.
CHILDREN: Final = 2


class _Call(NamedTuple):
    future: Future[Any]
    function: Callable[[], Any]


class RenderingChildren:
    """Safe to call from any thread."""

    def __init__(
        self, count: int = CHILDREN, budgets: CpuBudgets | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._budgets = budgets or CpuBudgets()
        self._monotonic = monotonic
        # The child of a thread that is at work.
        self._own = threading.local()
        # Guards what follows. Notified when there may be something to do.
        self._changed = threading.Condition()
        # The calls that wait, by workspace. The first workspace is next.
        self._lines: dict[str, deque[_Call]] = {}
        # The workspaces that have a child.
        self._served: set[str] = set()
        self._threads = self._threads_idle = 0
        # All children, and those that are idle; the one that was used last is last.
        self._children: list[RendererProcess] = []
        self._idle: list[RendererProcess] = []
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """Those of the children that have been started."""
        return [pid for child in self._children if (pid := child.pid) is not None]

    def submit(self, workspace: str, function: Callable[[], T]) -> Future[T]:
        """Call the function in a thread that has a child, when it is the turn of this workspace."""
        future: Future[T] = Future()
        with self._changed:
            if self._is_closed:
                future.cancel()
                return future
            self._lines.setdefault(workspace, deque()).append(_Call(future, function))
            if len(self._lines.keys() - self._served) > self._threads_idle and self._threads < self._count:
                self._threads += 1
                threading.Thread(target=self._serve, name=f"rendering_{self._threads}", daemon=True).start()
            self._changed.notify_all()
        return future

    def of(self, workspace: str) -> ChildRenderer:
        """Renders for this workspace."""
        return ChildRenderer(self, workspace)

    def ask(self, workspace: str, question: Callable[[RendererProcess], T]) -> T:
        """Ask the child of this thread, or wait for the turn of the workspace."""
        own: RendererProcess | None = getattr(self._own, "child", None)
        if own is not None:
            return question(own)
        refuse_event_loop()
        return self.submit(workspace, lambda: question(self._own.child)).result()

    def close(self) -> None:
        """End all children at once and let nothing more begin. Calls under way fail with RENDERER_LOST."""
        with self._changed:
            self._is_closed = True
            for line in self._lines.values():
                for call in line:
                    call.future.cancel()
            self._lines.clear()
            self._changed.notify_all()
        for child in self._children:
            child.close()

    def _serve(self) -> None:
        while (found := self._next()) is not None:
            workspace, call, child = found
            self._own.child, before = child, child.used_seconds
            try:
                result = call.function()
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                call.future.set_exception(error)
            else:
                call.future.set_result(result)
            del call, found
            with self._changed:
                self._budgets.spend(workspace, child.used_seconds - before, self._monotonic())
                self._served.discard(workspace)
                self._idle.append(child)
                self._changed.notify_all()

    def _next(self) -> tuple[str, _Call, RendererProcess] | None:
        """Wait for the next call. None: nothing more is to be done."""
        with self._changed:
            while not self._is_closed:
                now = self._monotonic()
                waits = {name: self._budgets.wait(name, now) for name in self._lines if name not in self._served}
                for workspace, wait in waits.items():
                    if not wait and (call := self._take(workspace)) is not None:
                        return workspace, call, self._child()
                self._threads_idle += 1
                self._changed.wait(min(filter(None, waits.values()), default=None))
                self._threads_idle -= 1
            return None

    def _child(self) -> RendererProcess:
        if not self._idle:
            self._children.append(RendererProcess())
            return self._children[-1]
        return self._idle.pop()

    def _take(self, workspace: str) -> _Call | None:
        """The next call of this workspace, which goes to the end of the turn. None: all were cancelled."""
        line = self._lines.pop(workspace)
        while line:
            call = line.popleft()
            if call.future.set_running_or_notify_cancel():
                if line:
                    self._lines[workspace] = line
                self._served.add(workspace)
                return call
        return None


class ChildRenderer:
    """Like `Renderer`, in whichever child it is the turn of the workspace."""

    def __init__(self, children: RenderingChildren, workspace: str) -> None:
        self._children = children
        self._workspace = workspace

    def render(self, documents: Mapping[str, Any], scope: Mapping[str, Any], unparsed: Unparsed = NOTHING) -> Any:
        return self._children.ask(self._workspace, lambda child: child.render(documents, scope, unparsed))

    def evaluate(self, expression: str, scope: Mapping[str, Any], unparsed: Unparsed = NOTHING) -> Any:
        return self._children.ask(self._workspace, lambda child: child.evaluate(expression, scope, unparsed))
