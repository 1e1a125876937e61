"""DBOS on the same workloads: `workloads.py DATABASE_URL POSTMASTER_PID` prints one JSON line.

A workflow can be called as a function or started in the background, by several threads and processes. The fastest form
depends on the machine, so each workload first tries its forms on a short piece of work. Only the fastest is measured.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

from dbos import DBOS, DBOSConfig

from benchmarks.measure import cpu_seconds, percentile, tree

PROCESSES = 2
TRIAL_EXECUTIONS = 300


def launch(database_url: str) -> None:
    """Called once per process. Each executor has its own name, or it would recover the work of the other one."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": database_url,
        "executor_id": str(os.getpid()),
        "run_admin_server": False,
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()


@DBOS.step()
def noop() -> None:
    """Nothing."""


@DBOS.step()
async def noop_async() -> None:
    """Nothing."""


@DBOS.workflow()
def in_a_row(length: int) -> None:
    """Steps one after the other. DBOS runs independent steps like this too, unless they are gathered."""
    for _ in range(length):
        noop()


@DBOS.workflow()
async def gathered(width: int) -> None:
    """Independent steps at once."""
    await asyncio.gather(*(noop_async() for _ in range(width)))


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def in_threads(threads: int, count: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: in_a_row(5), range(count)))


def in_processes(processes: ProcessPoolExecutor, threads: int, count: int) -> None:
    list(processes.map(partial(in_threads, threads), [count // PROCESSES] * PROCESSES))


def fastest(forms: Mapping[str, Callable[[int], object]], size: int) -> str:
    """The form that is the fastest on a run of this size. A shorter run before it opens the connections."""
    for form in forms.values():
        form(size // 4)
    trials = {name: seconds(partial(form, size)) for name, form in forms.items()}
    return min(trials, key=lambda name: trials[name])


def latencies(run: Callable[[], object], count: int) -> list[float]:
    return [seconds(run) * 1e3 for _ in range(count)]  # milliseconds


def w1() -> dict[str, object]:
    forms = {
        "called": partial(latencies, lambda: in_a_row(1)),
        "started in the background": partial(latencies, lambda: DBOS.start_workflow(in_a_row, 1).get_result()),
    }
    form = fastest(forms, 100)
    times = forms[form](200)
    return {"form": form, "p50_ms": percentile(times, 0.5), "p95_ms": percentile(times, 0.95)}


def w2(processes: ProcessPoolExecutor, count: int = 2000) -> dict[str, object]:
    forms: dict[str, Callable[[int], object]] = {}
    for threads in (2, 4, 8):
        forms[f"{threads} threads"] = partial(in_threads, threads)
        forms[f"{PROCESSES} processes of {threads} threads"] = partial(in_processes, processes, threads)
    form = fastest(forms, TRIAL_EXECUTIONS)
    pids = tree([os.getpid(), int(sys.argv[2])])  # the library in our processes, and PostgreSQL
    before_s = cpu_seconds(pids)
    wall_s = seconds(partial(forms[form], count))
    cpu_s = cpu_seconds(pids) - before_s
    steps = 5 * count
    return {"form": form, "steps_per_s": round(steps / wall_s), "cpu_s_per_1000_steps": cpu_s * 1_000 / steps}


def w3(width: int = 1000) -> dict[str, object]:
    forms: dict[str, Callable[[int], object]] = {
        "in a row": in_a_row,
        "asyncio.gather": lambda size: asyncio.run(gathered(size)),
    }
    form = fastest(forms, width // 4)
    return {"form": form, "wall_s": seconds(partial(forms[form], width))}


def main() -> None:
    launch(sys.argv[1])
    line: dict[str, object] = {"W1": w1()}
    with ProcessPoolExecutor(PROCESSES, get_context("spawn"), launch, (sys.argv[1],)) as processes:
        line["W2"] = w2(processes)
    line["W3"] = w3()
    print(json.dumps(line), flush=True)
    DBOS.destroy()


if __name__ == "__main__":
    main()
