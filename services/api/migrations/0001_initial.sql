-- api owns the tenants, their keys, their workflows, and the record of who changed what.

CREATE TABLE workspaces (
    workspace text PRIMARY KEY,
    tier smallint NOT NULL,
    -- 0: the tier's own number.
    executions_max integer NOT NULL DEFAULT 0 CHECK (executions_max >= 0),
    queued_max integer NOT NULL DEFAULT 0 CHECK (queued_max >= 0),
    -- It rises with every change. It is the etag, and keeps an older limit from overwriting a newer one at dispatchers.
    revision bigint NOT NULL DEFAULT 1,
    -- The newest revision that the dispatchers have confirmed.
    configured_revision bigint NOT NULL DEFAULT 0,
    -- The secret from which the workspace's effect keys are made. It never leaves our own services.
    effect_secret bytea NOT NULL,
    create_time timestamptz NOT NULL DEFAULT now(),
    update_time timestamptz NOT NULL DEFAULT now(),
    -- Set when the workspace is closed for good. The row stays, so that the name is never given again.
    close_time timestamptz
);

CREATE INDEX workspaces_unconfigured ON workspaces (workspace) WHERE configured_revision < revision;

CREATE TABLE api_keys (
    key_id uuid PRIMARY KEY,
    -- The SHA-256 of the key. The key itself is not stored.
    key_hash bytea NOT NULL UNIQUE,
    role text NOT NULL CHECK (role IN ('VIEWER', 'WORKFLOW', 'ADMIN', 'RUNNER', 'SYSTEM')),
    -- NULL: the system key, and the stack's own runners, which serve every workspace.
    workspace text REFERENCES workspaces,
    title text NOT NULL,
    create_time timestamptz NOT NULL DEFAULT now(),
    expire_time timestamptz,
    revoke_time timestamptz,
    CHECK ((workspace IS NULL) = (role = 'SYSTEM') OR role = 'RUNNER')
);

CREATE INDEX api_keys_by_workspace ON api_keys (workspace, key_id);

CREATE TABLE workflows (
    workspace text NOT NULL REFERENCES workspaces,
    workflow text NOT NULL,
    -- The newest version.
    version integer NOT NULL,
    -- It rises with every change, archiving included, and is the etag.
    revision bigint NOT NULL DEFAULT 1,
    create_time timestamptz NOT NULL DEFAULT now(),
    archive_time timestamptz,
    PRIMARY KEY (workspace, workflow)
);

-- Rows are only added, and never change.
CREATE TABLE workflow_versions (
    version_id uuid PRIMARY KEY,
    workspace text NOT NULL,
    workflow text NOT NULL,
    version integer NOT NULL,
    -- Canonical JSON.
    definition bytea NOT NULL,
    definition_hash bytea NOT NULL,
    -- JSON: the nodes that the templates of each node read. The parser of the template language found them when the
    -- version was applied. null: the node may read all nodes before it.
    template_references bytea NOT NULL,
    -- The definition as its author wrote it. GetWorkflow returns it.
    source text NOT NULL,
    source_format text NOT NULL CHECK (source_format IN ('JSON', 'YAML')),
    create_time timestamptz NOT NULL DEFAULT now(),
    UNIQUE (workspace, workflow, version),
    FOREIGN KEY (workspace, workflow) REFERENCES workflows DEFERRABLE INITIALLY DEFERRED
);

-- Every change that a person or program asked for, in the transaction that made it.
CREATE TABLE audit (
    audit_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    audit_time timestamptz NOT NULL DEFAULT now(),
    -- NULL: the installation itself made the change.
    workspace text,
    -- The id of the key, never the key itself.
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    details jsonb NOT NULL DEFAULT '{}'
);

CREATE INDEX audit_by_workspace ON audit (workspace, audit_id);
