"""Replays the world of a seed: `.venv/bin/python -m tests.simulation SEED`, or searches seeds `FIRST LAST`.

With one seed it prints the trace and the logs of all processes.
"""

import sys
import time

from tests.simulation.world import simulate


def main() -> int:
    first, *rest = map(int, sys.argv[1:])
    if rest:
        return _search(range(first, rest[0]))
    trace: list[str] = []
    outcome = simulate(first, trace)
    print("\n".join(trace))
    print(outcome)
    return bool(outcome.violations)


def _search(seeds: range) -> int:
    failed, began = 0, time.perf_counter()
    for seed in seeds:
        outcome = simulate(seed)
        if outcome.violations:
            failed += 1
            print(seed, outcome.violations[0], flush=True)
    print(f"{failed} of {len(seeds)} seeds failed, {time.perf_counter() - began:.1f} s")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
