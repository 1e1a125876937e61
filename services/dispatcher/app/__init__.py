"""What the dispatcher does with what it is told: the batch, and what is put back into the queue outside of it."""
