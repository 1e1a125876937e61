"""Finds every state of a small workflow, breadth-first, and what each command leads to in each situation.

States that look alike are one. The laws of a story are checked at each step.
"""

from collections import defaultdict

# Situations of an execution, in the order in which they are recognised.
NEW, FINAL, STOPPING, PAUSED, BACKOFF, RUNNING, LEASED, WAITING, READY = SITUATIONS = (
    "new", "final", "stopping", "paused", "backoff", "running", "leased", "waiting", "ready",
)  # fmt: skip
# A run may be live, and the execution is not ending.
WORKING = (PAUSED, BACKOFF, RUNNING, LEASED)
GOING_ON = (BACKOFF, RUNNING, LEASED, WAITING, READY)
OPEN = (PAUSED, *GOING_ON)

NOTHING = "nothing"


def row(*everywhere, **more):
    """A command may lead to these: the first event of the decision, a reason of refusal, or nothing. `everywhere` is
    after the start."""
    return {NEW: {"NOT_STARTED"}} | {situation: {*everywhere, *more.get(situation, ())} for situation in SITUATIONS[1:]}


def each(situations, *outcomes):
    return dict.fromkeys(situations, outcomes)


def situation(execution):
    if execution.seq == 0:
        return NEW
    if execution.is_final:
        return FINAL
    if execution.stop is not None:
        return STOPPING
    if execution.paused_by is not None:
        return PAUSED
    if execution.backoffs:
        return BACKOFF
    if execution.live:
        return RUNNING if any(run.state == "RUNNING" for run in execution.live.values()) else LEASED
    return WAITING if execution.waits else READY


def likeness(execution):
    """States with the same likeness behave alike; times and numbers of events do not count."""
    ended = [run for run in execution.runs if run.number not in execution.live]
    return (
        situation(execution),
        tuple((id, work.state, bool(work.failures)) for id, work in sorted(execution.current.items())),
        tuple((run.work.key, run.state) for run in execution.live.values()),
        (ended[-1].is_answered, ended[-1].is_late_noted) if ended else None,
    )


def likeness_with_all(execution):
    """The same with what waits, is kept or is owed. Of several of one kind it counts that there are some."""
    items = [work for key, work in execution.work.items() if key.iteration]
    return likeness(execution), repr(
        (
            tuple(sorted((wait.kind.name, wait.work.node.id) for wait in execution.waits.values())),
            tuple((work.key.iteration, work.state) for work in items[-2:]),
            sorted({letter.resolution for letter in execution.dead_letters.values()}),
            [(approval.state, len(approval.decisions)) for approval in list(execution.approvals.values())[-1:]],
            [bool(each) for each in (execution.signals, execution.unstarted, execution.uncancelled)],
            [bool(each) for each in (execution.unread, execution.unstored, execution.let_through)],
        )
    )


def concerned(execution):
    """Runs worth reporting on: those that are live, and the last one that is not."""
    ended = [run for run in execution.runs if run.number not in execution.live]
    return [*ended[-1:], *execution.live.values()]


def explore(story, commands, reached=None, likeness_of=likeness, about=None):
    """`commands(execution)` names the commands that are given in a state. Returns what each of them has led to, by its
    name and the situation. If a node is named, that is all that has happened to it."""
    reached = defaultdict(set) if reached is None else reached
    frontier, seen = [story], set()
    while frontier:
        following = []
        for here in frontier:
            for place, (name, _) in enumerate(commands(here.execution)):
                there = here.again()
                _, command = list(commands(there.execution))[place]
                reached[name, situation(here.execution)].add(_apply(there, command, name, about))
                look = likeness_of(there.execution)
                if look not in seen:
                    seen.add(look)
                    following.append(there)
        frontier = following
    return reached


def _apply(story, command, name, about):
    if name == "tick":
        story.now = max(story.now, story.execution.next_wake())
    decision = story.when(command)
    events = decision.events
    if about is not None:
        named = [event for event in events if (key := getattr(event, "key", None)) is not None and key.node == about]
        return "+".join(type(event).__name__ for event in named) or NOTHING
    if decision.refusal:
        return decision.refusal.reason.value
    return type(events[0]).__name__ if events else NOTHING


def assert_table_is_full(ledger, reached):
    wanted = {(name, where, what) for name, cells in ledger.items() for where in cells for what in cells[where]}
    found = {(name, where, what) for (name, where), whats in reached.items() for what in whats if name in ledger}
    assert "\n".join(map(str, sorted(found - wanted))) == "", "reached, and not in the table"
    # A repeat or a late report is possible wherever some earlier run exists; not all of those are within this depth.
    assert "\n".join(map(str, sorted(wanted - found))) == "", "in the table, and never reached"
