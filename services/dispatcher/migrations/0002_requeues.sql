-- Executions in state FAILED that a person has queued again, and how they had failed. Their rows in the queue go on
-- without it. A row that is discarded keeps its decision itself.
CREATE TABLE requeues (
  execution_id    uuid NOT NULL,
  failure_time    timestamptz NOT NULL,          -- an execution may fail once more, and be queued once more
  workspace       text NOT NULL,
  attempts        smallint NOT NULL,
  failure_reason  text,
  failure_message text,
  resolve_time    timestamptz NOT NULL DEFAULT clock_timestamp(),
  reviewer        text NOT NULL,
  notes           text NOT NULL,
  request_id      text,                          -- by which a repeat is known; NULL = none was given
  request_hash    bytea,                         -- of what the request asked for
  start           bytea NOT NULL,                -- StartOrder without its input
  PRIMARY KEY (execution_id, failure_time)
);
CREATE INDEX requeues_listed ON requeues (workspace, failure_time, execution_id);
CREATE INDEX requeues_age ON requeues USING brin (resolve_time);
