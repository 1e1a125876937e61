"""The mailbox: messages to an execution are rows until its holder has them in its journal.

Hazard: a message must not be lost between the mailbox and a holder that parks the execution. Here, as in the batch, a
statement of its own locks the row of the queue before anything is read. So the second transaction sees what the first
has done, and a count of a mailbox is complete.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import Text, any_, bindparam, delete, exists, func, literal_column, select
from sqlalchemy.dialects.postgresql import ARRAY

from services.chassis.postgres.arrays import Array, Bools, Bytes, Ints, Texts
from services.chassis.postgres.compiled import Composed
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point
from services.dispatcher.core import mailbox_limits as limits
from services.dispatcher.core.items import Delivery, MailboxMessage
from services.dispatcher.store.tables import is_asked_for, mailbox, queue

_LOCK: Final = Composed(
    select(literal_column("1")).where(is_asked_for).order_by(queue.c.execution_id).with_for_update()
)

# The rows of executions that a message may reopen. They were granted before, so they have an epoch and go first.
# This is raw SQL like the statement below.
_MAKE_ROWS: Final = """
INSERT INTO dispatcher.queue (execution_id, workspace, state, priority, urgent, begun, epoch, enqueue_time, start)
SELECT DISTINCT ON (execution_id) execution_id, workspace, 1, priority, true, true, nextval('dispatcher.epochs'), now(),
       start
FROM unnest(%s::text[]::uuid[], %s, %s, %s) AS t (execution_id, workspace, priority, start)
ORDER BY execution_id
ON CONFLICT (execution_id) DO NOTHING
"""

# A message that is stored already counts once and is accepted again. One that finds no room wakes nothing. The last
# column has the unread messages that were stored before one that has to be read in order. This is raw SQL, because its
# windows over arrays would be harder to read when composed.
_DELIVER: Final = f"""
WITH message AS MATERIALIZED (
  SELECT * FROM unnest(%s, %s::text[]::uuid[], %s, %s, %s, %s, %s, %s) WITH ORDINALITY
    AS t (message_id, execution_id, workspace, body, is_ending, may_reopen, is_in_order, waits_for_requeue, n)
), found AS MATERIALIZED (
  SELECT t.n, t.message_id, t.execution_id, t.body, t.is_ending, t.may_reopen, t.is_in_order, q.workspace, q.holder,
         NOT EXISTS (SELECT 1 FROM dispatcher.mailbox m WHERE m.message_id = t.message_id) AS is_new
  FROM message t JOIN dispatcher.queue q USING (execution_id)
  WHERE (t.workspace = '' OR t.workspace = q.workspace)
    AND (q.state <> 5 OR t.waits_for_requeue AND q.resolution IS NULL)
), unread AS MATERIALIZED (
  SELECT e.execution_id, count(m.message_id) AS messages, coalesce(sum(octet_length(m.body)), 0) AS bytes
  FROM (SELECT DISTINCT execution_id FROM found) e LEFT JOIN dispatcher.mailbox m USING (execution_id)
  GROUP BY e.execution_id
), judged AS MATERIALIZED (
  SELECT f.*, u.messages, u.bytes, f.is_new AND (
           u.messages + count(*) FILTER (WHERE f.is_new) OVER earlier
             > {limits.MAILBOX_MESSAGES_MAX} + CASE WHEN f.is_ending THEN {limits.MAILBOX_ENDING_MESSAGES} ELSE 0 END
           OR u.bytes + sum(octet_length(f.body)) FILTER (WHERE f.is_new) OVER earlier
             > {limits.MAILBOX_BYTES_MAX} + CASE WHEN f.is_ending THEN {limits.MAILBOX_ENDING_BYTES} ELSE 0 END
         ) AS is_refused
  FROM found f JOIN unread u USING (execution_id)
  WINDOW earlier AS (PARTITION BY f.execution_id ORDER BY NOT f.is_ending, f.n)
), kept AS (
  INSERT INTO dispatcher.mailbox (message_id, execution_id, body)
  SELECT message_id, execution_id, body FROM judged WHERE NOT is_refused ORDER BY n
  ON CONFLICT (message_id) DO NOTHING
), kept_open AS (
  UPDATE dispatcher.queue q SET reopens = true FROM judged f
  WHERE q.execution_id = f.execution_id AND f.may_reopen AND NOT f.is_refused AND q.state IN (2, 3) AND NOT q.reopens
), woken AS (
  UPDATE dispatcher.queue q
  SET state = 1, wake_time = CASE WHEN q.state = 4 THEN clock_timestamp() ELSE q.wake_time END,
      ends_only = q.ends_only OR f.is_ending
  FROM (
    SELECT execution_id, bool_or(is_ending) AS is_ending FROM judged WHERE NOT is_refused GROUP BY execution_id
  ) f
  WHERE q.execution_id = f.execution_id AND (q.state = 4 OR q.state = 1 AND f.is_ending AND NOT q.ends_only)
  RETURNING q.execution_id, q.ends_only
)
SELECT j.n::int4, j.workspace, j.holder, w.ends_only, j.is_refused,
       CASE WHEN NOT j.is_in_order OR j.messages = 0 THEN '{{}}'
            WHEN j.messages <= {limits.RESENT_MESSAGES_MAX} AND j.bytes <= {limits.RESENT_BYTES_EACH} THEN (
              SELECT array_agg(m.body ORDER BY m.create_time, m.message_id)
              FROM dispatcher.mailbox m WHERE m.execution_id = j.execution_id
            ) END
