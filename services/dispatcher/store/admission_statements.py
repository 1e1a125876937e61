"""The statements of a batch. They run in one transaction, in the order of this file, each with its own snapshot.

The first one is LOCK_WORKSPACES (slots.py), which makes the limit exact. The last ones are the claims
(claim_statements.py).

The statements are raw, with numbered parameters, because the driver parses statements of more than 4 KiB at each use.
`state + 0` stands where rows are found by id: it keeps the planner from the partial indexes, which look small to old
statistics and would be scanned for each id.

Locks are always taken in this order: tenants by name, then rows of the queue by id.
"""

from typing import Final

from services.dispatcher.store.slots import FREE_SLOTS

# The epoch is tested in the statement that deletes. A row that a message may reopen stays (leases.py).
FINISH: Final = b"""
WITH report AS MATERIALIZED (
  SELECT * FROM unnest($1::text[]::uuid[], $2) WITH ORDINALITY AS t (execution_id, epoch, n)
), gone AS (
  DELETE FROM dispatcher.queue q USING report t
  WHERE q.execution_id = t.execution_id AND q.epoch = t.epoch AND q.state + 0 IN (2, 3) AND NOT q.reopens
  RETURNING t.n, q.workspace, q.execution_id
), unread AS (
  DELETE FROM dispatcher.mailbox m USING gone WHERE m.execution_id = gone.execution_id
)
SELECT n::int4, workspace FROM gone
"""

# $3: microseconds from now. Only what is in the journal can be parked. granted_time stays, because WAKE_PARKED compares
# the messages with it. What is parked goes on later, also if it was granted to be ended alone: it needs a slot then. If
# that was for a deadline, its journal has a later one, by which its coordinator ends it once it has a slot.
PARK: Final = b"""
WITH report AS MATERIALIZED (
  SELECT * FROM unnest($1::text[]::uuid[], $2, $3) WITH ORDINALITY AS t (execution_id, epoch, left_us, n)
)
UPDATE dispatcher.queue q
SET state = 4, urgent = true, ends_only = false, begun = true, holder = NULL,
    deadline_time = CASE WHEN q.ends_only AND q.deadline_time <= clock_timestamp() THEN NULL ELSE q.deadline_time END,
    wake_time = clock_timestamp() + t.left_us * interval '1 microsecond'
FROM report t
WHERE q.execution_id = t.execution_id AND q.epoch = t.epoch AND q.state + 0 IN (2, 3)
RETURNING t.n::int4, q.workspace
"""

# PARK has locked the rows: a message is either visible now, or its sender finds the row PARKED.
# A message older than the grant was sent with it, and the holder did not understand it. The row is not woken at once
# for such a message: it would be granted and parked in an endless loop until a newer coordinator takes it. But if the
# holder has seen other messages ($3), this one may have had no room in the grant, and each grant leaves fewer of them.
# And a message that is hardly older may have been committed while the claim was reading, which did not see it then. So
# it rests only for a moment.
WAKE_PARKED: Final = b"""
WITH seen AS (
  DELETE FROM dispatcher.mailbox WHERE message_id = ANY($1)
), unseen AS MATERIALIZED (
  SELECT p.execution_id,
         coalesce(p.wake_time <= clock_timestamp(), false)
           OR coalesce(bool_or(m.create_time >= p.granted_time), false)
           OR p.execution_id = ANY($3::text[]::uuid[]) AND count(m.message_id) > 0 AS is_due,
         CASE WHEN max(m.create_time) >= p.granted_time - interval '5 seconds'
              THEN interval '0.2 seconds' ELSE interval '30 seconds' END AS rest
  FROM dispatcher.queue p
  LEFT JOIN dispatcher.mailbox m ON m.execution_id = p.execution_id AND NOT m.message_id = ANY($1)
  WHERE p.execution_id = ANY($2::text[]::uuid[]) AND p.state + 0 = 4
  GROUP BY p.execution_id
  HAVING p.wake_time <= clock_timestamp() OR count(m.message_id) > 0
)
UPDATE dispatcher.queue q
SET state = CASE WHEN u.is_due THEN 1 ELSE 4 END,
    wake_time = CASE WHEN u.is_due THEN clock_timestamp()
                     ELSE least(q.wake_time, clock_timestamp() + u.rest) END
FROM unseen u WHERE q.execution_id = u.execution_id AND q.state + 0 = 4
RETURNING CASE WHEN u.is_due THEN q.workspace END
"""

