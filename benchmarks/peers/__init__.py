"""The peers that Windlass is measured beside: a folder each, which is a `Peer`.

In a folder: `__init__.py` installs the peer and runs a round; `workloads.py` is its client, run in an environment of
its own with the pins of `requirements.txt`, so that they are not ours. It prints one JSON line in the shape of ours.
"""

from typing import Any, Protocol


class Peer(Protocol):
    """What the module of each folder is."""

    def install(self) -> None:
        """Once per run; quick when it is there already. OSError or CalledProcessError: not to be had here."""

    async def run_round(self) -> dict[str, Any]:
        """The figures of one round on fresh data. Nothing it started is left afterwards."""
