"""The worlds of many seeds keep all promises. To replay one: `.venv/bin/python -m tests.simulation SEED`."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.network import CallFate
from tests.simulation.world import simulate

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 300
SEEDS_LONG = 20_000
AT_ONCE = 100
# A check that has seen no case proves nothing.
PROMISES = (
    "S1",
    "S2",
    "S3",
    "S4",
    "S6",
    "S7",
    "S8",
    "S9",
    "S10",
    "S11",
    "S12",
    "S13",
    "S14",
    "S15",
    "S16",
    "S18",
    "S19",
    "S20",
    "S25",
    "S26",
)
# Every feature of an execution, and everything that may happen to a call, is seen too.
SEEN = (
    "WorkTakenOver",
    "RunQuarantined",
    "ChildCancelOrdered",
    "WorkLetThrough",
    "RunProgressed",
    "StopOrdered",
    "CompensationStarted",
    *(f"call {fate.value}" for fate in CallFate if fate is not CallFate.DONE),
)


def violations_of(seeds: range) -> tuple[list[str], Counter[str]]:
    """What is broken, with the line that replays it; and the number of cases that were seen."""
    found: list[str] = []
    cases: Counter[str] = Counter()
    for seed in seeds:
        outcome = simulate(seed)
        cases.update(outcome.cases)
        if outcome.violations:
            found.append(f".venv/bin/python -m tests.simulation {seed}  # {outcome.violations[0]}")
    return found, cases


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_promises_hold_in_every_world(first: int) -> None:
    found, cases = violations_of(range(first, first + AT_ONCE))
    assert not found, "\n" + "\n".join(found)
    assert [promise for promise in (*PROMISES, *SEEN) if not cases[promise]] == []


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(SEEDS, SEEDS_LONG, 4 * AT_ONCE))
def test_promises_hold_in_very_many_worlds(first: int) -> None:
    found, _ = violations_of(range(first, min(first + 4 * AT_ONCE, SEEDS_LONG)))
    assert not found, "\n" + "\n".join(found)


def trace_hash_elsewhere(seed: int, hash_seed: int) -> str:
    """The hash of the trace in another process, in which sets of texts have another order."""
    replay = subprocess.run(
        [sys.executable, "-m", "tests.simulation", str(seed)],
        cwd=ROOT,
        env=dict(os.environ, PYTHONHASHSEED=str(hash_seed), PYTHONDONTWRITEBYTECODE="1"),
        text=True,
        capture_output=True,
        check=True,
    )
    return replay.stdout.rpartition("trace_hash='")[2].partition("'")[0]


@pytest.mark.parametrize("seed", [5, 33, 103])
def test_the_same_seed_is_the_same_world(seed: int) -> None:
    outcome = simulate(seed)
    assert {trace_hash_elsewhere(seed, 1), trace_hash_elsewhere(seed, 2)} == {outcome.trace_hash}
    assert simulate(seed + 1).trace_hash != outcome.trace_hash
