"""One process: its settings, its life from start to drain, its clock, and how its loops wait and gather."""
