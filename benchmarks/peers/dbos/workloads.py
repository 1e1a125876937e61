"""DBOS on the same workloads: `workloads.py DATABASE_URL POSTMASTER_PID` prints one JSON line.

A workflow of five steps that do nothing, started one by one with up to 256 in flight, as W2 says.
"""

import concurrent.futures
import json
import os
import sys
import time

from dbos import DBOS, DBOSConfig

from benchmarks.measure import cpu_seconds, percentile, tree

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


def cpu_s() -> float:
    """Of everything: the library in this process, PostgreSQL."""
    return cpu_seconds(tree([os.getpid(), int(sys.argv[2])]))


def main() -> None:
    DBOS.launch()
    w1(20)
    w1_ms = w1()
    cpu_before_s = cpu_s()
    w2_s = w2()
    cpu_w2_s = cpu_s() - cpu_before_s
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
                "W2": {"steps_per_s": round(10_000 / w2_s), "cpu_s_per_1000_steps": round(cpu_w2_s / 10, 3)},
                "W3": {"wall_s": round(w3_s, 3)},
            }
        ),
        flush=True,
    )
    DBOS.destroy()


main()
