"""The runner service: executes the modules of runs that coordinators lease to it."""
