"""Messages on their way to an execution: rows until the holder has them in its journal.

Hazard: a message must never fall between a holder that parks an execution and the mailbox. The row of the queue is
locked in a statement of its own before anything is looked at, here as in the turn: whoever comes second sees what the
first has done.
"""

from collections.abc import Sequence
from typing import Final

from services.chassis.arrays import Bools, Bytes, Texts
from services.chassis.crash import crash_point
from services.chassis.database import Database
from services.dispatcher.core.items import Delivery, Letter, State, Unread

_LOCK: Final = """
SELECT 1 FROM dispatcher.queue WHERE execution_id = ANY(%s::text[]::uuid[]) ORDER BY execution_id FOR UPDATE
"""

_DELIVER: Final = """
WITH told AS MATERIALIZED (
  SELECT * FROM unnest(%s, %s::text[]::uuid[], %s, %s, %s) WITH ORDINALITY
    AS t (message_id, execution_id, workspace, body, is_ending, n)
), found AS MATERIALIZED (
  SELECT t.n, t.message_id, t.execution_id, t.body, t.is_ending, q.workspace, q.state, q.holder
  FROM told t JOIN dispatcher.queue q USING (execution_id)
  WHERE (t.workspace = '' OR t.workspace = q.workspace) AND q.state <> 5
), kept AS (
  INSERT INTO dispatcher.mailbox (message_id, execution_id, body)
  SELECT message_id, execution_id, body FROM found ORDER BY n ON CONFLICT (message_id) DO NOTHING
), woken AS (
  UPDATE dispatcher.queue q SET state = 1, wake_time = NULL, ends_only = q.ends_only OR f.is_ending
  FROM (SELECT execution_id, bool_or(is_ending) AS is_ending FROM found GROUP BY execution_id) f
  WHERE q.execution_id = f.execution_id AND (q.state = 4 OR q.state = 1 AND f.is_ending AND NOT q.ends_only)
  RETURNING q.execution_id, q.ends_only
)
SELECT f.n::int4, f.workspace, f.state, f.holder, w.ends_only
FROM found f LEFT JOIN woken w USING (execution_id)
"""

_FORGET: Final = "DELETE FROM dispatcher.mailbox WHERE message_id = ANY(%s)"

# Those that were there before the holder's grant went with it; younger ones were pushed. What is still here after
# a while was lost on the way.
_UNREAD: Final = """
SELECT m.body, q.holder FROM dispatcher.mailbox m JOIN dispatcher.queue q USING (execution_id)
WHERE q.state IN (2, 3) AND m.create_time < now() - %s::float8 * interval '1 second'
ORDER BY m.create_time LIMIT 1000
"""

# Of executions that ended in the same moment as something was sent to them.
_SWEEP: Final = """
DELETE FROM dispatcher.mailbox m
WHERE m.create_time < now() - interval '1 minute'
  AND NOT EXISTS (SELECT 1 FROM dispatcher.queue q WHERE q.execution_id = m.execution_id)
"""


class PostgresMailbox:
    def __init__(self, database: Database, *, redeliver_seconds: float) -> None:
        self._database = database
        self._redeliver_seconds = redeliver_seconds

    async def deliver(self, letters: Sequence[Letter]) -> list[Delivery | None]:
        """What each met; None: no such execution waits or is leased."""
        ids = Texts([letter.execution_id for letter in letters])
        crash_point("dispatcher.deliver.before_commit")
        _, rows = await self._database.pipeline(
            [
                (_LOCK, (ids,)),
                (
                    _DELIVER,
                    (
                        Texts([letter.message_id for letter in letters]),
                        ids,
                        Texts([letter.workspace for letter in letters]),
                        Bytes([letter.body for letter in letters]),
                        Bools([letter.is_ending for letter in letters]),
                    ),
                ),
            ]
        )
        crash_point("dispatcher.deliver.after_commit")
        deliveries: list[Delivery | None] = [None] * len(letters)
        for n, workspace, state, holder, ends_only in rows:
            deliveries[n - 1] = Delivery(
                workspace, State(state), holder, ends_only is not None, bool(ends_only)
            )
        return deliveries

    async def forget(self, message_ids: Sequence[str]) -> None:
        """They are in the journal."""
        crash_point("dispatcher.forget.before_commit")
        await self._database.execute(_FORGET, (Texts(message_ids),))
        crash_point("dispatcher.forget.after_commit")

    async def unread(self) -> list[Unread]:
        """Messages that their holders should have acknowledged by now."""
        return [Unread(*row) for row in await self._database.fetch(_UNREAD, (self._redeliver_seconds,))]

    async def sweep(self) -> int:
        return await self._database.execute(_SWEEP)
