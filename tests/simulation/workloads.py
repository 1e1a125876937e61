"""The workflows that a simulation starts, drawn from its seed.

A new feature of the engine gets a generator here: a function that draws a definition, and says how its executions may
end, which nodes must have had their effect, and what people have to send. Add it to GENERATORS. What people may send to
any execution (a cancel, a pause) is drawn in `draw_starts`, and made into a message in client.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from random import Random
from typing import Any, Final
from uuid import UUID

from tests.simulation.loop import START

SUCCESS: Final = frozenset({"SUCCESS"})
FAILED: Final = frozenset({"FAILED"})
Document = dict[str, Any]


class Sending(Enum):
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    # The signal GO.
    SIGNAL = "signal"
    # Every approval that is asked for is given, until the execution has ended.
    APPROVE = "approve"
    # Every run that its module has left to somebody else is completed, until the execution has ended.
    COMPLETE = "complete"
    # What has failed is done again, until the execution has ended well or for another reason.
    RETRY = "retry"
    # A fork is started that takes over what was done well so far.
    FORK = "fork"


# The signal that executions wait for.
GO: Final = "go"


@dataclass
class Workload:
    definition: Document
    # How it ends when nobody interferes.
    ends: frozenset[str] = SUCCESS
    # The nodes that have had their effect when it has ended so; nodes of a loop as often as given in `items`.
    effects: frozenset[str] = frozenset()
    items: dict[str, int] = field(default_factory=dict)
    # Without these it does not go on.
    sendings: tuple[Sending, ...] = ()
    # The workflow that it starts.
    child: Workload | None = None


@dataclass
class PlannedStart:
    """A start, and what is sent to its execution later."""

    at: float
    execution_id: str
    workspace: str
    version_id: str
    workload: Workload
    priority: int = 3
    request_id: str = ""
    # Seconds after the start. None: never.
    deadline: float | None = None
    # What people send, each so many seconds after the one before it was answered.
    sendings: list[tuple[float, Sending]] = field(default_factory=list)
    # The same start is sent once more, under another id: its request id makes it the same.
    repeats: list[str] = field(default_factory=list)


def _work(random: Random, id_: str, **config: Any) -> Document:
    seconds = random.choice([0.0, 0.0, 0.01, 0.05, 0.2, random.uniform(0.2, 2.5)])
    module = random.choice(["ledger.put@1", "ledger.add@1"])
    return {"id": id_, "module": module, "config": {"seconds": round(seconds, 3), **config}}


def _edges(*pairs: str) -> list[Document]:
    """`a>b` is an edge from a to b, and `a>b:failure` is taken when a has failed."""
    parts = [pair.partition(":") for pair in pairs]
    return [
        {"from": ends.split(">")[0], "to": ends.split(">")[1]} | ({"when": when} if when else {})
        for ends, _, when in parts
    ]


def row(random: Random) -> Workload:
    ids = [f"n{i}" for i in range(random.randint(1, 4))]
    edges = _edges(*(f"{a}>{b}" for a, b in pairwise(ids)))
    return Workload({"nodes": [_work(random, id_) for id_ in ids], "edges": edges}, effects=frozenset(ids))


def diamond(random: Random) -> Workload:
    """It joins two branches, and hands data through templates."""
    ids = ["top", "left", "right"]
    last = _work(random, "last") | {
        "inputs": {"left": "{{ nodes.left.output.node }}", "of": "{{ nodes.right.output.execution }}"}
    }
    nodes = [*(_work(random, id_) for id_ in ids), {"id": "all", "module": "join@1"}, last]
    edges = _edges("top>left", "top>right", "left>all", "right>all", "all>last")
    return Workload({"nodes": nodes, "edges": edges}, effects=frozenset([*ids, "last"]))


def fan(random: Random) -> Workload:
    ids = [f"n{i}" for i in range(random.randint(2, 6))]
    nodes = [*(_work(random, id_) for id_ in ids), {"id": "all", "module": "join@1"}]
    return Workload({"nodes": nodes, "edges": _edges(*(f"{id_}>all" for id_ in ids))}, effects=frozenset(ids))


def retries(random: Random) -> Workload:
    """A node fails once or twice, and then does its work."""
    flaky = _work(random, "flaky", fails=random.randint(1, 2))
    retry = {"attempts": 40, "initialDelay": "0.1s", "factor": 1.5, "maxDelay": "1s"}
    nodes = [flaky, _work(random, "after")]
    return Workload(
        {"retry": retry, "nodes": nodes, "edges": _edges("flaky>after")}, effects=frozenset(["flaky", "after"])
    )


def sleeps(random: Random) -> Workload:
    """A short sleep keeps its slot; a long one gives it back."""
    seconds = random.choice([0.3, 1.5, 11.0, 12.5])
    nodes = [
        _work(random, "a"),
        {"id": "rest", "module": "sleep@1", "config": {"duration": f"{seconds}s"}},
        _work(random, "b"),
    ]
    return Workload({"nodes": nodes, "edges": _edges("a>rest", "rest>b")}, effects=frozenset("ab"))


def renders(random: Random) -> Workload:
    """Runners render the config of a control node, and the output."""
    first = _work(random, "a") | {"inputs": {"pause": random.choice([0.2, 1.0, 11.0])}}
    rest = {"id": "rest", "module": "sleep@1", "config": {"duration": "{{ nodes.a.output.inputs.pause }}"}}
    definition = {
        "nodes": [first, rest, _work(random, "b")],
        "edges": _edges("a>rest", "rest>b"),
        "output": {"of": "{{ nodes.b.output.execution }}"},
    }
    return Workload(definition, effects=frozenset("ab"))


def targets(random: Random) -> Workload:
    """What it calls is away for a while, so its circuit opens."""
    ids = [f"n{i}" for i in range(random.randint(2, 6))]
    retry = {"attempts": 40, "initialDelay": "0.1s", "factor": 1.5, "maxDelay": "1s"}
    nodes = [{"id": id_, "module": "ledger.call@1", "config": {"fails_calls": random.randint(1, 3)}} for id_ in ids]
    return Workload({"retry": retry, "nodes": nodes, "edges": []}, effects=frozenset(ids))


def fails(random: Random) -> Workload:
    """One node fails for good. What depends on it is blocked, and the rest is done."""
    nodes = [_work(random, "bad", is_permanent=True), _work(random, "blocked"), _work(random, "apart")]
    return Workload({"nodes": nodes, "edges": _edges("bad>blocked")}, FAILED, frozenset(["bad", "apart"]))


def handles(random: Random) -> Workload:
    """A failure is handled by another node, and the branch without it is skipped."""
    nodes = [_work(random, "bad", is_permanent=True), _work(random, "rescue"), _work(random, "never")]
    edges = _edges("bad>rescue:failure", "bad>never")
    return Workload({"nodes": nodes, "edges": edges}, FAILED | SUCCESS, frozenset(["bad", "rescue"]))


def signals(random: Random) -> Workload:
    """It waits for signals, which may come before it waits for them."""
    waits = [f"wait{n}" for n in range(random.randint(1, 2))]
    nodes = [_work(random, "a"), *({"id": id_, "module": "wait_signal@1", "config": {"signal": GO}} for id_ in waits)]
    edges = _edges(*(f"a>{id_}" for id_ in waits), *(f"{id_}>b" for id_ in waits))
    definition = {"nodes": [*nodes, _work(random, "b")], "edges": edges}
    return Workload(definition, effects=frozenset("ab"), sendings=(Sending.SIGNAL,) * len(waits))


def approvals(random: Random) -> Workload:
    nodes = [_work(random, "a"), {"id": "ask", "module": "approval@1", "config": {"title": "Go on?"}}]
    edges = _edges("a>ask", "ask>b:approved")
    definition = {"nodes": [*nodes, _work(random, "b")], "edges": edges}
    return Workload(definition, effects=frozenset("ab"), sendings=(Sending.APPROVE,))


def each(random: Random) -> Workload:
    """A loop over some items."""
    count = random.randint(1, 5)
    body = {name: value for name, value in _work(random, "body").items() if name != "id"}
    config = {"items": list(range(count)), "maxParallel": random.randint(1, 3), "body": body}
    nodes = [{"id": "loop", "module": "for_each@1", "config": config}, _work(random, "after")]
    effects = frozenset(["loop", "after"])
    return Workload({"nodes": nodes, "edges": _edges("loop>after")}, effects=effects, items={"loop": count})


def turns(random: Random) -> Workload:
    """A loop that ends well after its first turn, or never."""
    is_endless = random.random() < 0.5
    body = {name: value for name, value in _work(random, "body").items() if name != "id"}
    config = {"until": "1 == 2" if is_endless else "1 == 1", "maxIterations": 3, "delay": "0.2s", "body": body}
    nodes = [{"id": "loop", "module": "repeat@1", "config": config}]
    items = {"loop": 3 if is_endless else 1}
    return Workload({"nodes": nodes, "edges": []}, FAILED if is_endless else SUCCESS, frozenset(["loop"]), items)


def children(random: Random) -> Workload:
    """It starts an execution of another workflow, and waits for it."""
    child = random.choice([row, sleeps, signals])(random)
    nodes = [_work(random, "a"), {"id": "kid", "module": "sub_workflow@1"}, _work(random, "b")]
    return Workload({"nodes": nodes, "edges": _edges("a>kid", "kid>b")}, effects=frozenset("ab"), child=child)


def sagas(random: Random) -> Workload:
    """It fails at its end, and what was done before is undone."""
    done = [_work(random, id_) | {"compensate": {"module": "ledger.put@1"}} for id_ in ("a", "b")]
    nodes = [*done, _work(random, "bad", is_permanent=True)]
    effects = frozenset(["a", "b", "a$undo", "b$undo", "bad"])
    return Workload({"nodes": nodes, "edges": _edges("a>b", "b>bad")}, FAILED, effects)


def outside(random: Random) -> Workload:
    """Somebody else finishes the work of a node."""
    nodes = [{"id": "a", "module": "ledger.defer@1"}, _work(random, "b")]
    definition = {"nodes": nodes, "edges": _edges("a>b")}
    return Workload(definition, effects=frozenset("ab"), sendings=(Sending.COMPLETE,))


def reopened(random: Random) -> Workload:
    """It fails at first. People have it done again."""
    bad = _work(random, "bad", fails_calls=random.randint(1, 2)) | {"retry": {"attempts": 1}}
    definition = {"nodes": [_work(random, "a"), bad, _work(random, "c")], "edges": _edges("a>bad", "bad>c")}
    return Workload(definition, effects=frozenset(["a", "c"]), sendings=(Sending.RETRY,))


GENERATORS: Final[Sequence[Callable[[Random], Workload]]] = (
    row,
    diamond,
    fan,
    retries,
    sleeps,
    renders,
    targets,
    fails,
    handles,
    signals,
    approvals,
    each,
    turns,
    children,
    sagas,
    outside,
    reopened,
)


def draw_workloads(random: Random) -> dict[str, Workload]:
    """The versions of this seed, by id."""
    drawn: dict[str, Workload] = {}
    for number in range(random.randint(1, 4)):
        generator = random.choice(GENERATORS)
        workload = generator(random)
        workload.definition = {"name": f"{generator.__name__}-{number}", **workload.definition}
        drawn[f"v-{number}"] = workload
        if workload.child is not None:
            name = f"child-{number}"
            workload.child.definition = {"name": name, **workload.child.definition}
            drawn[f"c-{number}"] = workload.child
            next(node for node in workload.definition["nodes"] if node["id"] == "kid")["config"] = {"workflow": name}
    return drawn


def draw_starts(random: Random, workloads: dict[str, Workload], until: float) -> list[PlannedStart]:
    workspaces = [f"w{n}" for n in range(random.randint(1, 3))]
    starts: list[PlannedStart] = []
    for _ in range(random.randint(3, 14)):
        version_id = random.choice([id_ for id_ in workloads if id_.startswith("v")])
        at = random.uniform(0.0, until * 0.8)
        start = PlannedStart(at, uuid7(random, at), random.choice(workspaces), version_id, workloads[version_id])
        start.priority = random.randint(1, 5)
        chance = random.random()
        needed = [(random.choice([0.0, 0.5, 3.0]), each) for each in start.workload.sendings]
        if chance < 0.12:
            start.sendings.append((random.uniform(0.0, 4.0), Sending.CANCEL))
        elif chance < 0.2:
            start.deadline = random.uniform(0.5, 6.0)
        elif chance < 0.35:
            start.sendings = [(random.uniform(0.0, 3.0), Sending.PAUSE), (random.uniform(0.0, 5.0), Sending.RESUME)]
        start.sendings = [*start.sendings, *needed]
        if random.random() < 0.25:
            place = random.randint(0, len(start.sendings))
            start.sendings.insert(place, (random.uniform(0.0, 5.0), Sending.FORK))
        if random.random() < 0.3:
            start.request_id = f"request-{len(starts)}"
            start.repeats = [uuid7(random, at) for _ in range(random.randint(0, 2))]
        starts.append(start)
    return sorted(starts, key=lambda each: each.at)


def uuid7(random: Random, at: float) -> str:
    ms = int(START.timestamp() * 1_000 + at * 1_000)
    return str(UUID(int=ms << 80 | 7 << 76 | random.getrandbits(12) << 64 | 2 << 62 | random.getrandbits(62)))
