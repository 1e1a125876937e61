-- Commands for many executions, as jobs that any api works on.

CREATE TABLE bulk_jobs (
    -- A UUIDv7, so that newer jobs sort after older ones.
    job_id uuid PRIMARY KEY,
    workspace text NOT NULL REFERENCES workspaces,
    -- '': no repeat is recognised.
    request_id text NOT NULL,
    -- The title of the key that asked.
    caller text NOT NULL,
    action text NOT NULL CHECK (action IN ('CANCEL', 'PAUSE', 'RESUME', 'RETRY')),
    filter text NOT NULL,
    reason text NOT NULL,
    from_node text NOT NULL,
    -- JSON: what is laid over the inputs of each node.
    input_overrides bytea NOT NULL,
    -- Executions that were created later do not match. It is the wall time of the api that took the order.
    as_of_time timestamptz NOT NULL,
    state text NOT NULL DEFAULT 'RUNNING' CHECK (state IN ('RUNNING', 'DONE', 'STOPPED', 'FAILED')),
    -- How many executions have been found, whether these are all, and whether there were more than a job takes.
    matched integer NOT NULL DEFAULT 0,
    is_counted boolean NOT NULL DEFAULT false,
    is_cut boolean NOT NULL DEFAULT false,
    -- Those that got the command, that refused it, by reason, and that could not be told. Together they are the place that
    -- the job has come to.
    done integer NOT NULL DEFAULT 0,
    refused jsonb NOT NULL DEFAULT '{}',
    failed integer NOT NULL DEFAULT 0,
    samples jsonb NOT NULL DEFAULT '[]',
    message text NOT NULL DEFAULT '',
    create_time timestamptz NOT NULL DEFAULT now(),
    stop_time timestamptz,
    end_time timestamptz,
    -- The api that works on it, and until when nobody else does. NULL: none.
    holder uuid,
    lease_time timestamptz,
    -- It rises whenever an api takes the job. Every change compares it, so an api that has lost the job changes nothing.
    epoch integer NOT NULL DEFAULT 0
);

CREATE UNIQUE INDEX bulk_jobs_by_request ON bulk_jobs (workspace, request_id) WHERE request_id <> '';
CREATE INDEX bulk_jobs_by_workspace ON bulk_jobs (workspace, job_id);
CREATE INDEX bulk_jobs_running ON bulk_jobs (job_id) WHERE state = 'RUNNING';
CREATE INDEX bulk_jobs_ended ON bulk_jobs (end_time) WHERE end_time IS NOT NULL;

-- The executions of a running job in the order of their ids. The rows go when the job ends.
CREATE TABLE bulk_job_pages (
    job_id uuid NOT NULL REFERENCES bulk_jobs,
    -- The place of the first one in the job, from 0.
    first_place integer NOT NULL,
    execution_ids uuid[] NOT NULL,
    PRIMARY KEY (job_id, first_place)
);
