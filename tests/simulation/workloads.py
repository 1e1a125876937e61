"""The workflows that a simulation starts, drawn from its seed.

A new feature of the engine gets a generator here: a function that draws a definition, and says how its executions may
end, which nodes must have had their effect, and what people have to send. Add it to GENERATORS. What people may send to
any execution (a cancel, a pause) is drawn in starts.py, and made into a message in people.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from random import Random
from typing import Any, Final

SUCCESS: Final = frozenset({"SUCCESS"})
FAILED: Final = frozenset({"FAILED"})
Document = dict[str, Any]


class Sending(Enum):
    CANCEL = "cancel"
    # A cancel, and retries that take it back.
    REGRET = "regret"
    # A cancel and a pause that come when the execution has ended, and once more when it goes on again.
    LATE = "late"
    PAUSE = "pause"
    RESUME = "resume"
    # The signal GO.
    SIGNAL = "signal"
    # Every approval that is asked for is given, until the execution has ended.
    APPROVE = "approve"
    # Every run that its module has left to somebody else is completed, until the execution has ended.
    COMPLETE = "complete"
    # The same, but at first they fail.
    STRUGGLE = "struggle"
    # What has failed is done again, until the execution has ended well or for another reason.
    RETRY = "retry"
    # A fork is started that takes over what was done well so far.
    FORK = "fork"
    # The run of the node SLOW is set aside while it is under way.
    QUARANTINE = "quarantine"
    # Every dead letter is decided about, until the execution has ended and none is open.
    REQUEUE = "requeue"
    FIX = "fix"
    DISCARD = "discard"
    # In all three ways at once.
    ARGUE = "argue"


# The signal that executions wait for.
GO: Final = "go"
# A node with a run that takes long enough to be set aside.
SLOW: Final = "slow"
# Stands for the name of the child's workflow until that is known.
_CHILD: Final = "the child"


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


# For work that fails some times, and then is done.
_OFTEN: Final = {"attempts": 40, "initialDelay": "0.1s", "factor": 1.5, "maxDelay": "1s"}
_CHILD_CONFIG: Final = {"workflow": _CHILD}


def _child(id_: str, **config: Any) -> Document:
    return {"id": id_, "module": "sub_workflow@1", "config": {**_CHILD_CONFIG, **config}}


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
    nodes = [flaky, _work(random, "after")]
    return Workload(
        {"retry": _OFTEN, "nodes": nodes, "edges": _edges("flaky>after")}, effects=frozenset(["flaky", "after"])
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
    """A workflow whose nodes call targets that are away for a while, so that their circuits open."""
    ids = [f"n{i}" for i in range(random.randint(2, 6))]
    nodes = [{"id": id_, "module": "ledger.call@1", "config": {"fails_calls": random.randint(1, 3)}} for id_ in ids]
    return Workload({"retry": _OFTEN, "nodes": nodes, "edges": []}, effects=frozenset(ids))


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
    # All items together take no longer than other work, or a workspace with one slot is not done in time.
    body["config"]["seconds"] /= count
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
    """It starts an execution of another workflow, and waits for it. One that fails is handled."""
    child = random.choice([row, sleeps, signals, fails])(random)
    nodes = [_work(random, "a"), _child("kid"), _work(random, "b")]
    edges = _edges("a>kid", "kid>b:failure" if child.ends == FAILED else "kid>b")
    return Workload({"nodes": nodes, "edges": edges}, effects=frozenset("ab"), child=child)


def crowds(random: Random) -> Workload:
    """A loop over some items, each of which is a child."""
    config = {"items": list(range(random.randint(1, 4))), "maxParallel": random.randint(1, 3), "body": _CHILD_CONFIG}
    nodes = [{"id": "loop", "module": "for_each@1", "config": config}, _work(random, "after")]
    child = random.choice([row, sleeps])(random)
    return Workload({"nodes": nodes, "edges": _edges("loop>after")}, effects=frozenset(["after"]), child=child)


def orphans(random: Random) -> Workload:
    """It fails while its child goes on, which is cancelled with it or left alone."""
    kid = _child("kid", onParentEnd=random.choice(["CANCEL", "ABANDON"]))
    bad = _work(random, "bad", is_permanent=True)
    child = random.choice([row, sleeps])(random)
    return Workload({"onFailure": "FAIL_FAST", "nodes": [kid, bad], "edges": []}, FAILED, child=child)


def states(random: Random) -> Workload:
    """Two branches set keys of the state, and what stands behind them reads both."""
    first = {"id": "one", "module": "state.set@1", "inputs": {"who": "{{ execution.id }}"}}
    second = {"id": "two", "module": "state.set@1", "inputs": {"done": "{{ nodes.a.output.node }}"}}
    last = _work(random, "b") | {"inputs": {"of": "{{ state.who }}", "done": "{{ state.done }}"}}
    nodes = [_work(random, "a"), first, second, last]
    return Workload({"nodes": nodes, "edges": _edges("a>one", "a>two", "one>b", "two>b")}, effects=frozenset("ab"))


def sagas(random: Random) -> Workload:
    """It fails at its end, and what was done before is undone."""
    done = [_work(random, id_) | {"compensate": {"module": "ledger.put@1"}} for id_ in ("a", "b")]
    nodes = [*done, _work(random, "bad", is_permanent=True)]
    effects = frozenset(["a", "b", "a$undo", "b$undo", "bad"])
    return Workload({"nodes": nodes, "edges": _edges("a>b", "b>bad")}, FAILED, effects)


def outside(random: Random) -> Workload:
    """Somebody else finishes the work of a node, perhaps after a failure."""
    nodes = [{"id": "a", "module": "ledger.defer@1"}, _work(random, "b")]
    definition = {"retry": _OFTEN, "nodes": nodes, "edges": _edges("a>b")}
    return Workload(
        definition, effects=frozenset("ab"), sendings=(random.choice([Sending.COMPLETE, Sending.STRUGGLE]),)
    )


def reopened(random: Random) -> Workload:
    """It fails at first. People have it done again."""
    bad = _work(random, "bad", fails_calls=random.randint(1, 2)) | {"retry": {"attempts": 1}}
    definition = {"nodes": [_work(random, "a"), bad, _work(random, "c")], "edges": _edges("a>bad", "bad>c")}
    return Workload(definition, effects=frozenset(["a", "c"]), sendings=(Sending.RETRY,))


def letters(random: Random) -> Workload:
    """A node fails for good, and people decide about it. Meanwhile the execution has ended, or is held."""
    bad = _work(random, "bad", fails_calls=random.randint(1, 2)) | {"retry": {"attempts": 1}}
    definition = {"nodes": [_work(random, "a"), bad, _work(random, "c")], "edges": _edges("a>bad", "bad>c")}
    workload = _decided(random, definition | {"onFailure": random.choice(["HOLD", "CONTINUE"])})
    # The call that fails may be lost with its runner, and then the node does not fail.
    workload.ends |= SUCCESS
    return workload


def set_aside(random: Random) -> Workload:
    """Somebody sets a run aside, if it is not over by then, and people decide about it."""
    slow = {"id": SLOW, "module": random.choice(["ledger.put@1", "ledger.add@1"]), "config": {"seconds": 1.5}}
    definition = {"nodes": [_work(random, "a"), slow, _work(random, "c")], "edges": _edges(f"a>{SLOW}", f"{SLOW}>c")}
    workload = _decided(random, definition | {"onFailure": random.choice(["HOLD", "CONTINUE"])})
    workload.effects = frozenset("a")
    workload.sendings = (Sending.QUARANTINE, *workload.sendings)
    return workload


def _decided(random: Random, definition: Document) -> Workload:
    """The node between `a` and `c` makes a dead letter."""
    sending = random.choice([Sending.REQUEUE, Sending.REQUEUE, Sending.FIX, Sending.DISCARD, Sending.ARGUE])
    # A call that dies with its runner counts as one that fails. So the work may succeed without a dead letter.
    ends = SUCCESS | FAILED if sending in (Sending.DISCARD, Sending.ARGUE) else SUCCESS
    effects = frozenset(["a", "c"] if ends == SUCCESS else ["a"])
    return Workload(definition, ends, effects, sendings=(sending,))


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
    crowds,
    orphans,
    states,
    letters,
    letters,
    set_aside,
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
            workload.definition = _with_child(workload.definition, name)
    return drawn


def _with_child(given: Any, name: str) -> Any:
    """The same with the name of the child's workflow in it."""
    if isinstance(given, dict):
        return {key: _with_child(value, name) for key, value in given.items()}
    if isinstance(given, list):
        return [_with_child(value, name) for value in given]
    return name if given == _CHILD else given
