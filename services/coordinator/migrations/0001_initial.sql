-- The tables of the coordinator: the journal, which is the truth, its projections, and the runners that are connected.
--
-- The big tables are partitioned by the time inside their UUIDv7 key, one partition a month, so that retention
-- only drops partitions. A loop makes them ahead. Rows without one go to the default partition, which is empty in a
-- healthy system. No column that changes has an index; together with the fill factor this keeps updates in their page.

-- Each append inserts one row, and no row changes. `events` are all events of the append, and `last_seq` numbers the
-- last of them. `epoch` is the lease under which the row was written. It never falls along `last_seq`.
CREATE TABLE journal (
    execution_id uuid NOT NULL,
    last_seq integer NOT NULL CHECK (last_seq > 0),
    epoch bigint NOT NULL,
    events bytea NOT NULL,
    PRIMARY KEY (execution_id, last_seq)
) PARTITION BY RANGE (execution_id);

-- What the journal of a long execution adds up to, in records that an append brings now and then. They are never the
-- truth, and each version of the coordinator reads those of its own format alone. `last_seq` is the event up to which the
-- state goes. A record that `is_whole` has all of it, together with those before (store/snapshots.py).
CREATE TABLE snapshots (
    execution_id uuid NOT NULL,
    last_seq integer NOT NULL,
    format text NOT NULL,
    is_whole boolean NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (execution_id, last_seq)
) PARTITION BY RANGE (execution_id);

-- `epoch` and `last_seq` are the fence of every append; the rest is a projection of the journal, column for column as
-- core/projection.py names it.
CREATE TABLE executions (
    execution_id uuid NOT NULL,
    epoch bigint NOT NULL,
    last_seq integer NOT NULL,
    version integer NOT NULL,
    priority integer NOT NULL,
    trigger_type integer NOT NULL,
    runs integer NOT NULL,
    retries integer NOT NULL,
    cost_tokens bigint NOT NULL,
    create_time timestamptz NOT NULL,
    grant_time timestamptz,
    start_time timestamptz NOT NULL,
    end_time timestamptz,
    deadline_time timestamptz,
    state text NOT NULL,
    workspace text NOT NULL,
    workflow text NOT NULL,
    version_id text NOT NULL,
    holder text NOT NULL,
    caller text NOT NULL,
    request_id text NOT NULL,
    parent_execution_id text NOT NULL,
    -- Empty: it is no fork.
    origin_execution_id text NOT NULL,
    traceparent text NOT NULL,
    labels jsonb NOT NULL,
    error_node text,
    error_type text,
    error_message text,
    -- Of a final execution: the ids of the nodes by their outcome. Of a paused one: {"pause": {caller, reason, time}}.
    summary jsonb,
    input bytea NOT NULL,
    -- The output itself as JSON, or the place where it is kept.
    output bytea,
    output_key text,
    output_sha256 text,
    output_bytes bigint,
    PRIMARY KEY (execution_id)
) PARTITION BY RANGE (execution_id);

-- This index serves the lists of a workspace, newest first. Neither column ever changes.
CREATE INDEX executions_workspace ON executions (workspace, execution_id);
-- The children of an execution. Filters compare this expression, and executions without a parent cost no entry.
CREATE INDEX executions_parent ON executions (nullif(parent_execution_id, ''), execution_id)
    WHERE nullif(parent_execution_id, '') IS NOT NULL;
-- The same for the forks of an execution.
CREATE INDEX executions_origin ON executions (nullif(origin_execution_id, ''), execution_id)
    WHERE nullif(origin_execution_id, '') IS NOT NULL;

