"""What the dispatcher does while it waits: it gathers and commits batches, takes leases back, delivers messages, polls."""
