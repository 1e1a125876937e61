-- A row that is woken keeps the time, so that an explanation can say how long the execution waits for a slot again.
COMMENT ON COLUMN queue.wake_time IS
  'Of a PARKED row: when it is woken; NULL = only a message wakes it. Of a PENDING row: when it was woken, if it was.';
