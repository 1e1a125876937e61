"""Who calls, who may, and how a process proves who it is."""
