-- A row that has failed keeps its start once more without the input, so that lists of such rows read no inputs.
ALTER TABLE queue ADD COLUMN shown_start bytea;
COMMENT ON COLUMN queue.shown_start IS
  'Of a FAILED row: StartOrder without its input. NULL = the row has failed otherwise than by its holder, or before the column was there.';
