"""Background duties of the coordinator."""
