"""The promises that span the services: about what was requested, queued, held and journalled.

A request key is forgotten after the days for which its answer is promised. So two executions may have the same key if
they were requested longer apart than that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from deploy.audit.findings import Findings
from deploy.audit.journals import AuditedGrant

Fetch = Callable[[str], Awaitable[list[tuple[Any, ...]]]]
Check = Callable[[str, bool, str], None]

# The time that the public contract promises. A dispatcher may be configured for less.
_KEYS_KEPT: Final = "interval '30 days'"

# A request is stored by the commit that acknowledged it. Its execution is in the queue until it is journalled, and
# among the executions from then on; while it waits again, it is in both.
_REQUESTS: Final = """
SELECT r.workspace, r.request_id, r.execution_id::text,
    q.execution_id IS NOT NULL OR e.execution_id IS NOT NULL,
    coalesce(nullif(e.request_id, ''), q.request_id), coalesce(e.workspace, q.workspace)
FROM dispatcher.requests r
LEFT JOIN dispatcher.queue q ON q.execution_id = r.execution_id
LEFT JOIN coordinator.executions e ON e.execution_id = r.execution_id
"""
_KEYS: Final = f"""
SELECT workspace, request_id, array_agg(id::text ORDER BY asked_time),
    coalesce(bool_or(asked_time - before_time < {_KEYS_KEPT}), false)
FROM (
    SELECT workspace, request_id, id, asked_time,
        lag(asked_time) OVER (PARTITION BY workspace, request_id ORDER BY asked_time) AS before_time
    FROM (
        SELECT workspace, request_id, execution_id AS id, create_time AS asked_time
        FROM coordinator.executions WHERE request_id <> ''
        UNION ALL
        SELECT q.workspace, q.request_id, q.execution_id, q.enqueue_time FROM dispatcher.queue q
        WHERE q.request_id IS NOT NULL
            AND NOT EXISTS (SELECT FROM coordinator.executions e WHERE e.execution_id = q.execution_id)
    ) asked
) each GROUP BY workspace, request_id
"""
_QUEUED: Final = """
SELECT q.execution_id::text, q.workspace, q.state IN (2, 3), q.epoch, s.holder, e.workspace, e.epoch,
    (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM dispatcher.epochs)
FROM dispatcher.queue q
LEFT JOIN coordinator.executions e ON e.execution_id = q.execution_id
LEFT JOIN dispatcher.coordinator_sessions s ON s.instance_id = q.holder
"""
# Executions that could not be admitted, and about which a person has decided. One that is queued again has no decision.
_RESOLVED: Final = "SELECT execution_id::text, state FROM dispatcher.queue WHERE resolution IS NOT NULL"
_FAILED: Final = 5
# All executions that are going now were going when the newest of them was granted. So that grant found a limit that
# allows all of them: the present limit, unless it was lowered since.
_GOING: Final = """
SELECT t.workspace, count(*)::int, t.executions_max, max(q.epoch) < t.lowered_epoch FROM dispatcher.tenants t
JOIN dispatcher.queue q ON q.workspace = t.workspace AND q.state IN (2, 3) AND NOT q.ends_only
GROUP BY t.workspace
"""


async def judge(fetch: Fetch, holders: Mapping[str, AuditedGrant], findings: Findings) -> None:
    """`holders` are the newest grants of the executions that are not final, by their journals."""
    check = findings.check
    for row in await fetch(_REQUESTS):
        _judge_request(check, row)
    for workspace, key, ids, is_doubled in await fetch(_KEYS):
        check("S14", not is_doubled, f"{ids} of {workspace} have request_id {key}")
    for row in await fetch(_QUEUED):
        _judge_lease(check, holders.get(row[0]), row)
    for id_, state in await fetch(_RESOLVED):
        check("S16", state == _FAILED, f"{id_} was discarded, and is queued again")
    for workspace, going, limit, is_older in await fetch(_GOING):
        check("S13", going <= limit or is_older, f"{workspace} has {going} going, {limit} are allowed")


def _judge_request(check: Check, row: tuple[Any, ...]) -> None:
    workspace, key, id_, is_known, asked_key, asked_workspace = row
    check("S4", is_known, f"{id_} was acknowledged and is nowhere")
    if is_known:
        check("S12", asked_workspace == workspace, f"{key} of {workspace} asked for one of {asked_workspace}")
        check("S5", asked_key == key, f"{key} is answered with {id_}, which {asked_key} asked for")


def _judge_lease(check: Check, written: AuditedGrant | None, row: tuple[Any, ...]) -> None:
    id_, workspace, is_held, epoch, holder, journal_workspace, fence, minted = row
    check("S3", epoch <= minted, f"{id_} was granted under {epoch}, and {minted} is the newest")
    if fence is not None:
        check("S3", fence <= epoch, f"{id_} is fenced at {fence}, and {epoch} is its newest grant")
        same = journal_workspace == workspace
        check("S12", same, f"{id_} is queued in {workspace}, journalled in {journal_workspace}")
    if is_held and written is not None and written.epoch == epoch and holder is not None:
        check("S11", written.holder == holder, f"{id_}: {holder} has {epoch}, {written.holder} writes")
