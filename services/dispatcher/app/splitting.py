"""Commit a batch, and split it when the database refuses something in it.

The batch is split until the item or the workspace at fault stands alone. A new start at fault is rejected; a report at
fault is returned in `refused_reports`, a workspace in `refused_workspaces`. Everything else is committed.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.chassis.telemetry.logs import logger
from services.dispatcher.app.ports import AdmissionStore, Unstorable
from services.dispatcher.core.batch import AdmissionBatch, BatchResult
from services.dispatcher.core.items import Admission, EnqueueOutcome, LeaseFinished, LeaseParked, NewStart

log = logger(__name__)


async def commit(store: AdmissionStore, batch: AdmissionBatch) -> BatchResult:
    if batch.is_empty:
        return BatchResult()
    try:
        return await store.commit(batch)
    except Unstorable as failure:
        if batch.items <= 1 and not batch.is_claiming:
            return _reject(batch, failure)
    if batch.is_claiming:
        result = await commit(store, batch.without_claims())
        result.join(await _claim_apart(store, batch))
        return result
    first, second = batch.halves()
    result = await commit(store, first)
    result.join(await commit(store, second))
    return result


async def _claim_apart(store: AdmissionStore, batch: AdmissionBatch) -> BatchResult:
    """Claim from each workspace in its own transaction, for the holders that earlier claims have left."""
    result = BatchResult()
    indexes = list(batch.claim_holders)
    for workspace in batch.workspaces:
        try:
            claimed = await store.commit(batch.claim_of(workspace, indexes))
        except Unstorable as failure:
            log.error("nothing can be claimed from a workspace", workspace=workspace, error=str(failure))
            result.refused_workspaces.append(workspace)
            continue
        for claim in claimed.claims:
            indexes.remove(claim.holder_index)
        result.join(claimed)
    if batch.ending_holders:
        try:
            result.join(await store.commit(batch.claim_of_ending()))
        except Unstorable as failure:
            log.error("executions that will only be ended cannot be claimed", error=str(failure))
            result.is_ending_refused = True
    return result


def _reject(batch: AdmissionBatch, failure: Unstorable) -> BatchResult:
    """The result of the one item that cannot be stored."""
    items: Sequence[NewStart | LeaseFinished | LeaseParked] = (*batch.new_starts, *batch.finished, *batch.parked)
    for each in items:
        log.error("error processing item", execution_id=each.execution_id, error=str(failure))
    rejected = Admission(EnqueueOutcome.REJECTED, message="this item cannot be stored")
    return BatchResult(
        admissions=[rejected for _ in batch.new_starts], refused_reports=[*batch.finished, *batch.parked]
    )
