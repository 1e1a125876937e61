"""What waits in the dispatcher: it gathers and commits batches, takes leases back, delivers messages, and polls."""
