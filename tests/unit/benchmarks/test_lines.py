"""`make bench` prints one JSON line per peer in the shape of the contract, with the medians of its rounds. The stacks
and the workloads are replaced here, and the figures come from the replacements."""

import contextlib
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import __main__ as bench
from benchmarks import rounds
from benchmarks.peers.environment import ROOT

Lines = Callable[..., Awaitable[Any]]
NUMBER = float
SHAPE = {
    "peer": str,
    "W1": {"p50_ms": NUMBER, "p95_ms": NUMBER},
    "W2": {"steps_per_s": NUMBER, "cpu_s_per_1000_steps": NUMBER},
    "W2b": {"steps_per_s": NUMBER, "cpu_s_per_1000_steps": NUMBER},
    "W3": {"wall_s": NUMBER},
    "L": {"p50_ms": NUMBER, "p95_ms": NUMBER},
    "memory_pss_mb": NUMBER,
    "collector": {"spans": NUMBER, "cpu_s": NUMBER},
    "cores": int,
}
# The seconds that three rounds take; the median is neither the first nor the last.
WALL_S = [40.0, 10.0, 20.0]


class Idle:
    """Replaces a client, its stack and its collector."""

    pid = os.getpid()
    endpoint = "http://nowhere"
    spans_arrived = 7
    home = SimpleNamespace(root=Path("nowhere"))
    process = SimpleNamespace(pid=os.getpid())

    def __init__(self, *_given: object) -> None: ...

    async def apply(self, _definition: Any) -> None: ...

    async def run(self, _workflow: str) -> None: ...

    async def run_batch(self, _workflow: str, _size: int) -> None: ...

    async def spans(self) -> int:
        return self.spans_arrived

    async def close(self) -> None: ...

    def entries(self, _service: str) -> list[dict[str, str]]:
        return [{"grpc": "nowhere"}]

    def up(self) -> dict[str, Any]:
        return {"processes": [{"pid": os.getpid()}]}


@pytest.fixture
def _without_work(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def idle(*_given: Any, **_options: Any) -> AsyncIterator[Idle]:
        yield Idle()

    walls, cpus = itertools.cycle(WALL_S), itertools.count(0.0, 5.0)

    async def one_by_one(_run: Any, count: int = 200) -> list[float]:
        return [next(walls) * 1e3] if count == 1 else [float(number) for number in range(count)]

    async def many_at_once(_run: Any, **_more: int) -> float:
        return next(walls)

    async def latency(_client: Any, per_second: float) -> dict[str, float]:
        return {"p50_ms": per_second, "p95_ms": per_second}

    for name, stand_in in {
        "running_stack": idle,
        "collector": idle,
        "Client": Idle,
        "one_by_one": one_by_one,
        "many_at_once": many_at_once,
        "latency": latency,
        "cpu_seconds": lambda _pids: next(cpus),
    }.items():
        monkeypatch.setattr(rounds, name, stand_in)


class Quick:
    """A peer that has only some of the workloads."""

    def install(self) -> None: ...

    async def run_round(self) -> dict[str, Any]:
        return {"peer": "quick", "W3": {"wall_s": 0.5}}


def fits(value: Any, shape: Any) -> bool:
    """True when everything of the shape is there and fits. There may be more."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(key in value and fits(value[key], shape[key]) for key in shape)
    if shape is NUMBER:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, shape)


@pytest.fixture
def lines(_without_work: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lines:
    """Runs the benchmarks with these arguments. Returns the lines that they print."""

    async def printed(*given: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *given])
        await bench.main()
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return printed


async def test_line_has_the_shape_of_the_contract(lines: Lines) -> None:
    (line,) = await lines("--peers", "")
    assert fits(line, SHAPE), line
    assert (line["peer"], line["cores"]) == ("windlass", os.cpu_count())
    assert line["W1"] == {"p50_ms": 100.0, "p95_ms": 190.0, "cpu_ms_each": 25.0}


async def test_figures_are_medians_of_three_rounds(lines: Lines) -> None:
    (line,) = await lines("--peers", "", "--parts", "W2")
    assert line["W2"] == {"steps_per_s": rounds.STEPS / 20.0, "cpu_s_per_1000_steps": 0.5}
    assert set(line) == {"peer", "W2", "memory_pss_mb", "collector", "cores"}


async def test_round_without_a_span_fails(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Idle, "spans_arrived", 0)
    with pytest.raises(RuntimeError, match="nothing was traced"):
        await lines("--peers", "", "--parts", "W1")


async def test_two_trees_are_compared_round_by_round(lines: Lines, tmp_path: Path) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/windlass").touch()
    ours, theirs, ratio = await lines("--beside", str(tmp_path), "--parts", "W3", "--rounds", "2")
    assert (ours["peer"], theirs["peer"]) == (str(ROOT), str(tmp_path))
    # The times are 40, 10, 20 and 40 s: this tree is first in the first round and second in the other.
    assert (ours["W3"]["wall_s"], theirs["W3"]["wall_s"]) == (40.0, 15.0)
    assert ratio["W3"]["wall_s"] == [3.0, 2.0, 4.0]


async def test_each_peer_has_a_line_of_its_own(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "PEERS", {"quick": Quick()})
    first, second = await lines("--peers", "quick", "--rounds", "1")
    assert fits(first, SHAPE), first
    assert second == {"peer": "quick", "W3": {"wall_s": 0.5}, "cores": os.cpu_count()}
