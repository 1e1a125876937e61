"""The peers that Windlass is measured beside. Each has a folder, whose module is a `Peer`.

`__init__.py` installs the peer and runs a round. `workloads.py` is its client: it runs in its own environment with the
packages of `requirements.txt`, and prints one JSON line of the same shape as ours.
"""

from typing import Any, Protocol


class Peer(Protocol):
    """The functions that the module of each folder has."""

    def install(self) -> None:
        """Install the peer, unless it is there. Raises OSError or CalledProcessError when that is impossible here."""

    async def run_round(self) -> dict[str, Any]:
        """The figures of one round on fresh data. It ends everything that it starts."""
