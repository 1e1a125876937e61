"""What a runner does: it takes jobs, renders templates, calls modules and reports outcomes."""
