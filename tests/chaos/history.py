"""The questions asked of a history after the killing: the clients' log, the ledger of effects, the engine's rows.

Each question counts the cases that it saw. A question without a case proves nothing, so it fails.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.json_format import MessageToDict

from windlass.api.v1 import resources_pb2

Run = resources_pb2.Run
Execution = resources_pb2.Execution


# The mixed graphs: a row, a diamond, retries, a branch with a skipped side, a fan, slow work, a large output, a failure
# that blocks only the nodes after it, one after which finished nodes are undone, and loops over a list and over turns,
# children, the state of a workflow, and one that people pause, signal, approve and mend (load.py does it).
def _put(id_: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "module": "ledger.put@1", "idempotent": True, **more}


def _add(id_: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "module": "ledger.add@1", **more}


def _edges(*pairs: str) -> list[dict[str, Any]]:
    """`a>b` is an edge from a to b, and `a>b:true` is taken for that branch of a."""
    parts = [re.fullmatch(r"(\w+)>(\w+)(?::(\w+))?", pair) for pair in pairs]
    return [{"from": part[1], "to": part[2]} | ({"when": part[3]} if part[3] else {}) for part in parts if part]


_UNDO = {"module": "ledger.put@1", "idempotent": True}
_JOIN = {"id": "all", "module": "join@1"}
PEOPLE = "chaos-people"
GRAPHS: dict[str, dict[str, Any]] = {
    "chaos-row": {"nodes": [_put("a"), _add("b"), _put("c")], "edges": _edges("a>b", "b>c")},
    "chaos-diamond": {
        "nodes": [
            {"id": "top", "module": "noop@1"},
            _put("left", config={"seconds": 0.05}),
            _add("right", config={"seconds": 0.02}),
            _JOIN,
            {"id": "last", "module": "transform@1", "inputs": {"left": "{{ nodes.left.output.node }}"}},
        ],
        "edges": _edges("top>left", "top>right", "left>all", "right>all", "all>last"),
    },
    "chaos-retry": {
        "retry": {"attempts": 5, "initialDelay": "0.05s", "factor": 1, "maxDelay": "0.1s"},
        "nodes": [
            {"id": "flaky", "module": "ledger.flaky@1", "idempotent": True},
            {"id": "wait", "module": "sleep@1", "config": {"duration": "0.2s"}},
            _put("after"),
        ],
        "edges": _edges("flaky>wait", "wait>after"),
    },
    "chaos-branch": {
        "nodes": [
            {"id": "is_big", "module": "condition@1", "config": {"expression": "input.n > 10"}},
            _put("big"),
            _put("small"),
        ],
        "edges": _edges("is_big>big:true", "is_big>small:false"),
    },
    "chaos-fan": {
        "nodes": [*(_put(f"n{i}") for i in range(6)), _JOIN],
        "edges": _edges(*(f"n{i}>all" for i in range(6))),
    },
    "chaos-slow": {"nodes": [_put("slow", config={"seconds": 0.5}), _add("then")], "edges": _edges("slow>then")},
    "chaos-large": {
        "nodes": [
            _put("write", config={"bytes": 400_000}),
            {"id": "read", "module": "ledger.put@1", "inputs": {"of": "{{ nodes.write.output.node }}"}},
        ],
        "edges": _edges("write>read"),
    },
    "chaos-fails": {
        "nodes": [
            {"id": "bad", "module": "fail@1", "config": {"type": "PERMANENT", "message": "as told"}},
            _put("blocked"),
            _put("apart"),
        ],
        "edges": _edges("bad>blocked"),
    },
    "chaos-saga": {
        "nodes": [
            _put("a", compensate=_UNDO),
            _add("b", compensate=_UNDO),
            {"id": "bad", "module": "fail@1", "config": {"type": "PERMANENT", "message": "as told"}},
        ],
        "edges": _edges("a>b", "b>bad"),
    },
    "chaos-loops": {
        "nodes": [
            {
                "id": "each",
                "module": "for_each@1",
                "idempotent": True,
                "config": {
                    "items": "{{ [1, input.n, 3, 4, 5] }}",
                    "maxParallel": 2,
                    "body": {"module": "ledger.put@1"},
                },
            },
            {
                "id": "again",
                "module": "repeat@1",
                "idempotent": True,
                "config": {"until": "index == 2", "delay": "0.05s", "body": {"module": "ledger.put@1"}},
            },
        ],
        "edges": _edges("each>again"),
    },
    "chaos-children": {
        "nodes": [
            {"id": "kid", "module": "sub_workflow@1", "config": {"workflow": "chaos-row"}},
            {
                "id": "each",
                "module": "for_each@1",
                "config": {"items": [42, 43], "body": {"workflow": "chaos-branch", "inputs": {"n": "{{ item }}"}}},
            },
            _put("after"),
        ],
        "edges": _edges("kid>each", "each>after"),
    },
    "chaos-state": {
        "initialState": {"big": 1},
        "nodes": [
            _put("first"),
            {"id": "set", "module": "state.set@1", "inputs": {"big": "{{ input.n }}"}},
            _put("after", inputs={"of": "{{ state.big }}"}),
        ],
        "edges": _edges("first>set", "set>after"),
    },
    PEOPLE: {
        "onFailure": "HOLD",
        "nodes": [
            {"id": "nap", "module": "sleep@1", "config": {"duration": "0.1s"}},
            {"id": "wait", "module": "wait_signal@1", "config": {"signal": "go"}},
            {"id": "ask", "module": "approval@1", "config": {"title": "Go on?"}},
            {"id": "bad", "module": "fail@1", "config": {"type": "PERMANENT", "message": "as told"}},
            _put("after"),
        ],
        "edges": _edges("nap>wait", "wait>ask", "ask>bad:approved", "bad>after"),
    },
}
_FAILING = {"chaos-fails", "chaos-saga"}
EXPECTED = {name: Execution.FAILED if name in _FAILING else Execution.SUCCESS for name in GRAPHS}
# When the execution is over, each of these nodes must have had its effect once.
EFFECTS = {
    "chaos-row": {"a", "b", "c"},
    "chaos-diamond": {"left", "right"},
    "chaos-retry": {"flaky", "after"},
    "chaos-branch": {"big"},
    "chaos-fan": {f"n{i}" for i in range(6)},
    "chaos-slow": {"slow", "then"},
    "chaos-large": {"write", "read"},
    "chaos-fails": {"apart"},
    "chaos-saga": {"a", "b", "b$undo", "a$undo"},
    "chaos-loops": {"each", "again"},
    "chaos-children": {"after"},
    "chaos-state": {"first", "after"},
    PEOPLE: {"after"},
}


class Work(NamedTuple):
    """A piece of work. All attempts at it share this key."""

    execution: str
    node: str
    iteration: int
    generation: int


@dataclass
class History:
    """One history, seen by the clients, the ledger and the engine."""

    executions: dict[str, resources_pb2.Execution] = field(default_factory=dict)
    runs: dict[str, list[resources_pb2.Run]] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)


def calls_in(ledger: Path) -> list[dict[str, Any]]:
    """The calls that ledger_modules.py has written down so far."""
    path = ledger / "calls.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def faults_of(history: History) -> list[str]:
    """Every breach, in words. The caller checks by `cases` how many cases were seen."""
    return [
        *_ended_rightly(history),
        *_no_run_called_twice(history),
        *_nothing_called_after_success(history),
        *_live_runs_do_not_overlap(history),
        *_effects_are_there(history),
        *_work_has_one_key_of_its_own(history),
    ]


def cases(history: History) -> dict[str, int]:
    """The number of cases that were looked at."""
    calls_of = Counter(work for _, work in _begun_works(history))
    return {
        "executions": len(history.executions),
        "runs": sum(len(runs) for runs in history.runs.values()),
        "calls": sum(1 for call in history.calls if call["phase"] == "begin"),
        "repeated": sum(1 for runs in history.runs.values() for run in runs if run.attempt > 1),
        "works": len(calls_of),
        "works called again": sum(1 for calls in calls_of.values() if calls > 1),
    }


def done_again(history: History) -> list[str]:
    """Work that was done more often than it should have been. Retries that the module asked for do not count, and
    neither does a run that never began: its grant was withdrawn, because it was under way when the outage came."""
    calls_of = Counter(work for _, work in _begun_works(history))
    return [
        *(
            f"{work.node} of {work.execution} was called {calls} times"
            for work, calls in calls_of.items()
            if calls > (2 if work.node == "flaky" else 1)
        ),
        *(
            f"{run.id} is attempt {run.attempt} of {run.node}"
            for runs in history.runs.values()
            for run in runs
            if run.attempt > 1 and not run.module.startswith("ledger.")
        ),
    ]


def _ended_rightly(history: History) -> list[str]:
    return [
        f"{execution.id} ({execution.workflow}) ended as {Execution.State.Name(execution.state)}: "
        f"{MessageToDict(execution.error)}"
        for execution in history.executions.values()
        if execution.state != EXPECTED.get(execution.workflow, Execution.SUCCESS)
    ]


def _no_run_called_twice(history: History) -> list[str]:
    begun: dict[str, int] = defaultdict(int)
    for call in history.calls:
        begun[call["run"]] += call["phase"] == "begin"
    return [f"run {run} was called {n} times" for run, n in begun.items() if n > 1]


def _nothing_called_after_success(history: History) -> list[str]:
    succeeded = {
        run.effect_key: run.attempt for runs in history.runs.values() for run in runs if run.state == Run.SUCCESS
    }
    return [
        f"{call['node']} of {call['execution']} ran again (attempt {call['attempt']}) after it had finished"
        for call in history.calls
        if call["phase"] == "begin" and call["attempt"] > succeeded.get(call["effect_key"], call["attempt"])
    ]


def _live_runs_do_not_overlap(history: History) -> list[str]:
    """Attempts at one work follow one another: a call that ended had ended before the next one began."""
    ended = {call["run"]: call["monotonic_ns"] for call in history.calls if call["phase"] != "begin"}
    by_work: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for call in history.calls:
        if call["phase"] == "begin":
            by_work[call["effect_key"]].append(call)
    found = []
    for calls in by_work.values():
        calls.sort(key=lambda call: call["monotonic_ns"])
        for earlier, later in itertools.pairwise(calls):
            if ended.get(earlier["run"], 0) > later["monotonic_ns"]:
                found.append(f"S11: {later['run']} began while {earlier['run']} was still going")
    return found


def _effects_are_there(history: History) -> list[str]:
    had = {(call["execution"], call["node"]) for call in history.calls if call["phase"] == "end"}
    return [
        f"{node} of {execution.id} has no effect"
        for execution in history.executions.values()
        for node in EFFECTS.get(execution.workflow, ())
        if (execution.id, node) not in had
    ]


def _begun_works(history: History) -> Iterator[tuple[dict[str, Any], Work]]:
    """Each call with its work, as the engine's own rows say."""
    works = {
        run.id: Work(execution_id, run.node, run.iteration, run.generation)
        for execution_id, runs in history.runs.items()
        for run in runs
    }
    for call in history.calls:
        if call["phase"] == "begin" and call["run"] in works:
            yield call, works[call["run"]]


def _work_has_one_key_of_its_own(history: History) -> list[str]:
    """Third parties tell works apart by this key: all attempts at one work share it, and no other work has it."""
    shown = {run.id: run.effect_key for runs in history.runs.values() for run in runs}
    keys_of: dict[Work, set[str]] = defaultdict(set)
    works_of: dict[str, set[Work]] = defaultdict(set)
    found = []
    for call, work in _begun_works(history):
        key = call["effect_key"]
        keys_of[work].add(key)
        works_of[key].add(work)
        if not key or key != shown[call["run"]]:
            found.append(f"S15: {call['run']} was called with key {key!r}, and shows {shown[call['run']]!r}")
    found += [f"S15: {work} had keys {sorted(keys)}" for work, keys in keys_of.items() if len(keys) > 1]
    found += [f"S15: key {key} is shared by {sorted(works)}" for key, works in works_of.items() if len(works) > 1]
    return found
