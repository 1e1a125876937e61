-- The number that every grant made under a workspace's present limit exceeds, unless the limit only rose since.
-- More may be going than the limit allows just while all of it was granted before: a lowered limit drains.
--
-- A trigger, so that it holds whoever writes the limit. It runs under the lock of the row that every claim takes, so a
-- claim is wholly before it or wholly after it.
ALTER TABLE tenants ADD COLUMN lowered_epoch bigint NOT NULL DEFAULT 0;

CREATE FUNCTION note_lowered_limit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.lowered_epoch := nextval('dispatcher.epochs');
  RETURN NEW;
END $$;

CREATE TRIGGER lowered_limit BEFORE UPDATE ON tenants FOR EACH ROW
  WHEN (NEW.executions_max < OLD.executions_max) EXECUTE FUNCTION note_lowered_limit();
