-- Admission: which executions wait, which are leased to whom, and what was brought to them meanwhile.

-- A row is locked by whoever counts or fills the slots of its workspace: the hard limit stands on this lock.
CREATE TABLE tenants (
  workspace      text PRIMARY KEY,
  executions_max integer NOT NULL,
  queued_max     integer NOT NULL,
  revision       bigint NOT NULL,
  closed         boolean NOT NULL DEFAULT false,
  -- The number that every grant made under the present limit exceeds, unless the limit only rose since. More may be
  -- going than the limit allows just while all of it was granted before: a lowered limit drains.
  lowered_epoch  bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- Rises at every grant of anything, so that no two grants ever carry the same number.
CREATE SEQUENCE epochs;

-- A trigger, so that it holds whoever writes the limit. It runs under the lock of the row that every claim takes, so a
-- claim is wholly before it or wholly after it.
CREATE FUNCTION note_lowered_limit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.lowered_epoch := nextval('dispatcher.epochs');
  RETURN NEW;
END $$;

CREATE TRIGGER lowered_limit BEFORE UPDATE ON tenants FOR EACH ROW
  WHEN (NEW.executions_max < OLD.executions_max) EXECUTE FUNCTION note_lowered_limit();

-- One row per execution from its enqueue until it is final. States by number, as in Queued.State:
-- 1 PENDING, 2 CLAIMED, 3 DISPATCHED, 4 PARKED, 5 FAILED.
CREATE TABLE queue (
  execution_id    uuid PRIMARY KEY,
  workspace       text NOT NULL,
  state           smallint NOT NULL CHECK (state BETWEEN 1 AND 5),
  priority        smallint NOT NULL,             -- 5 goes first
  attempts        smallint NOT NULL DEFAULT 0,   -- failed dispatches
  urgent          boolean NOT NULL DEFAULT false, -- it has run before, or waited parked: ahead of new work
  ends_only       boolean NOT NULL DEFAULT false, -- will only be ended: needs no slot, and holds none
  epoch           bigint NOT NULL DEFAULT 0,     -- of the newest grant; 0 = never granted
  holder          text,                          -- instance of the coordinator, while CLAIMED or DISPATCHED
  enqueue_time    timestamptz NOT NULL,
  granted_time    timestamptz,
  wake_time       timestamptz,                   -- of a PARKED row; absent = only a message wakes it
  deadline_time   timestamptz,
  failure_time    timestamptz,
  failure_reason  text,
  failure_message text,
  request_id      text,
  start           bytea NOT NULL                 -- StartOrder
) WITH (
  -- Rows live for milliseconds under load: dead ones must go as fast, or each claim wades through them.
  fillfactor = 80,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_insert_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0
);
-- Inputs are JSON that is read once; compressing each would cost more than its bytes.
ALTER TABLE queue ALTER COLUMN start SET STORAGE EXTERNAL;

-- The order of the claim inside a workspace. Covers the count of what waits, too.
CREATE INDEX queue_waiting ON queue (workspace, urgent DESC, priority DESC, execution_id)
  WHERE state = 1 AND NOT ends_only;
CREATE INDEX queue_ending ON queue (execution_id) WHERE state = 1 AND ends_only;
-- The slots in use.
CREATE INDEX queue_going ON queue (workspace) WHERE state IN (2, 3) AND NOT ends_only;
CREATE INDEX queue_held ON queue (holder) WHERE state IN (2, 3);
CREATE INDEX queue_wakes ON queue (wake_time) WHERE state = 4 AND wake_time IS NOT NULL;
CREATE INDEX queue_deadlines ON queue (deadline_time)
  WHERE state = 1 AND NOT ends_only AND deadline_time IS NOT NULL;
CREATE INDEX queue_listed ON queue (workspace, execution_id);

-- What a start was asked under, for as long as its caller may ask again.
CREATE TABLE requests (
  workspace    text NOT NULL,
  request_id   text NOT NULL,
  hash         bytea NOT NULL,
  execution_id uuid NOT NULL,
  create_time  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (workspace, request_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX requests_age ON requests USING brin (create_time);

-- What was brought to an execution and is not in its journal yet.
CREATE TABLE mailbox (
  message_id   text PRIMARY KEY,
  execution_id uuid NOT NULL,
  create_time  timestamptz NOT NULL DEFAULT clock_timestamp(),
  body         bytea NOT NULL                    -- ExecutionMessage
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX mailbox_of ON mailbox (execution_id);

-- The coordinators' instances, by which leases live (services/chassis/session/postgres.py).
CREATE TABLE coordinator_sessions (
  instance_id  text PRIMARY KEY,
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