-- The id of a run is "<execution_id>.<number>".
CREATE TABLE runs (
    execution_id uuid NOT NULL,
    number integer NOT NULL,
    iteration integer NOT NULL,
    generation integer NOT NULL,
    -- 0: no runner was needed.
    attempt integer NOT NULL,
    -- The epoch of its lease, which is the seq of the event that granted it.
    epoch bigint NOT NULL,
    cost_tokens bigint NOT NULL DEFAULT 0,
    progress double precision NOT NULL DEFAULT 0,
    -- The run ended without a word of its runner: later reports on it are refused.
    is_taken_back boolean NOT NULL DEFAULT false,
    create_time timestamptz NOT NULL,
    start_time timestamptz,
    end_time timestamptz,
    heartbeat_time timestamptz,
    retry_time timestamptz,
    -- The defaults from here on are those of a run that was granted and no more.
    state text NOT NULL DEFAULT 'LEASED',
    node text NOT NULL,
    module text NOT NULL,
    -- The row of runner_sessions that the lease lives as long as.
    instance_id text NOT NULL,
    runner text NOT NULL,
    traceparent text NOT NULL,
    effect_key text NOT NULL,
    progress_message text NOT NULL DEFAULT '',
    branch text NOT NULL DEFAULT '',
    error_class text,
    error_type text,
    error_message text,
    error_fingerprint text,
    inputs_hash bytea,
    config_hash bytea,
    output bytea,
    output_key text,
    output_sha256 text,
    output_bytes bigint,
    PRIMARY KEY (execution_id, number)
) PARTITION BY RANGE (execution_id);

-- What people are asked to decide. The id of an approval is that of its run. A projection of the journal, like the rows
-- of runs.
CREATE TABLE approvals (
    execution_id uuid NOT NULL,
    number integer NOT NULL,
    -- The number of keys that have to approve.
    required integer NOT NULL,
    create_time timestamptz NOT NULL,
    expire_time timestamptz,
    state text NOT NULL,
    workspace text NOT NULL,
    workflow text NOT NULL,
    node text NOT NULL,
    title text NOT NULL,
    -- A JSON Schema.
    form bytea NOT NULL,
    -- Titles of keys, and roles like "role:ADMIN".
    assignees jsonb NOT NULL,
    decisions jsonb NOT NULL,
    PRIMARY KEY (execution_id, number)
) PARTITION BY RANGE (execution_id);

-- This index serves the lists of a workspace, newest execution first. None of its columns ever changes.
CREATE INDEX approvals_workspace ON approvals (workspace, execution_id, number);

-- Runs that failed for good with nobody to handle it. The journal says the same; this is what people list.
CREATE TABLE dead_letters (
    execution_id uuid NOT NULL,
    number integer NOT NULL,
    version integer NOT NULL,
    iteration integer NOT NULL,
    generation integer NOT NULL,
    attempts integer NOT NULL,
    quarantine_time timestamptz NOT NULL,
    resolve_time timestamptz,
    workspace text NOT NULL,
    workflow text NOT NULL,
    node text NOT NULL,
    module text NOT NULL,
    -- MAX_RETRIES, PERMANENT_ERROR, POISON or MANUAL.
    reason text NOT NULL,
    -- PENDING, REQUEUED, FIXED or DISCARDED.
    resolution text NOT NULL,
    -- Title of the key of whoever resolved it.
    reviewer text NOT NULL,
    notes text NOT NULL,
    -- A JSON object with the members "config" and "inputs", as a runner rendered them.
    rendered bytea,
    error_class text,
    error_type text,
    error_message text,
    error_fingerprint text,
    PRIMARY KEY (execution_id, number)
) WITH (fillfactor = 80);
CREATE INDEX dead_letters_listed ON dead_letters (workspace, quarantine_time, execution_id, number);
CREATE INDEX dead_letters_age ON dead_letters USING brin (quarantine_time);

CREATE TABLE journal_default PARTITION OF journal DEFAULT;
CREATE TABLE snapshots_default PARTITION OF snapshots DEFAULT;
CREATE TABLE executions_default PARTITION OF executions DEFAULT WITH (fillfactor = 70);
CREATE TABLE runs_default PARTITION OF runs DEFAULT WITH (fillfactor = 70);
CREATE TABLE approvals_default PARTITION OF approvals DEFAULT WITH (fillfactor = 70);

-- The smallest UUIDv7 of an instant: 48 bits of milliseconds, then zeros.
CREATE FUNCTION uuid_floor(instant timestamptz) RETURNS uuid
    LANGUAGE sql STABLE
    RETURN rpad(lpad(to_hex((extract(epoch FROM instant) * 1000)::bigint), 12, '0'), 32, '0')::uuid;

-- Makes the partitions of all these tables for the month of `instant`. False: they are there already.
CREATE FUNCTION make_partitions(instant timestamptz) RETURNS boolean
    LANGUAGE plpgsql AS $$
