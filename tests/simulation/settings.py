"""What the simulated services and the checks have to agree on."""

from typing import Final

# How many probes of a target may be under way at once.
CIRCUIT_PERMITS: Final = 2
