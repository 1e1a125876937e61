"""The context of a running module: it describes the run, and takes progress and costs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from windlass.sdk.encoding import encoded
from windlass.sdk.errors import CircuitOpenError, PermanentError

MESSAGE_CHARACTERS_MAX = 1_024
TARGET_CHARACTERS_MAX = 255
# Every change of a cursor is journalled.
CURSOR_BYTES_MAX = 64 * 1024


@dataclass(slots=True)
class Context:
    """One run, as its module sees it. The runner makes a new one for each attempt."""

    execution_id: str
    run_id: str
    workflow: str
    node: str
    # Counts from 1.
    attempt: int
    # The same in all attempts at this work. Hand it to third parties, so that they can deduplicate.
    effect_key: str
    # An earlier attempt was granted and may have had its effect.
    may_have_run_before: bool
    # The time at which this attempt ends at the latest, by this machine's clock: its node's timeout (24 hours if it has
    # none) or its execution's deadline, whichever comes first.
    deadline: datetime
    # The last cursor that a heartbeat of an earlier attempt reported; None when there is none.
    cursor: Any
    # Each line names the run.
    log: logging.Logger | logging.LoggerAdapter[logging.Logger]
    # Evaluates an expression over input, state, nodes and execution; raises PermanentError on a missing path. It blocks
    # when the expression could grow (docs/definitions.md, Templates): an async module calls it in a thread, by
    # `await asyncio.to_thread(ctx.evaluate, expression)`.
    evaluate: Callable[[str], Any]
    # W3C traceparent of `run.execute`, "" when the execution is not sampled.
    traceparent: str = ""
    # True once the run was cancelled or has lost its lease. The module should stop: its result would be refused.
    cancelled: bool = False
    cost_tokens: int = 0
    progress: float = 0.0
    message: str = ""
    # JSON of the last cursor of this attempt; empty before the first.
    told_cursor: bytes = b""
    # Rises with every heartbeat, so that the runner sends each only once.
    heartbeats: int = 0
    # The permission to end this run, and whether `defer` gave it out.
    completion_token: str = field(default="", repr=False)
    deferred: bool = False
    # The targets of this module whose circuits are open.
    open_targets: Collection[str] = ()
    # The target that was named last; "" if none was, or if it was not called after all.
    called: str = ""
    # The first target that was named has an open circuit, so the run is handed back.
    is_held_back: bool = False

    async def heartbeat(self, progress: float | None = None, message: str | None = None, cursor: Any = None) -> None:
        """Report progress; what is left out stays as it was. It travels with the runner's next beat, and the next
        attempt gets the last cursor.

        Raises PermanentError for a cursor that is not JSON or is over 64 KiB."""
        self.tell(progress, message, cursor)

    def tell(self, progress: float | None = None, message: str | None = None, cursor: Any = None) -> None:
        """The same as `heartbeat`, for plain functions."""
        told_cursor = self.told_cursor if cursor is None else _as_cursor(cursor)
        if progress is not None:
            self.progress = min(1.0, max(0.0, progress))
        if message is not None:
            self.message = str(message)[:MESSAGE_CHARACTERS_MAX]
        self.told_cursor = told_cursor
        self.heartbeats += 1

    def defer(self) -> str:
        """Leave the work to somebody else, and return the token with which they say how it ended: by `CompleteRun`,
        `FailRun` and `HeartbeatRun` of the API, or by `windlass run complete`.

        The token names this run and is the whole permission, so hand it only to whoever does the work. When the module
        returns, its place becomes free, and what it returns is ignored. The run goes on until it is answered or the
        node's timeout is over. If the module raises, the run fails as any other does, and the token is void."""
        if not self.completion_token:
            raise PermanentError("this runner's coordinator gives out no completion tokens", type="CANNOT_DEFER")
        self.deferred = True
        return self.completion_token

    def target(self, name: str) -> None:
        """Name what the module is about to call, like "crm" or "db.example.org:5432", before it is called. Its circuit
        counts how the run ends (docs/circuits.md).

        Raises CircuitOpenError while the circuit is open. Let it pass: then the run is handed back, and the work waits
        without an attempt. Raises PermanentError for a name that is empty, over 255 characters, or not printable."""
        if not 0 < len(name) <= TARGET_CHARACTERS_MAX or not name.isprintable():
            raise PermanentError(f"a target is named by printable text, not by {name!r:.64}", type="INVALID_TARGET")
        is_first, self.called = not self.called, name
        if name in self.open_targets:
            self.is_held_back = is_first
            raise CircuitOpenError(f"the circuit of {name} is open")

    def cost(self, tokens: int) -> None:
        """Add to what this run has cost."""
        self.cost_tokens += tokens


def _as_cursor(cursor: Any) -> bytes:
    """Encode the cursor at once: the module may change it later, and sees here whether it is wrong."""
    data = encoded(cursor, "the cursor", "CURSOR_NOT_JSON")
    if len(data) > CURSOR_BYTES_MAX:
        raise PermanentError(f"the cursor is over {CURSOR_BYTES_MAX} bytes", type="CURSOR_TOO_LARGE")
    return data
