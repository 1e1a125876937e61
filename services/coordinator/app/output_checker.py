"""Checks the outputs that runners report as kept in the output store, before the reports count.

A journalled reference is shown to users and given to the templates of other nodes, so it has to name a value of the
execution's own workspace that is there and is as large as reported. The value also has to be of the execution's month,
because the store keeps it as long as the executions of that month. The hash is checked at each read. A report with any
other reference becomes a failure of its run. The name is judged at once, and the disk is asked off the event loop, for
many outputs in one call.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from typing import Final

from services.chassis.blobs import is_blob_of, month_of
from services.chassis.telemetry.logs import logger
from services.coordinator.app.owned_execution import Input, OwnedExecution
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.core.commands import ReportFailure, ReportOfEnd, ReportSuccess
from services.coordinator.core.values import Error, ErrorClass, OutputRef

log = logger(__name__)

_BATCH: Final = 200

# The size of each value of the store by its key, or why it cannot be told.
Sizes = Callable[[Sequence[str]], Awaitable[Sequence[int | OSError]]]


class OutputChecker:
    def __init__(self, executions: OwnedExecutions, sizes: Sizes) -> None:
        self._executions = executions
        self._sizes = sizes

    async def run(self) -> None:
        executions = self._executions
        while True:
            await executions.unchecked_level.wait()
            while batch := executions.unchecked[:_BATCH]:
                del executions.unchecked[:_BATCH]
                await self._check(batch)

    async def _check(self, batch: Sequence[tuple[OwnedExecution, Input]]) -> None:
        refs = [_ref_of(input_) for _, input_ in batch]
        is_own = [_is_own(ref, owned) for ref, (owned, _) in zip(refs, batch, strict=True)]
        keys = {ref.key for ref, own in zip(refs, is_own, strict=True) if own}
        sizes = dict(zip(keys, await self._sizes(list(keys)), strict=True))
        for (owned, input_), ref, own in zip(batch, refs, is_own, strict=True):
            error = _ref_error(ref, sizes[ref.key] if own else FileNotFoundError())
            if error is not None:
                log.warning("a reported output is refused", execution_id=owned.execution_id, error=error.message)
            self._executions.checked(owned, input_ if error is None else _failure(input_, error))


def _ref_of(input_: Input) -> OutputRef:
    assert isinstance(input_.command, ReportSuccess)
    assert isinstance(input_.command.output, OutputRef)
    return input_.command.output


def _is_own(ref: OutputRef, owned: OwnedExecution) -> bool:
    return is_blob_of(ref, owned.start.origin.workspace, month_of(owned.execution_id))


def _ref_error(ref: OutputRef, size: int | OSError) -> Error | None:
    match size:
        case int():
            message = f"the stored output has {size} bytes, not {ref.size_bytes}"
            return None if size == ref.size_bytes else Error(ErrorClass.PERMANENT, "OUTPUT_REF_INVALID", message)
        case FileNotFoundError():
            # One answer, so that nobody learns which outputs other workspaces have.
            return Error(ErrorClass.PERMANENT, "OUTPUT_REF_INVALID", "no such output is stored for this execution")
        case _:
            return Error(ErrorClass.TRANSIENT, "OUTPUT_STORE", f"the output cannot be looked up: {size.strerror}")


def _failure(input_: Input, error: Error) -> Input:
    facts = {each.name: getattr(input_.command, each.name) for each in fields(ReportOfEnd)}
    # It is no failure of what the work called.
    facts["target"] = ""
    return input_._replace(command=ReportFailure(**facts, error=error, random=random.random()))
