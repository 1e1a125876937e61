"""The dispatcher service: the durable queue, the slots and the leases of executions."""
