"""What a running module knows of its run, and what it can say while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


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
    # When the runner gives up on this attempt; None without a timeout.
    deadline: datetime | None
    # As last told by a heartbeat of an earlier attempt; None on the first.
    cursor: Any
    log: logging.Logger
    # Evaluates an expression over input, state, nodes and execution; raises PermanentError on a missing path.
    evaluate: Callable[[str], Any]
    # W3C traceparent of `run.execute`, "" when the execution is not sampled.
    traceparent: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    # True once the run was cancelled or its lease is gone: stop, what comes after is refused.
    cancelled: bool = False
    cost_tokens: int = 0
    progress: float = 0.0
    message: str = ""
    told_cursor: Any = None
    # Rises with every heartbeat, so that the runner sends each only once.
    heartbeats: int = 0

    async def heartbeat(self, progress: float = 0.0, message: str = "", cursor: Any = None) -> None:
        """Say how far it is. Travels with the runner's next beat; the next attempt is given the last cursor."""
        self.tell(progress, message, cursor)

    def tell(self, progress: float = 0.0, message: str = "", cursor: Any = None) -> None:
        """`heartbeat` for plain functions."""
        self.progress = min(1.0, max(0.0, progress))
        self.message = message[:1024]
        if cursor is not None:
            self.told_cursor = cursor
        self.heartbeats += 1

    def cost(self, tokens: int) -> None:
        """Add to what this run has cost."""
        self.cost_tokens += tokens
