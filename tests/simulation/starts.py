"""The executions that a simulation starts, drawn from its seed, and what people may send to any execution."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from tests.simulation.loop import START
from tests.simulation.workloads import SUCCESS, Sending, Workload


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
    _come_back_to_some(starts, Sending.REGRET)
    _come_back_to_some(starts, Sending.LATE)
    return sorted(starts, key=lambda each: each.at)


def _come_back_to_some(starts: list[PlannedStart], sending: Sending) -> None:
    """Of those that end well when nobody interferes. What is done again is counted neither by items nor by children."""
    random = Random(f"{sending.value}:{starts[0].execution_id}")
    for start in starts:
        workload = start.workload
        is_plain = workload.ends == SUCCESS and not workload.items and workload.child is None
        if is_plain and not start.sendings and start.deadline is None and random.random() < 0.2:
            start.sendings = [(random.choice([0.0, 0.1, 2.0]), sending)]


def uuid7(random: Random, at: float) -> str:
    ms = int(START.timestamp() * 1_000 + at * 1_000)
    return str(UUID(int=ms << 80 | 7 << 76 | random.getrandbits(12) << 64 | 2 << 62 | random.getrandbits(62)))