FROM judged j LEFT JOIN woken w USING (execution_id)
"""

_FORGET: Final = Composed(
    delete(mailbox).where(mailbox.c.message_id == any_(bindparam("message_ids", type_=ARRAY(Text))))
)

# Messages older than the grant went with it, and younger ones were pushed. A message that is still here after a while
# was lost on the way and is sent again. Executions take turns: the first message of each comes before the second of
# any, and each call begins behind the execution at which the last one ended. So an execution whose messages are never
# read does not delay others. Only the bodies of the chosen messages are fetched. This is raw SQL for the same reason.
_UNREAD: Final = f"""
SELECT m.body, t.holder, t.execution_id::text FROM (
  SELECT s.*, sum(s.bytes) OVER (
           ORDER BY s.nth, s.is_passed, s.execution_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
         ) AS bytes_before
  FROM (
    SELECT m.message_id, m.execution_id, q.holder, octet_length(m.body) AS bytes,
           m.execution_id <= %s::text::uuid AS is_passed,
           row_number() OVER earlier AS nth,
           sum(octet_length(m.body)) OVER (earlier ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS own_bytes_before
    FROM dispatcher.mailbox m JOIN dispatcher.queue q USING (execution_id)
    WHERE q.state IN (2, 3) AND m.create_time < now() - %s::float8 * interval '1 second'
    WINDOW earlier AS (PARTITION BY m.execution_id ORDER BY m.create_time, m.message_id)
  ) s
  WHERE s.nth <= {limits.RESENT_MESSAGES_MAX} AND coalesce(s.own_bytes_before, 0) < {limits.RESENT_BYTES_EACH}
  ORDER BY s.nth, s.is_passed, s.execution_id LIMIT {limits.RESENT_MESSAGES_MAX}
) t JOIN dispatcher.mailbox m USING (message_id) WHERE coalesce(t.bytes_before, 0) < {limits.RESENT_BYTES_MAX}
ORDER BY t.nth, t.is_passed, t.execution_id
"""

# Messages to executions that ended just when the message was sent.
_SWEEP: Final = Composed(
    delete(mailbox).where(
        mailbox.c.create_time < func.now() - timedelta(minutes=1),
        ~exists().where(queue.c.execution_id == mailbox.c.execution_id),
    )
)


def _rows_to_make(messages: Sequence[MailboxMessage]) -> list[tuple[str, tuple[Array, ...]]]:
    """The statement that makes them, if there are any."""
    made = [(message, message.row) for message in messages if message.row is not None]
    if not made:
        return []
    arrays = (
        Texts([message.execution_id for message, _ in made]),
        Texts([message.workspace for message, _ in made]),
        Ints([row.priority for _, row in made]),
        Bytes([row.start for _, row in made]),
    )
    return [(_MAKE_ROWS, arrays)]


class PostgresMailbox:
    def __init__(self, database: Database, *, redeliver_seconds: float) -> None:
        self._database = database
        self._redeliver_seconds = redeliver_seconds
        # The execution at which the last look at what is unread ended.
        self._last_resent = str(UUID(int=0))

    async def deliver(self, messages: Sequence[MailboxMessage]) -> list[Delivery | None]:
        """The outcome of each message; None: no such execution waits or is leased."""
        ids = Texts([message.execution_id for message in messages])
        given = (
            Texts([message.message_id for message in messages]),
            ids,
            Texts([message.workspace for message in messages]),
            Bytes([message.body for message in messages]),
            Bools([message.is_ending for message in messages]),
            Bools([message.row is not None for message in messages]),
            Bools([message.is_in_order for message in messages]),
            Bools([message.waits_for_requeue for message in messages]),
        )
        rows_to_make = _rows_to_make(messages)
        crash_point("dispatcher.deliver.before_commit")
        *_, rows = await self._database.pipeline([*rows_to_make, _LOCK(execution_ids=ids), (_DELIVER, given)])
        crash_point("dispatcher.deliver.after_commit")
        deliveries: list[Delivery | None] = [None] * len(messages)
        for n, workspace, holder, ends_only, is_refused, before in rows:
            deliveries[n - 1] = Delivery(workspace, holder, ends_only is not None, bool(ends_only), is_refused, before)
        return deliveries

    async def forget(self, message_ids: Sequence[str]) -> None:
        """Delete messages that are in the journal."""
        crash_point("dispatcher.forget.before_commit")
        await self._database.execute(*_FORGET(message_ids=Texts(message_ids)))
        crash_point("dispatcher.forget.after_commit")

    async def unread(self) -> dict[str, list[bytes]]:
        """Messages that their holders should have acknowledged by now, as many as may be sent at once, by holder."""
        rows = await self._database.fetch(_UNREAD, (self._last_resent, self._redeliver_seconds))
        if rows:
            self._last_resent = rows[-1][2]
        by_holder: dict[str, list[bytes]] = {}
        for body, holder, _ in rows:
            by_holder.setdefault(holder, []).append(body)
        return by_holder

    async def sweep(self) -> int:
        return await self._database.execute(*_SWEEP())
