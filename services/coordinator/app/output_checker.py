"""Checks the outputs that runners report as kept in the output store, before the reports count.

A journalled reference is shown to users and given to the templates of other nodes, so it has to name a value of the
execution's own workspace that is there and is as large as reported. The value also has to be of the execution's month,
because the store keeps it as long as the executions of that month. The hash is checked at each read. A report with any
other reference becomes a failure of its run. The name is judged at once, and the disk is asked off the event loop, for
many outputs in one call.

Only an answer of the store makes a run fail. While the store is away or cannot be read, the reports wait
(unchecked_reports.py), and their runs stay with their runners. All other reports go on meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from typing import Final, TypeAlias

from services.chassis.blobs import is_blob_of, month_of
from services.chassis.telemetry.logs import logger
from services.coordinator.app.owned_execution import Input, OwnedExecution
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.core.commands import ReportFailure, ReportOfEnd, ReportSuccess
from services.coordinator.core.values import Error, ErrorClass, OutputRef

log = logger(__name__)

_BATCH: Final = 200
# A store that takes longer to answer is named in the log, again and again.
_SLOW_SECONDS: Final = 10.0
# One answer, so that nobody learns which outputs other workspaces have.
_MISSING: Final = Error(ErrorClass.PERMANENT, "OUTPUT_REF_INVALID", "no such output is stored for this execution")

_Unchecked: TypeAlias = tuple[OwnedExecution, Input]
# The size of each value of the store by its key, or why it cannot be told: FileNotFoundError if it is not there, any
# other OSError if the store does not say.
Sizes = Callable[[Sequence[str]], Awaitable[Sequence[int | OSError]]]


class OutputChecker:
    def __init__(self, executions: OwnedExecutions, sizes: Sizes) -> None:
        self._executions = executions
        self._unchecked = executions.unchecked
        self._sizes = sizes

    async def run(self) -> None:
        while True:
            await self._unchecked.level.wait()
            while batch := self._unchecked.take(_BATCH):
                await self._check(self._named_rightly(batch))

    def _named_rightly(self, batch: Sequence[_Unchecked]) -> list[_Unchecked]:
        """Settle the reports that name a value of somebody else, and return the others."""
        right: list[_Unchecked] = []
        for owned, input_ in batch:
            if _is_own(_ref_of(input_), owned):
                right.append((owned, input_))
            else:
                self._settle(owned, input_, _MISSING)
        return right

    async def _check(self, batch: Sequence[_Unchecked]) -> None:
        keys = list({_ref_of(input_).key for _, input_ in batch})
        sizes = dict(zip(keys, await self._answered(keys), strict=True))
        silent = [(owned, size) for owned, input_ in batch if _is_silent(size := sizes[_ref_of(input_).key])]
        if silent and not self._unchecked.are_put_off:
            log.warning("the output store is away, so reports wait", reports=len(silent), error=str(silent[0][1]))
        for owned, _ in silent:
            self._unchecked.put_off(owned)
        for owned, input_ in batch:
            ref = _ref_of(input_)
            size = sizes[ref.key]
            if isinstance(size, int):
                self._settle(owned, input_, _ref_error(ref, size))
            elif not _is_silent(size):
                self._settle(owned, input_, _MISSING)

    async def _answered(self, keys: Sequence[str]) -> Sequence[int | OSError]:
        """Waits for as long as the store takes, because a call that waits for a disk cannot be given up."""
        asking = asyncio.ensure_future(self._sizes(keys))
        try:
            while not (await asyncio.wait([asking], timeout=_SLOW_SECONDS))[0]:
                log.warning("the output store does not answer, so reports wait", outputs=len(keys))
        finally:
            asking.cancel()
        return asking.result()

    def _settle(self, owned: OwnedExecution, input_: Input, error: Error | None) -> None:
        if error is not None:
            log.warning("a reported output is refused", execution_id=owned.execution_id, error=error.message)
        self._executions.checked(owned, input_, input_ if error is None else _failure(input_, error))


def _ref_of(input_: Input) -> OutputRef:
    assert isinstance(input_.command, ReportSuccess)
    assert isinstance(input_.command.output, OutputRef)
    return input_.command.output


def _is_own(ref: OutputRef, owned: OwnedExecution) -> bool:
    return is_blob_of(ref, owned.start.origin.workspace, month_of(owned.execution_id))


def _is_silent(size: int | OSError) -> bool:
    """The store has not said whether the value is there."""
    return isinstance(size, OSError) and not isinstance(size, FileNotFoundError)


def _ref_error(ref: OutputRef, size: int) -> Error | None:
    message = f"the stored output has {size} bytes, not {ref.size_bytes}"
    return None if size == ref.size_bytes else Error(ErrorClass.PERMANENT, "OUTPUT_REF_INVALID", message)


def _failure(input_: Input, error: Error) -> Input:
    facts = {each.name: getattr(input_.command, each.name) for each in fields(ReportOfEnd)}
    # It is no failure of what the work called.
    facts["target"] = ""
    return input_._replace(command=ReportFailure(**facts, error=error, random=random.random()))
