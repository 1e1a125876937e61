"""DBOS on the same workloads: `dbos_peer.py DATABASE_URL` prints one JSON line.

Runs in an environment of its own (benchmarks/peers/requirements-dbos.txt), against a PostgreSQL with the same settings.
A workflow of five steps that do nothing, started one by one with up to 256 in flight, as W2 says.
"""

import concurrent.futures
import json
import os
import sys
import time
from pathlib import Path

from dbos import DBOS, DBOSConfig

config: DBOSConfig = {
    "name": "bench",
    "system_database_url": sys.argv[1],
    "run_admin_server": False,
    "log_level": "ERROR",
}
DBOS(config=config)


@DBOS.step()
def noop() -> None:
    """Nothing."""


@DBOS.workflow()
def one() -> None:
    """One step."""
    noop()


@DBOS.workflow()
def five() -> None:
    """Five steps in a row."""
    for _ in range(5):
        noop()


@DBOS.workflow()
def fan_out() -> None:
    """A thousand steps, as children on a queue would be: the plain form, in a row, is what its users write."""
    for _ in range(1000):
        noop()


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def w1(count: int = 200) -> list[float]:
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        DBOS.start_workflow(one).get_result()
        times.append((time.perf_counter() - begun) * 1e3)
    return times


def w2(count: int = 2000) -> float:
    begun = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(256) as pool:
        list(pool.map(lambda _: DBOS.start_workflow(five).get_result(), range(count)))
    return time.perf_counter() - begun


def postgres_cpu() -> float:
    """CPU seconds of the database's processes, whose supervisor's pid is given."""
    total = 0
    ticks = os.sysconf("SC_CLK_TCK")
    postmaster = int(sys.argv[2])
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(entry.name) == postmaster or int(fields[1]) == postmaster:
                total += sum(int(value) for value in fields[11:13])
            if int(entry.name) == postmaster:
                total += sum(int(value) for value in fields[13:15])
    return total / ticks


def main() -> None:
    DBOS.launch()
    w1(20)
    w1_ms = w1()
    cpu_before, database_before = sum(os.times()[:4]), postgres_cpu()
    w2_s = w2()
    cpu_s = sum(os.times()[:4]) - cpu_before + postgres_cpu() - database_before
    begun = time.perf_counter()
    DBOS.start_workflow(fan_out).get_result()
    w3_s = time.perf_counter() - begun
    print(
        json.dumps(
            {
                "peer": "dbos",
                "W1": {
                    "p50_ms": round(percentile(w1_ms, 0.5), 2),
                    "p95_ms": round(percentile(w1_ms, 0.95), 2),
                },
                "W2": {"steps_per_s": round(10_000 / w2_s), "cpu_s_per_1000_steps": round(cpu_s / 10, 3)},
                "W3": {"wall_s": round(w3_s, 3)},
            }
        ),
        flush=True,
    )
    DBOS.destroy()


main()
