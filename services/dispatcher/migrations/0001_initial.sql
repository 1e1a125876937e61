-- The queue: executions that wait for a slot, the leases of those that run, and messages for both.

-- A transaction that counts or takes slots of a workspace locks this row first. The hard limit depends on this lock.
CREATE TABLE tenants (
  workspace      text PRIMARY KEY,
  executions_max integer NOT NULL,
  queued_max     integer NOT NULL,
  revision       bigint NOT NULL,
  closed         boolean NOT NULL DEFAULT false,
  -- Set when the limit is lowered: the grants after that have a higher epoch. A lowered limit stops no execution, so
  -- more executions may run than the limit allows, but only if all of them were granted before.
  lowered_epoch  bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- It rises at every grant, so that no two grants ever have the same epoch.
CREATE SEQUENCE epochs;

-- This is a trigger so that every way of writing the limit sets the epoch. It has the lock of the row that every claim
-- takes, so a claim is either before it or after it.
CREATE FUNCTION note_lowered_limit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.lowered_epoch := nextval('dispatcher.epochs');
  RETURN NEW;
END $$;

CREATE TRIGGER lowered_limit BEFORE UPDATE ON tenants FOR EACH ROW
  WHEN (NEW.executions_max < OLD.executions_max) EXECUTE FUNCTION note_lowered_limit();

-- One row for each execution, from its enqueue until it is final. States are numbers, as in Queued.State:
-- 1 PENDING, 2 CLAIMED, 3 DISPATCHED, 4 PARKED, 5 FAILED.
CREATE TABLE queue (
  execution_id    uuid PRIMARY KEY,
  workspace       text NOT NULL,
  state           smallint NOT NULL CHECK (state BETWEEN 1 AND 5),
  priority        smallint NOT NULL,             -- 1 to 5
  attempts        smallint NOT NULL DEFAULT 0,   -- failed dispatches
  urgent          boolean NOT NULL DEFAULT false, -- it was granted before, so it goes ahead of new executions
  ends_only       boolean NOT NULL DEFAULT false, -- it will only be ended, so it needs and holds no slot
  begun           boolean NOT NULL DEFAULT false, -- a holder has said that its journal has begun
  parent_told     boolean NOT NULL DEFAULT false, -- of a FAILED row: its parent knows, or it has none
  reopens         boolean NOT NULL DEFAULT false, -- a message that came to its holder may reopen it: it outlives its end
  epoch           bigint NOT NULL DEFAULT 0,     -- of the newest grant; 0 = never granted
  holder          text,                          -- instance of the coordinator, while CLAIMED or DISPATCHED
  enqueue_time    timestamptz NOT NULL,
  -- The order inside a workspace: each level of priority is worth a minute. So an execution of priority 5 goes before
  -- one of priority 1 that was queued up to four minutes earlier, and nobody waits for executions without end. The value
  -- never changes, so the order is that of an index.
  order_time      timestamp NOT NULL
    GENERATED ALWAYS AS ((enqueue_time AT TIME ZONE 'UTC') - priority * interval '1 minute') STORED,
  granted_time    timestamptz,
  wake_time       timestamptz,                   -- of a PARKED row; NULL = only a message wakes it
  deadline_time   timestamptz,
  failure_time    timestamptz,
  failure_reason  text,
  failure_message text,
  -- What a person has decided about a FAILED row: NULL or DISCARDED. One that is requeued is PENDING again.
  resolution      text,
  resolve_time    timestamptz,
  reviewer        text,
  notes           text,
  request_id      text,
  start           bytea NOT NULL                 -- StartOrder
) WITH (
  -- Under load a row lives for milliseconds. Dead rows must be removed as fast, because every claim reads them too.
  fillfactor = 80,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_insert_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0
);
-- Inputs are JSON that is read once. Compression would cost more than it saves.
ALTER TABLE queue ALTER COLUMN start SET STORAGE EXTERNAL;

-- The order of the claim inside a workspace. It also serves the count of queued executions.
CREATE INDEX queue_waiting ON queue (workspace, urgent DESC, order_time, execution_id)
  WHERE state = 1 AND NOT ends_only;
CREATE INDEX queue_ending ON queue (execution_id) WHERE state = 1 AND ends_only;
-- Counts the slots in use.
CREATE INDEX queue_going ON queue (workspace) WHERE state IN (2, 3) AND NOT ends_only;
CREATE INDEX queue_held ON queue (holder) WHERE state IN (2, 3);
CREATE INDEX queue_wakes ON queue (wake_time) WHERE state = 4 AND wake_time IS NOT NULL;
CREATE INDEX queue_deadlines ON queue (deadline_time)
  WHERE state = 1 AND NOT ends_only AND deadline_time IS NOT NULL;
CREATE INDEX queue_dead ON queue (failure_time) WHERE state = 5;
CREATE INDEX queue_untold ON queue (execution_id) WHERE state = 5 AND NOT parent_told;
CREATE INDEX queue_listed ON queue (workspace, execution_id);

-- The request ids of starts, kept for as long as a caller may repeat them.
CREATE TABLE requests (
  workspace    text NOT NULL,
  request_id   text NOT NULL,
  hash         bytea NOT NULL,
  execution_id uuid NOT NULL,
  create_time  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (workspace, request_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX requests_age ON requests USING brin (create_time);

-- Messages for an execution that are not in its journal yet.
CREATE TABLE mailbox (
  message_id   text PRIMARY KEY,
  execution_id uuid NOT NULL,
  create_time  timestamptz NOT NULL DEFAULT clock_timestamp(),
  body         bytea NOT NULL                    -- ExecutionMessage
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX mailbox_of ON mailbox (execution_id);

-- The instances of coordinators. A lease lives as long as its holder's instance (services/chassis/session/postgres.py).
CREATE TABLE coordinator_sessions (
  instance_id  text PRIMARY KEY,
  opened_by    text NOT NULL,
  holder       text NOT NULL,
  version      text NOT NULL,
  labels       jsonb NOT NULL,
  state        text NOT NULL CHECK (state IN ('LIVE', 'ENDED')),
  lease_until  timestamptz NOT NULL,
  heard_time   timestamptz NOT NULL,
  open_time    timestamptz NOT NULL,
  suspect_time timestamptz,
  ended_time   timestamptz
) WITH (fillfactor = 50);
