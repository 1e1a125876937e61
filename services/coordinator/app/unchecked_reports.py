"""Reports of stored outputs, which wait until the output store has answered for their outputs.

They are by execution, so that they go along when it is given away: its next holder may reach the store. A report stays
here until it is settled, so none is lost while the store is slow or away. A report that the store gave no answer for is
put off, and comes up again with all others that were.

Their number has no limit of its own, because each report counts for a limit of whoever brought it until it is answered:
the room of its stream and its key (services/chassis/session/room.py), or the mailbox of its execution. The same report
waits once, however often it is repeated. The newest repeat is kept, because the stream of an older one may be gone.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias

from services.chassis.process.batcher import Level
from services.chassis.telemetry.metrics import gauge
from services.coordinator.app.owned_execution import Input, OwnedExecution

PUT_OFF_SECONDS: Final = 2.0

_waiting = gauge("coordinator_unchecked_reports", "Reports of stored outputs that wait for the output store.")

_Key: TypeAlias = tuple[str, ...]


class UncheckedReports:
    """`level` wakes the output checker."""

    def __init__(self) -> None:
        self.level = Level()
        self._inputs: dict[OwnedExecution, dict[_Key, Input]] = {}
        # Those of which something can be checked now, oldest first, and those to which the store gave no answer.
        self._due: dict[OwnedExecution, None] = {}
        self._put_off: set[OwnedExecution] = set()

    def add(self, owned: OwnedExecution, input_: Input) -> None:
        inputs = self._inputs.setdefault(owned, {})
        _waiting.inc(_key(input_) not in inputs)
        inputs[_key(input_)] = input_
        self._wake(owned)

    def take(self, count: int) -> list[tuple[OwnedExecution, Input]]:
        """The oldest, about so many, with all of their executions. They stay until they are settled."""
        taken: list[tuple[OwnedExecution, Input]] = []
        while self._due and len(taken) < count:
            owned = next(iter(self._due))
            del self._due[owned]
            taken += [(owned, input_) for input_ in self._inputs.get(owned, {}).values()]
        return taken

    def settle(self, owned: OwnedExecution, input_: Input) -> bool:
        """The store has answered. False: the report has gone, or another one stands in its place and is not checked."""
        inputs = self._inputs.get(owned, {})
        if inputs.get(_key(input_)) is not input_:
            return False
        del inputs[_key(input_)]
        if not inputs:
            del self._inputs[owned]
        _waiting.dec()
        return True

    @property
    def are_put_off(self) -> bool:
        return bool(self._put_off)

    def put_off(self, owned: OwnedExecution) -> None:
        if not self._put_off:
            asyncio.get_running_loop().call_later(PUT_OFF_SECONDS, self._come_again)
        self._put_off.add(owned)

    def drop(self, owned: OwnedExecution) -> list[Input]:
        """Forget the execution, and return its reports."""
        inputs = self._inputs.pop(owned, None)
        if inputs is None:
            return []
        self._due.pop(owned, None)
        self._put_off.discard(owned)
        _waiting.dec(len(inputs))
        return list(inputs.values())

    def _come_again(self) -> None:
        put_off, self._put_off = self._put_off, set()
        for owned in put_off & self._inputs.keys():
            self._wake(owned)

    def _wake(self, owned: OwnedExecution) -> None:
        self._due.setdefault(owned)
        self.level.set()


def _key(input_: Input) -> _Key:
    """The same for each repeat of a report."""
    report = input_.source.report
    return (input_.source.message_id,) if report is None else (report.instance_id, report.lease_id, report.report_id)
