"""What the simulated services and the checks have to agree on."""

from typing import Final

# Times of leases, of calls and of faults are a fifth of the real ones.
SCALE: Final = 0.2
# How many probes of a target may be under way at once.
CIRCUIT_PERMITS: Final = 2
# Executions of the simulation are short, and most of them have snapshots with this.
SNAPSHOT_EVENTS: Final = 7
