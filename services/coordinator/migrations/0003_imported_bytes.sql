-- The copies of a workspace are limited in size.
ALTER TABLE executions ADD COLUMN imported_bytes bigint;
COMMENT ON COLUMN executions.imported_bytes IS
  'Of a copy: the size of the export that it was made of, with the outputs that came. NULL: it ran here, or was imported before the column was there.';
