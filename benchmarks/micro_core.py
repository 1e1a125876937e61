"""Measures the CPU of the pure core and the codec per step: the least that a coordinator can need.

    python -m benchmarks.micro_core

Prints one JSON line, in microseconds of one thread. A step is two events: a success, and the lease of the next work.
Hazards: each figure is the best of several rounds by the thread's own clock, so that other processes count less. Read
it as a lower bound, not as a share of a budget.
"""

import json
from collections.abc import Callable
from time import thread_time

from services.coordinator.core.commands import Assign, AssignedRun, ReportSuccess, Start
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.definition import Definition
from services.coordinator.core.effects import effects
from services.coordinator.core.events import Event
from services.coordinator.core.fold import apply
from services.coordinator.core.handlers import handle
from services.coordinator.core.projection import execution_change, run_change, run_row
from services.coordinator.core.state import Execution
from services.coordinator.core.values import Origin
from services.coordinator.store.codec import encode_event, seal, unseal

ROUNDS = 7
INSTANCE, RUNNER = "9be0eb9c-32b2-4d62-9c06-0f5a2b1d9d11", "runner-1"
EXECUTION_ID = "01931f3c-7a1b-7c3d-8e4f-1234567890ab"
NOW = 1_800_000_000_000_000
HASH = bytes(32)


def chain(size: int) -> Definition:
    nodes = [{"id": f"step{number}", "module": "noop@1"} for number in range(size)]
    edges = [{"from": f"step{number}", "to": f"step{number + 1}"} for number in range(size - 1)]
    return compile_definition({"name": "chain", "nodes": nodes, "edges": edges})


def fan(width: int) -> Definition:
    nodes = [{"id": f"step{number}", "module": "noop@1"} for number in range(width)]
    edges = [{"from": f"step{number}", "to": "all"} for number in range(width)]
    return compile_definition({"name": "fan", "nodes": [*nodes, {"id": "all", "module": "join@1"}], "edges": edges})


def play(definition: Definition) -> tuple[Execution, list[Event]]:
    """Carry an execution from start to result. Every run succeeds at once."""
    execution = Execution(EXECUTION_ID, definition)
    journal = handle(execution, Start(1, "c", Origin("default", "chain", 1, "chain-v1")), NOW).events
    while not execution.is_final:
        if execution.ready:
            grants = [AssignedRun(work, INSTANCE, RUNNER) for work in execution.ready]
            journal += handle(execution, Assign(grants), NOW).events
        for run in list(execution.live.values()):
            report = ReportSuccess(
                run.number, run.epoch, b"{}", start_time=NOW, end_time=NOW, inputs_hash=HASH, config_hash=HASH
            )
            journal += handle(execution, report, NOW).events
    return execution, journal


def best(measured: Callable[[], object], count: int) -> float:
    """µs for each of `count`, in the best round."""
    times = []
    for _ in range(ROUNDS):
        start = thread_time()
        measured()
        times.append(thread_time() - start)
    return round(min(times) / count * 1e6, 2)


def main() -> None:
    linear, wide = chain(500), fan(1000)
    execution, journal = play(linear)
    # Each step of a chain is one append of two events.
    steps = [journal[place : place + 2] for place in range(2, len(journal), 2)]
    appends = [seal(EXECUTION_ID, 1, 1, NOW, [encode_event(event) for event in step]) for step in steps]

    def fold() -> None:
        state = Execution(EXECUTION_ID, linear)
        for event in journal:
            apply(state, event)
            effects(state, event)

    def encode_all() -> None:
        for step in steps:
            seal(EXECUTION_ID, 1, 1, NOW, [encode_event(event) for event in step])

    def rows() -> None:
        for run in execution.runs:
            run_row(execution, run)
            run_change(execution, run)
            execution_change(execution)
            execution_change(execution)

    figures = {
        "handle_step": best(lambda: play(linear), 500),
        "handle_step_of_1000_parallel": best(lambda: play(wide), 1000),
        "encode_step": best(encode_all, 500),
        "decode_step": best(lambda: [unseal(append) for append in appends], 500),
        "fold_and_effects_step": best(fold, 500),
        "rows_step": best(rows, 500),
        "append_bytes_step": sum(map(len, appends)) / 500,
        "compile_1000_nodes": best(lambda: fan(1000), 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
