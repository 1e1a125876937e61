"""The loops of the dispatcher: they commit batches, take leases back, deliver messages, and poll."""
