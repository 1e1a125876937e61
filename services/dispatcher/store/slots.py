"""Counts the slots of a workspace exactly, with any number of dispatchers.

LOCK_WORKSPACES is the first statement of a batch. It waits for every other batch of these workspaces. The statements
that count slots (FREE_SLOTS is a part of them) come after it, so their snapshots contain everything that those batches
have committed. A single statement that locks and counts would count with a snapshot from before the wait, and two
dispatchers could fill the same slot (tests/integration/dispatcher/test_slots.py shows this).
"""

from typing import Final

LOCK_WORKSPACES: Final = b"""
SELECT 1 FROM dispatcher.tenants WHERE workspace = ANY($1) ORDER BY workspace FOR NO KEY UPDATE
"""

# A column for a row `t` of the tenants. A row of the queue that was granted (2) or taken (3) uses a slot.
FREE_SLOTS: Final = """
greatest(0, t.executions_max - (
  SELECT count(*) FROM dispatcher.queue g
  WHERE g.workspace = t.workspace AND g.state IN (2, 3) AND NOT g.ends_only
))::int4 AS free
"""
