"""What a runner does: takes jobs, renders, calls modules, reports; and what it needs for that."""
