"""The claim: queued executions are granted to coordinators. These statements follow the others of a batch.

admission_statements.py explains their form and the order of their locks. A start that finds a free slot and a holder
with credit at once is claimed by ADMIT there.
"""

from typing import Final

from services.dispatcher.core.mailbox_limits import CLAIM_BYTES_MAX, GRANT_BYTES_MAX
from services.dispatcher.store.slots import FREE_SLOTS

# The bytes of its mailbox that go with a claim. An empty mailbox is not read again.
_UNREAD_BYTES: Final = f"""
(SELECT least(coalesce(sum(octet_length(m.body)), 0), {GRANT_BYTES_MAX})::int4
 FROM dispatcher.mailbox m WHERE m.execution_id = c.execution_id) AS unread_bytes
"""
# The rows whose messages, together with those of the rows before them, fit into one batch: at least the first row.
_CARRIED: Final = f"""
SELECT t.* FROM (
  SELECT s.*, sum(s.unread_bytes) OVER (
           ORDER BY s.place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
         ) AS bytes_before
  FROM sized s
) t WHERE coalesce(t.bytes_before, 0) < {CLAIM_BYTES_MAX}
"""
# The oldest messages, up to the one that reaches the limit.
_MESSAGES: Final = f"""
CASE WHEN c.unread_bytes > 0 THEN (
  SELECT array_agg(o.body ORDER BY o.create_time, o.message_id) FROM (
    SELECT m.body, m.create_time, m.message_id, sum(octet_length(m.body)) OVER (
             ORDER BY m.create_time, m.message_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) AS bytes_before
    FROM dispatcher.mailbox m WHERE m.execution_id = c.execution_id
  ) o WHERE coalesce(o.bytes_before, 0) < {GRANT_BYTES_MAX}
) END AS messages
"""

_CLAIMED: Final = """
q.execution_id, q.execution_id::text AS id, q.workspace, q.epoch, q.start,
(extract(epoch FROM q.enqueue_time) * 1000000)::int8 AS enqueue_us,
(extract(epoch FROM q.granted_time) * 1000000)::int8 AS granted_us,
(extract(epoch FROM c.wake_time) * 1000000)::int8 AS wake_us,
c.epoch_before > 0 AS is_resumed, q.begun, c.unread_bytes
"""

# Rows of two kinds: a claim with the number of its tenant, or the counts of a tenant.
CLAIM: Final = f"""
WITH tenant AS MATERIALIZED (
  SELECT l.tenant, t.workspace, t.executions_max, {FREE_SLOTS}
  FROM unnest($1) WITH ORDINALITY AS l (workspace, tenant) JOIN dispatcher.tenants t USING (workspace)
), candidate AS MATERIALIZED (
  SELECT l.tenant, c.execution_id, c.epoch AS epoch_before, c.wake_time, row_number() OVER (
           PARTITION BY l.tenant ORDER BY c.urgent DESC, c.order_time, c.execution_id
         ) AS nth
  FROM tenant l CROSS JOIN LATERAL (
    SELECT q.execution_id, q.epoch, q.urgent, q.order_time, q.wake_time FROM dispatcher.queue q
    WHERE q.workspace = l.workspace AND q.state = 1 AND NOT q.ends_only
    ORDER BY q.urgent DESC, q.order_time, q.execution_id
    LIMIT least(l.free, $3) FOR UPDATE OF q SKIP LOCKED
  ) c
), sized AS MATERIALIZED (
  SELECT c.*, row_number() OVER (ORDER BY c.nth, c.tenant) AS place, {_UNREAD_BYTES} FROM (
    SELECT c.* FROM candidate c ORDER BY c.nth, c.tenant LIMIT cardinality($2)
  ) c
), chosen AS MATERIALIZED ({_CARRIED}
), claimed AS (
  UPDATE dispatcher.queue q
  SET state = 2, epoch = nextval('dispatcher.epochs'), holder = ($4::text[])[($2)[c.place] + 1],
      granted_time = now(), wake_time = NULL
  FROM chosen c WHERE q.execution_id = c.execution_id
  RETURNING c.tenant, c.place, {_CLAIMED}
), counted AS (
  SELECT k.tenant, count(*) AS candidates FROM candidate k GROUP BY k.tenant
)
SELECT c.tenant::int4, NULL::int4 AS free, NULL::int4 AS slots, NULL::int4 AS candidates,
       c.id, c.workspace, c.epoch, ($2)[c.place],
       c.start, c.enqueue_us, c.granted_us, c.wake_us, c.is_resumed, c.begun, {_MESSAGES}
FROM claimed c
UNION ALL
SELECT l.tenant::int4, l.free, l.executions_max, coalesce(n.candidates, 0)::int4,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM tenant l LEFT JOIN counted n USING (tenant)
""".encode()

# No lock on the workspace is needed: an execution that will only be ended takes no slot.
CLAIM_ENDING: Final = f"""
WITH sized AS MATERIALIZED (
  SELECT c.*, row_number() OVER () AS place, {_UNREAD_BYTES} FROM (
    SELECT q.execution_id, q.epoch AS epoch_before, q.wake_time FROM dispatcher.queue q
    WHERE q.state = 1 AND q.ends_only ORDER BY q.execution_id
    LIMIT cardinality($1) FOR UPDATE SKIP LOCKED
  ) c
), chosen AS MATERIALIZED ({_CARRIED}
), claimed AS (
  UPDATE dispatcher.queue q
  SET state = 2, epoch = nextval('dispatcher.epochs'), holder = ($2::text[])[($1)[c.place] + 1],
      granted_time = now(), wake_time = NULL
  FROM chosen c WHERE q.execution_id = c.execution_id
  RETURNING c.place, {_CLAIMED}
)
SELECT c.id, c.workspace, c.epoch, ($1)[c.place],
       c.start, c.enqueue_us, c.granted_us, c.wake_us, c.is_resumed, c.begun, {_MESSAGES}
FROM claimed c
""".encode()
