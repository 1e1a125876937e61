"""The work of a runner: it takes jobs, renders templates, calls modules and reports outcomes."""
