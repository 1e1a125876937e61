"""CPU of the pure core and the codec alone, per step: what a coordinator cannot go below.

    python -m benchmarks.micro_core

Prints one JSON line, microseconds of one thread. A step is a success and the lease of what it set free (two events).
Hazards: best of several rounds, on a machine that others use too; read it as a bound, not as a share of a budget.
"""

import json
from collections.abc import Callable
from time import perf_counter

from services.coordinator.core import Execution, compile_definition, decide, effects, evolve
from services.coordinator.core.commands import Assign, Grant, ReportSuccess, Start
from services.coordinator.core.definition import Definition
from services.coordinator.core.events import Event
from services.coordinator.core.projection import execution_change, run_change, run_row
from services.coordinator.store.codec import decode, encode

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
    return compile_definition(
        {"name": "fan", "nodes": [*nodes, {"id": "all", "module": "join@1"}], "edges": edges}
    )


def play(definition: Definition) -> tuple[Execution, list[Event]]:
    """From start to result, every run answered at once."""
    execution = Execution(EXECUTION_ID, definition)
    journal: list[Event] = []
    _apply(execution, decide(execution, Start(1, "c", "default", "chain", 1), NOW).events, journal)
    while not execution.is_final:
        if execution.ready:
            grants = [Grant(work, INSTANCE, RUNNER) for work in execution.ready]
            _apply(execution, decide(execution, Assign(grants), NOW).events, journal)
        for run in list(execution.live.values()):
            report = ReportSuccess(run.number, run.epoch, b"{}", "", NOW, NOW, HASH, HASH)
            _apply(execution, decide(execution, report, NOW).events, journal)
    return execution, journal


def _apply(execution: Execution, events: list[Event], journal: list[Event]) -> None:
    for event in events:
        evolve(execution, event)
        journal.append(event)


def best(measured: Callable[[], object], count: int) -> float:
    """µs for each of `count`, in the best round."""
    times = []
    for _ in range(ROUNDS):
        start = perf_counter()
        measured()
        times.append(perf_counter() - start)
    return round(min(times) / count * 1e6, 2)


def main() -> None:
    linear, wide = chain(500), fan(1000)
    execution, journal = play(linear)
    records = [encode(event, EXECUTION_ID, seq, 1) for seq, event in enumerate(journal, 1)]

    def fold() -> None:
        state = Execution(EXECUTION_ID, linear)
        for event in journal:
            evolve(state, event)
            effects(state, event)

    def encode_all() -> None:
        for seq, event in enumerate(journal, 1):
            encode(event, EXECUTION_ID, seq, 1)

    def rows() -> None:
        for run in execution.runs:
            run_row(execution, run)
            run_change(execution, run)
            execution_change(execution)
            execution_change(execution)

    figures = {
        "decide_evolve_step": best(lambda: play(linear), 500),
        "decide_evolve_step_of_1000_parallel": best(lambda: play(wide), 1000),
        "encode_step": best(encode_all, 500),
        "decode_step": best(lambda: [decode(record) for record in records], 500),
        "fold_and_effects_step": best(fold, 500),
        "rows_step": best(rows, 500),
        "record_bytes_step": sum(map(len, records[1:-1])) / 500,
        "compile_1000_nodes": best(lambda: fan(1000), 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