# Rows of two kinds: (0, n, outcome, epoch, existing id) of an item, (1, tenant, free, queued, …) of a tenant.
# A new start goes ahead at once (is_direct) when a holder is offered, a slot is free and no execution waits before it.
# Times in the rows are the database's: now() is the begin of the transaction, and no grant was sent before that.
ADMIT: Final = f"""
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::text[]::uuid[], $2, $3, $4, $5,
                       $6, $7, $8)
  WITH ORDINALITY AS i (execution_id, tenant, priority, deadline_time, request_id, hash, start, holder_index, n)
), tenant AS MATERIALIZED (
  SELECT l.tenant, t.workspace, t.closed, t.executions_max, t.queued_max, {FREE_SLOTS},
         EXISTS (
           SELECT 1 FROM dispatcher.queue w WHERE w.workspace = t.workspace AND w.state = 1 AND NOT w.ends_only
         ) AS has_waiting,
         CASE WHEN l.known IS NOT NULL THEN l.known ELSE (
           SELECT count(*) FROM (
             SELECT 1 FROM dispatcher.queue w
             WHERE w.workspace = t.workspace AND w.state = 1 AND NOT w.ends_only LIMIT t.queued_max
           ) counted
         ) END AS queued
  FROM unnest($9, $10) WITH ORDINALITY AS l (workspace, known, tenant)
  JOIN dispatcher.tenants t USING (workspace)
), judged AS MATERIALIZED (
  SELECT i.*, l.workspace, l.free, l.has_waiting, l.queued, l.queued_max, r.execution_id AS existing,
         CASE WHEN r.execution_id = i.execution_id THEN 1
              WHEN r.hash = i.hash THEN 2
              WHEN r.execution_id IS NOT NULL THEN 3
              WHEN EXISTS (SELECT 1 FROM dispatcher.queue q WHERE q.execution_id = i.execution_id) THEN 1
              WHEN l.closed THEN 5
              ELSE 0 END AS verdict
  FROM item i JOIN tenant l USING (tenant)
  LEFT JOIN dispatcher.requests r ON r.workspace = l.workspace AND r.request_id = i.request_id
), ranked AS MATERIALIZED (
  SELECT j.*, j.verdict = 0 AND j.holder_index >= 0 AND NOT j.has_waiting AND row_number() OVER (
           PARTITION BY j.tenant, j.verdict = 0 AND j.holder_index >= 0 ORDER BY j.n
         ) <= j.free AS is_direct
  FROM judged j
), placed AS MATERIALIZED (
  SELECT r.*, row_number() OVER (PARTITION BY r.tenant, r.verdict = 0, r.is_direct ORDER BY r.n) AS nth FROM ranked r
), admitted AS MATERIALIZED (
  SELECT p.*, CASE WHEN p.verdict > 0 THEN p.verdict
                   WHEN p.is_direct OR p.queued + p.nth <= p.queued_max THEN 1
                   ELSE 4 END AS outcome,
         CASE WHEN p.is_direct THEN nextval('dispatcher.epochs') ELSE 0 END AS epoch
  FROM placed p
), kept AS (
  INSERT INTO dispatcher.queue (execution_id, workspace, state, priority, epoch, holder, enqueue_time, granted_time,
                                deadline_time, request_id, start)
  SELECT a.execution_id, a.workspace, CASE WHEN a.is_direct THEN 2 ELSE 1 END, a.priority, a.epoch,
         CASE WHEN a.is_direct THEN ($11::text[])[a.holder_index + 1] END, now(),
         CASE WHEN a.is_direct THEN now() END, a.deadline_time, a.request_id, a.start
  FROM admitted a WHERE a.verdict = 0 AND a.outcome = 1
), asked AS (
  INSERT INTO dispatcher.requests (workspace, request_id, hash, execution_id)
  SELECT a.workspace, a.request_id, a.hash, a.execution_id
  FROM admitted a WHERE a.verdict = 0 AND a.outcome = 1 AND a.request_id IS NOT NULL
)
SELECT 0::int4, a.n::int4, a.outcome::int4, a.epoch::int8,
       CASE WHEN a.verdict IN (2, 3) THEN a.existing::text END, NULL::int4, NULL::bool,
       CASE WHEN a.is_direct THEN (extract(epoch FROM now()) * 1000000)::int8 END
FROM admitted a
UNION ALL
SELECT 1, l.tenant::int4, l.free, l.queued, NULL, l.executions_max, l.has_waiting, NULL FROM tenant l
""".encode()
