-- Copies of exported executions. They are rows like any other, and no lease is ever granted for them.

ALTER TABLE executions
    -- The id that the execution has where it ran. Empty: it ran here.
    ADD COLUMN imported_execution_id text NOT NULL DEFAULT '',
    -- The request id of the import, if the import had one, and the SHA-256 of what was imported.
    ADD COLUMN import_request_id text,
    ADD COLUMN import_digest bytea,
    -- The definition is that of the file, because api has no such version; and what its templates read.
    ADD COLUMN imported_definition bytea,
    ADD COLUMN imported_references bytea;

CREATE INDEX executions_imported ON executions (workspace, import_request_id) WHERE imported_execution_id <> '';
