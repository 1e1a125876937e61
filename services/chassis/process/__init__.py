"""One process: its settings, its lifecycle from start to drain, its clock, and how its loops wait and batch."""
