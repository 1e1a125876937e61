"""The identity of callers, their rights, and how a process proves its own identity."""
