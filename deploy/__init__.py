"""Ways to run Windlass: on one machine, in containers, in a cluster."""
