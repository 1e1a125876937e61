"""Background duties of a runner."""
