"""A witness of the hard limit: it counts the slots in use inside every commit, one commit at a time.

It is a constraint trigger in the database. So it sees the rows that each commit leaves behind and nothing later,
whether claimers of a test commit or the dispatchers of a whole stack.
"""

from typing import LiteralString

import psycopg

# The function writes with the rights of its owner, so the service's role needs no rights on the table.
WITNESS = """
CREATE TABLE dispatcher.witness (going integer NOT NULL, claimer integer);
CREATE FUNCTION dispatcher.look() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  -- Until the end of this commit no other can look; each statement here has a snapshot of its own.
  PERFORM pg_advisory_xact_lock(42);
  INSERT INTO dispatcher.witness
    SELECT count(*), CASE WHEN NEW.state = 2 THEN pg_backend_pid() END FROM dispatcher.queue
    WHERE workspace = NEW.workspace AND state IN (2, 3) AND NOT ends_only;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER look AFTER INSERT OR UPDATE ON dispatcher.queue DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION dispatcher.look();
"""


def watch_slots(superuser_url: str) -> None:
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        connection.execute(WITNESS)


def most_ever_going(url: str) -> int:
    return _one(url, "SELECT max(going) FROM dispatcher.witness")


def claimers(url: str) -> int:
    """Connections that have claimed something."""
    return _one(url, "SELECT count(DISTINCT claimer) FROM dispatcher.witness")


def waiting(url: str) -> int:
    """The number of rows in the queue, in any state."""
    return _one(url, "SELECT count(*) FROM dispatcher.queue")


def slots_in_use(url: str, workspace: str) -> int:
    """The slots in use that are committed."""
    query = "SELECT count(*) FROM dispatcher.queue WHERE workspace = %s AND state IN (2, 3) AND NOT ends_only"
    return _one(url, query, workspace)


def _one(url: str, query: LiteralString, *params: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(query, params).fetchone()
    assert row is not None
    return int(row[0])
