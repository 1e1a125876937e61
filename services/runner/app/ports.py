"""The Protocols that the worker needs; `peers/` and `store/` implement them."""

from __future__ import annotations

from typing import Protocol

from services.runner.core.job import Ended, RunLease, StoredOutput


class Holder(Protocol):
    """The lease session."""

    def may_start(self) -> bool: ...

    def has_demand(self) -> bool:
        """True when work waits for a place."""
        ...

    def set_capacity(self, capacity: int, /) -> None: ...

    def report(self, ended: Ended, /) -> None: ...


class Outputs(Protocol):
    """Keeps outputs that are too large for a report."""

    async def put(self, value: bytes, lease: RunLease) -> StoredOutput:
        """Keep the output of this run, which is durable on return. Raises OSError."""
        ...

    async def get(self, ref: StoredOutput) -> bytes:
        """Raises OutputMissing."""
        ...