DECLARE
    month_start timestamptz := date_trunc('month', instant, 'UTC');
    month_end timestamptz := date_trunc('month', month_start + interval '45 days', 'UTC');
    suffix text := to_char(month_start AT TIME ZONE 'UTC', 'YYYY_MM');
    parent text;
BEGIN
    -- If two replicas call it at once, the second waits and finds the work done.
    PERFORM pg_advisory_xact_lock(hashtextextended('coordinator.make_partitions', 0));
    IF to_regclass('coordinator.journal_' || suffix) IS NOT NULL THEN
        RETURN false;
    END IF;
    FOREACH parent IN ARRAY ARRAY['journal', 'snapshots', 'executions', 'runs', 'approvals'] LOOP
        EXECUTE format(
            'CREATE TABLE coordinator.%I PARTITION OF coordinator.%I FOR VALUES FROM (%L) TO (%L) WITH (%s)',
            parent || '_' || suffix, parent,
            coordinator.uuid_floor(month_start), coordinator.uuid_floor(month_end),
            CASE WHEN parent IN ('journal', 'snapshots') THEN 'fillfactor = 100' ELSE 'fillfactor = 70' END);
    END LOOP;
    RETURN true;
END $$;

-- Drops the partitions of a month ("2026_08"), if there are as many executions in it as its caller has looked at. Appends
-- wait for this lock, so it is waited for only a moment, and the count reads the index alone.
CREATE FUNCTION drop_partitions(month text, executions_seen bigint) RETURNS boolean
    LANGUAGE plpgsql AS $$
DECLARE
    found bigint;
BEGIN
    PERFORM set_config('lock_timeout', '500ms', true);
    LOCK TABLE coordinator.executions, coordinator.journal, coordinator.snapshots, coordinator.runs, coordinator.approvals
        IN ACCESS EXCLUSIVE MODE;
    IF to_regclass('coordinator.executions_' || month) IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('SELECT count(*) FROM coordinator.%I', 'executions_' || month) INTO found;
    IF found <> executions_seen THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE coordinator.%I, coordinator.%I, coordinator.%I, coordinator.%I, coordinator.%I',
                   'executions_' || month, 'journal_' || month, 'snapshots_' || month, 'runs_' || month,
                   'approvals_' || month);
    RETURN true;
END $$;

SELECT make_partitions(now());
SELECT make_partitions(now() + interval '1 month');

-- The runner instances that are or were connected. services/chassis/session/postgres.py explains the columns.
CREATE TABLE runner_sessions (
    instance_id text PRIMARY KEY,
    opened_by text NOT NULL,
    holder text NOT NULL,
    version text NOT NULL,
    labels jsonb NOT NULL,
    state text NOT NULL CHECK (state IN ('LIVE', 'ENDED')),
    lease_until timestamptz NOT NULL,
    heard_time timestamptz NOT NULL,
    open_time timestamptz NOT NULL,
    suspect_time timestamptz,
    ended_time timestamptz
) WITH (fillfactor = 50);

-- The circuit breakers, one for each target of a workspace that has failed lately (core/circuits.py explains them). A
-- target without a row counts as closed. Coordinators visit a row some times a second while its target is called.
CREATE TABLE circuits (
    workspace text NOT NULL,
    -- "<module> <name>".
    target text NOT NULL,
    state text NOT NULL DEFAULT 'CLOSED' CHECK (state IN ('CLOSED', 'OPEN', 'HALF_OPEN')),
    -- It rises whenever the circuit opens or is reset by hand.
    generation bigint NOT NULL DEFAULT 0,
    openings integer NOT NULL DEFAULT 0,
    probes_answered integer NOT NULL DEFAULT 0,
    -- The outcomes of the last slots: the number of the newest slot, then answers and failures, newest first.
    outcomes jsonb NOT NULL DEFAULT '[]',
    -- Pairs of a piece of work and the time (µs since 1970) at which its permit ends.
    permits jsonb NOT NULL DEFAULT '[]',
    -- For each coordinator, how much work it has seen waiting, and until when (µs since 1970) that counts.
    waiting jsonb NOT NULL DEFAULT '[]',
    open_time timestamptz,
    -- When the target may be probed. It is set while the circuit is open.
    retry_time timestamptz,
    last_failure_time timestamptz,
    PRIMARY KEY (workspace, target)
) WITH (fillfactor = 50);
