"""`make bench`: measures Windlass and its peers in interleaved rounds, and prints one JSON line of medians for each.

Every round starts a fresh stack of real processes (leases at full length, fsync on, tracing at its default sampling
into a collector, keys and validation on), and each peer on fresh data. Compare only lines of one run, because the
machine's speed varies.

`--beside DIR` compares two commits instead: this work tree and another one, interleaved, with their ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from benchmarks.figures import Figures, medians, ratios
from benchmarks.peers import Peer, dbos, restate, temporal
from benchmarks.peers.environment import ROOT
from benchmarks.rounds import PARTS, windlass_round

PEERS: dict[str, Peer] = {"dbos": dbos, "restate": restate, "temporal": temporal}
DEFAULT_PEERS = "dbos,restate"
Round = Callable[[], Awaitable[Figures]]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def installed(names: list[str]) -> dict[str, Peer]:
    """The peers that can be installed on this machine. The others are named on stderr."""
    found = {}
    for name in names:
        try:
            PEERS[name].install()
        except (OSError, subprocess.CalledProcessError) as error:
            say(f"{name} is left out, as it cannot be installed: {error}")
        else:
            found[name] = PEERS[name]
    return found


async def compare(parts: Collection[str], rounds: int, other: Path) -> None:
    """Measure this work tree and another one, which goes first in every second round."""
    pairs: list[tuple[Figures, Figures]] = []
    for number in range(rounds):
        if number % 2 == 0:
            ours, theirs = await windlass_round(parts, (ROOT, other))
        else:
            theirs, ours = await windlass_round(parts, (other, ROOT))
        pairs.append((ours, theirs))
        say(f"round {number + 1}: this / {other} {json.dumps(ratios(pairs[-1:]))}")
    ours_of, theirs_of = zip(*pairs, strict=True)
    put(str(ROOT), medians(ours_of))
    put(str(other), medians(theirs_of))
    put("ratio: median, lowest, highest", ratios(pairs))


async def beside_peers(parts: Collection[str], rounds: int, names: list[str]) -> None:
    async def ours() -> Figures:
        return (await windlass_round(parts))[0]

    rounds_of: dict[str, Round] = {"windlass": ours}
    rounds_of |= {name: peer.run_round for name, peer in installed(names).items()}
    found: dict[str, list[Figures]] = {name: [] for name in rounds_of}
    for number in range(rounds):
        for name, run_round in rounds_of.items():
            found[name].append(await run_round())
            say(f"round {number + 1}: {name} {json.dumps(medians(found[name][-1:]))}")
    for name, measured in found.items():
        put(name, medians(measured))


def put(peer: str, figures: Figures) -> None:
    """Print one line of the result."""
    print(json.dumps({"peer": peer, **figures, "cores": os.cpu_count()}), flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--peers", default=DEFAULT_PEERS, help=f"of {', '.join(PEERS)}; default: %(default)s")
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="DIR",
        help="compare with the code in another work tree, which has a .venv of its own, and leave the peers out",
    )
    given = parser.parse_args()
    parts = given.parts.split(",")
    names = [name for name in given.peers.split(",") if name]
    if unknown := (set(names) - set(PEERS)) | (set(parts) - set(PARTS)):
        parser.error(f"no such peer or part: {', '.join(sorted(unknown))}")
    if given.beside is not None and not (given.beside / ".venv/bin/windlass").exists():
        parser.error(f"{given.beside} has no .venv/bin/windlass; run `make env` there")
    if given.beside is None:
        await beside_peers(parts, given.rounds, names)
    else:
        await compare(parts, given.rounds, given.beside.resolve(strict=True))


if __name__ == "__main__":
    asyncio.run(main())
