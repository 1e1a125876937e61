"""What a running module knows of its run, and what it can say while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from windlass.sdk.encoding import NotJson, encoded
from windlass.sdk.errors import PermanentError

MESSAGE_CHARACTERS_MAX = 1_024
# It is journalled whenever it changes.
CURSOR_BYTES_MAX = 64 * 1024


@dataclass(slots=True)
class Context:
    """One run, as its module sees it. Made by the runner, one for each attempt."""

    execution_id: str
    run_id: str
    workflow: str
    node: str
    # From 1.
    attempt: int
    # Equal over all attempts at this work: hand it to third parties, so that they can deduplicate.
    effect_key: str
    # An earlier attempt was granted and may have had its effect.
    may_have_run_before: bool
    # When this attempt is over at the latest, by this machine's clock: at its node's timeout or at its execution's
    # deadline, whichever comes first; None: neither is set.
    deadline: datetime | None
    # As last told by a heartbeat of an earlier attempt; None on the first.
    cursor: Any
    # Its lines say which run they are of.
    log: logging.Logger | logging.LoggerAdapter[logging.Logger]
    # Evaluates an expression over input, state, nodes and execution; raises PermanentError on a missing path. It blocks
    # when the expression could grow (docs/definitions.md, Templates): an async module awaits it in a thread, by
    # `asyncio.to_thread(ctx.evaluate, expression)`.
    evaluate: Callable[[str], Any]
    # W3C traceparent of `run.execute`, "" when the execution is not sampled.
    traceparent: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    # True once the run was cancelled or its lease is gone: stop, what comes after is refused.
    cancelled: bool = False
    cost_tokens: int = 0
    progress: float = 0.0
    message: str = ""
    # JSON; empty: none was told.
    told_cursor: bytes = b""
    # Rises with every heartbeat, so that the runner sends each only once.
    heartbeats: int = 0

    async def heartbeat(
        self, progress: float | None = None, message: str | None = None, cursor: Any = None
    ) -> None:
        """Say how far it is; what is left out stays as it was. Travels with the runner's next beat; the next attempt is
        given the last cursor.

        Raises PermanentError for a cursor that is no JSON or over 64 KiB."""
        self.tell(progress, message, cursor)

    def tell(self, progress: float | None = None, message: str | None = None, cursor: Any = None) -> None:
        """`heartbeat` for plain functions."""
        told_cursor = self.told_cursor if cursor is None else _as_cursor(cursor)
        if progress is not None:
            self.progress = min(1.0, max(0.0, progress))
        if message is not None:
            self.message = str(message)[:MESSAGE_CHARACTERS_MAX]
        self.told_cursor = told_cursor
        self.heartbeats += 1

    def cost(self, tokens: int) -> None:
        """Add to what this run has cost."""
        self.cost_tokens += tokens


def _as_cursor(cursor: Any) -> bytes:
    """Encoded where the module can be told of its mistake, and as it is now: it may go on changing it."""
    try:
        data = encoded(cursor)
    except NotJson as fault:
        raise PermanentError(f"the cursor is not JSON: {fault}", type="CURSOR_NOT_JSON") from None
    if len(data) > CURSOR_BYTES_MAX:
        raise PermanentError(f"the cursor is over {CURSOR_BYTES_MAX} bytes", type="CURSOR_TOO_LARGE")
    return data
