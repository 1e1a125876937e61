"""Random workflows under random fortune: zombies, duplicates, late reports, deaths, drains, take-overs, time.

The machine keeps every report ever sent and sends any of them again; the laws are checked after each step (`Story`),
and the promises here:

- S3 epochs rise; S7 what is final stays so; S8 one accepted outcome per work; S9 attempt numbers are granted once;
- S10 a node starts only when its join holds, judged by a second, naive reading of the rules;
- S18 nothing is granted while it is paused; S19 no timer early;
- L: given time and willing runners, every execution ends.
"""

import json
from collections import defaultdict
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.coordinator.core.commands import (
    Assign,
    AssignedRun,
    Discard,
    EndChild,
    FinishLoop,
    MarkFixed,
    NoteChildCancelTold,
    NoteChildStarted,
    RefuseChild,
    Release,
    ReportFailure,
    ReportProgress,
    ReportStarted,
    ReportStopped,
    ReportSuccess,
    Requeue,
    StartLoop,
)
from services.coordinator.core.events import (
    BackoffEnded,
    CompensationStarted,
    ExecutionFinished,
    RunFailed,
    RunLeased,
    RunLost,
    RunSucceeded,
    StopOrdered,
    WaitEnded,
    WaitKind,
    WaitStarted,
)
from services.coordinator.core.items import LoopConfig
from services.coordinator.core.values import (
    Error,
    ErrorClass,
    ExecutionState,
    FinalError,
    OutputRef,
    ReleaseReason,
    WorkKey,
)
from tests.support.story import Story

WHENS = ["success", "success", "success", "failure", "always", "left", "right"]
MODULES = ["noop@1"] * 3 + ["join@1", "sleep@1", "rendered", "for_each@1", "for_each@1", "repeat@1", "state.set@1"]
MODULES += ["sub_workflow@1"] * 2
# What every work reports: an output for anybody, and also the config of a control node that was to be rendered.
OUTPUT = (
    b'{"duration":"3s","items":[1,2,3],"maxParallel":2,"maxIterations":3,"delay":"2s",'
    b'"config":{"workflow":"child"},"inputs":{}}'
)
KEPT = OutputRef("k", "0" * 64, 300_000)
LIST = LoopConfig({"maxParallel": 2}, [b"1", b"2", b"3"])
INSTANCES = ["i1", "i2", "i3"]


@st.composite
def documents(draw):
    size = draw(st.integers(0, 7))
    nodes = [_node(draw, number) for number in range(size)]
    edges = [
        {"from": f"n{source}", "to": f"n{target}", "when": draw(st.sampled_from(WHENS))}
        for target in range(size)
        for source in range(target)
        if draw(st.integers(0, 2)) == 0
    ]
    document: dict[str, Any] = {"name": "random", "nodes": nodes, "edges": edges}
    if draw(st.booleans()):
        document["output"] = {"x": "{{ nodes }}"}
    if draw(st.integers(0, 2)) == 0:
        document["onFailure"] = draw(st.sampled_from(["FAIL_FAST", "HOLD"]))
    if draw(st.integers(0, 3)) == 0:
        document["timeout"] = "90s"
    return document


def _node(draw, number):
    module = draw(st.sampled_from(MODULES))
    node: dict[str, Any] = {"id": f"n{number}", "module": module, "retry": {"attempts": draw(st.integers(1, 3))}}
    if module in ("sleep@1", "rendered"):
        node |= {"module": "sleep@1", "config": {"duration": "5s" if module == "sleep@1" else "{{ 5 }}s"}}
    elif module == "state.set@1":
        node["inputs"] = {"key": draw(st.integers(0, 1)), f"n{number}": "{{ 7 }}" if draw(st.booleans()) else 7}
    elif module == "for_each@1":
        node["config"] = {
            "items": draw(st.one_of(st.lists(st.integers(0, 9), max_size=5), st.just("{{ input.ids }}"))),
            "maxParallel": draw(st.integers(1, 3)),
            "onItemFailure": draw(st.sampled_from(["FAIL", "CONTINUE"])),
            "body": draw(st.sampled_from([{"module": "noop@1"}, {"workflow": "child", "inputs": {}}])),
        }
    elif module == "sub_workflow@1":
        node["config"] = {"workflow": "child", "onParentEnd": draw(st.sampled_from(["CANCEL", "ABANDON"]))}
        node["inputs"] = draw(st.sampled_from([{}, {"n": "{{ input.n }}"}]))
        if draw(st.booleans()):
            del node["retry"]
    elif module == "repeat@1":
        node["config"] = {
            "until": "output.done",
            "maxIterations": draw(st.integers(1, 4)),
            "delay": draw(st.sampled_from(["0s", "5s", "{{ input.wait }}"])),
            "body": {"module": "noop@1"},
        }
    elif module == "noop@1":
        node |= {"idempotent": draw(st.booleans()), "join": draw(st.sampled_from(["ALL", "ALL", "ANY"]))}
        if draw(st.booleans()):
            node["timeout"] = "20s"
    if draw(st.integers(0, 2)) == 0:
        node["compensate"] = {"module": "noop@1", "inputs": {"why": "{{ error.type }}"}}
    return node


class Fortune(RuleBasedStateMachine):
    @initialize(document=documents())
    def begin(self, document):
        self.story = Story(**{key: value for key, value in document.items() if key != "name"})
        self.sent = []
        self.attempts = defaultdict(list)
        self.outcomes = defaultdict(int)
        self.wakes = {}
        self.final = None
        self.retries = 0
        self.do(lambda: self.story.start())

    def do(self, command):
        before = len(self.story.journal)
        decision = command()
        for event in self.story.journal[before:]:
            self._note(event)
        return decision

    def _note(self, event):
        match event:
            case RunLeased():
                attempts = self.attempts[event.key]
                assert event.attempt > max(attempts, default=0), "S9"
                attempts.append(event.attempt)
            case RunSucceeded():
                self.outcomes[event.key] += 1
                _assert_in_order(self.story, event)
            case RunFailed() | WaitStarted():
                self.wakes[event.key] = event.retry_time if isinstance(event, RunFailed) else event.due_time
            case BackoffEnded() | WaitEnded():
                assert self.wakes.pop(event.key) <= self.story.now, "S19"
            case _:
                pass

    def send(self, report):
        self.sent.append(report)
        return self.do(lambda: self.story.when(report))

    def pick(self, data, items):
        return data.draw(st.sampled_from(list(items)))

    @precondition(lambda self: self.story.execution.ready)
    @rule(data=st.data())
    def assign(self, data):
        work = self.pick(data, self.story.execution.ready)
        _assert_join_holds(self.story, work.node)
        grant = AssignedRun(work, self.pick(data, INSTANCES), "r", is_idempotent=data.draw(st.booleans()))
        is_paused = self.story.execution.paused_by is not None
        decision = self.do(lambda: self.story.when(Assign([grant])))
        assert not (is_paused and decision.events), "S18"

    @precondition(lambda self: self.story.execution.live)
    @rule(data=st.data(), branch=st.sampled_from(["", "left", "right", "true", "false"]))
    def succeed(self, data, branch):
        run = self.pick(data, self.story.execution.live.values())
        is_kept = run.work.node.body is not None or run.work.loop is not None
        is_kept = is_kept and data.draw(st.integers(0, 5)) == 0
        self.send(ReportSuccess(run.number, run.epoch, KEPT if is_kept else OUTPUT, branch))

    @precondition(lambda self: self.story.execution.unread)
    @rule(data=st.data(), config=st.sampled_from([LIST, LIST, LoopConfig({}, ()), None]))
    def read(self, data, config):
        key = self.pick(data, self.story.execution.unread)
        self.do(lambda: self.story.when(StartLoop(key, config, "it is none")))
        assert self.do(lambda: self.story.when(StartLoop(key, config))).events == []

    @precondition(lambda self: self.story.execution.unstored)
    @rule(data=st.data(), output=st.sampled_from([KEPT, KEPT, None]))
    def store(self, data, output):
        key = self.pick(data, self.story.execution.unstored)
        self.do(lambda: self.story.when(FinishLoop(key, output)))
        assert self.do(lambda: self.story.when(FinishLoop(key, output))).events == []

    def children(self):
        execution = self.story.execution
        return {**execution.children, **execution.unstarted, **execution.uncancelled}

    @precondition(lambda self: self.children())
    @rule(data=st.data(), make=st.sampled_from([NoteChildStarted, NoteChildCancelTold, RefuseChild, EndChild, None]))
    def hear_of_child(self, data, make):
        child = self.pick(data, self.children())
        news: Any
        if make is RefuseChild:
            news = RefuseChild(child, "WORKFLOW_NOT_FOUND", "gone")
        elif make is EndChild:
            news = EndChild(child, ExecutionState.SUCCESS, OUTPUT, None, 0.5)
        elif make is None:
            state = data.draw(st.sampled_from([ExecutionState.FAILED, ExecutionState.CANCELLED]))
            news = EndChild(child, state, None, FinalError("a", "BOOM", "bad"), 0.5)
        else:
            news = make(child)
        self.do(lambda: self.story.when(news))
        assert self.do(lambda: self.story.when(news)).events == [], "it is repeated"

    @precondition(lambda self: self.story.execution.live)
    @rule(data=st.data(), error=st.sampled_from(ErrorClass), random=st.floats(0, 1, exclude_max=True))
    def fail(self, data, error, random):
        run = self.pick(data, self.story.execution.live.values())
        self.send(ReportFailure(run.number, run.epoch, Error(error, "X", "x"), random))

    @precondition(lambda self: self.story.execution.live)
    @rule(data=st.data(), kind=st.integers(0, 3))
    def say(self, data, kind):
        run = self.pick(data, self.story.execution.live.values())
        number, epoch = run.number, run.epoch
        said = (
            ReportStarted(number, epoch, self.story.now),
            ReportProgress(number, epoch, 0.5, "half"),
            ReportStopped(number, epoch),
            Release(number, epoch, data.draw(st.sampled_from(ReleaseReason)), data.draw(st.booleans())),
        )
        self.send(said[kind])

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def repeat(self, data):
        """Send an old report again: a zombie's, a duplicate, or one that took a long way."""
        report = self.pick(data, self.sent)
        is_live = report.run in self.story.execution.live
        succeeded = dict(self.outcomes)
        self.do(lambda: self.story.when(report))
        assert is_live or self.outcomes == succeeded, "S8"

    @rule(instance=st.sampled_from(INSTANCES), is_idempotent_only=st.booleans())
    def lose(self, instance, is_idempotent_only):
        self.do(lambda: self.story.lose(instance, is_idempotent_only=is_idempotent_only))

    @rule(live=st.sets(st.sampled_from(INSTANCES)))
    def take_over(self, live):
        kept = {n for n, run in self.story.execution.live.items() if run.instance_id in live}
        self.do(lambda: self.story.adopt(*live, epoch=self.story.execution.epoch + 1))
        # S26: a live run is not granted again.
        assert self.story.execution.is_final or kept <= set(self.story.execution.live)

    @rule(seconds=st.sampled_from([0.3, 2, 7, 30]))
    def wait(self, seconds):
        self.story.later(seconds)
        self.do(lambda: self.story.tick())

    @rule(is_resumed=st.booleans())
    def pause_or_resume(self, is_resumed):
        give = self.story.resume if is_resumed else self.story.pause
        self.do(lambda: give(f"m{len(self.story.journal)}"))

    @precondition(lambda self: self.retries < 3)
    @rule(data=st.data(), is_from_node=st.booleans())
    def retry(self, data, is_from_node):
        """Work is done again; only this changes an execution that has ended."""
        from_node = self.pick(data, self.story.definition.nodes) if is_from_node and self.story.definition.nodes else ""
        decision = self.do(lambda: self.story.retry(from_node, f"m{len(self.story.journal)}"))
        if decision.events and decision.refusal is None:
            self.retries, self.final = self.retries + 1, None

    @precondition(lambda self: self.retries < 3 and self.story.execution.dead_letters)
    @rule(data=st.data(), make=st.sampled_from([Requeue, MarkFixed, Discard]))
    def resolve(self, data, make):
        number = self.pick(data, self.story.execution.dead_letters)
        given = [number, b'"by hand"'] if make is MarkFixed else [number]
        decision = self.do(lambda: self.story.give(make, *given, message_id=f"m{len(self.story.journal)}"))
        if decision.events and decision.refusal is None:
            self.retries, self.final = self.retries + 1, None

    @precondition(lambda self: len(self.story.journal) > 12)
    @rule()
    def cancel(self):
        self.do(lambda: self.story.cancel())

    @invariant()
    def final_is_final(self):
        if not hasattr(self, "story"):
            return
        if self.final:
            assert (len(self.story.journal), self.story.state) == self.final, "S7"
        elif self.story.execution.is_final:
            self.final = (len(self.story.journal), self.story.state)
        assert all(count == 1 for count in self.outcomes.values()), "S8"

    def teardown(self):
        """All is well again: all work succeeds, and time passes."""
        if not hasattr(self, "story"):
            return
        for _ in range(200):
            if self.story.execution.is_final:
                break
            if self.story.execution.paused_by is not None:
                self.do(lambda: self.story.resume("last"))
            if self.story.execution.ready:
                self.do(lambda: self.story.assign())
            for run in list(self.story.execution.live.values()):
                self.do(lambda run=run: self.story.when(ReportSuccess(run.number, run.epoch, OUTPUT, "true")))
            for key in list(self.story.execution.unread):
                self.do(lambda key=key: self.story.when(StartLoop(key, LIST)))
            for key in list(self.story.execution.unstored):
                self.do(lambda key=key: self.story.when(FinishLoop(key, KEPT)))
            for child in list(self.story.execution.children):
                news = EndChild(child, ExecutionState.SUCCESS, b"{}", None, 0.5)
                self.do(lambda news=news: self.story.when(news))
            for wait in list(self.story.execution.waits.values()):
                if wait.kind is WaitKind.PERSON:
                    number = wait.work.run.number
                    self.do(lambda number=number: self.story.give(Discard, number, message_id=f"last{number}"))
            if not self.story.execution.is_final and self.story.execution.next_wake():
                self.do(lambda: self.story.wake())
        assert self.story.execution.is_final, "it never ends"
        _assert_states_follow(self.story)
        _assert_undone_in_reverse(self.story)


def _assert_in_order(story, event):
    """The output of a loop over a list has one place for each item, in their order."""
    execution = story.execution
    node, iteration, generation = event.key
    items = [work for key, work in execution.work.items() if (key.node, key.generation) == (node, generation)]
    items = [work for work in items if work.loop is not None]
    has_ended = all(work.state.value in ("SUCCEEDED", "FAILED") for work in items)
    if iteration or not items or execution.definition.nodes[node].module != "for_each@1":
        return
    # A person may have put another output in the place of that of a loop that failed.
    if has_ended and isinstance(event.output, bytes) and event.output.startswith(b"["):
        in_order = sorted(items, key=lambda work: work.key.iteration)
        assert ["error" in place for place in json.loads(event.output)] == [
            work.state.value == "FAILED" for work in in_order
        ]


def _edges_into(story, node):
    return [
        (source, edge) for source in story.definition.nodes.values() for edge in source.edges if edge.target == node.id
    ]


def _arrived(story, source, edge):
    """The naive reading of an edge, from the end of its source. None: the source has not ended."""
    when = edge.label or edge.when.name.lower()
    match story.states[source.id]:
        case "SUCCEEDED":
            taken = when in ("success", "always") or when == story.run(source.id).branch
            return "taken" if taken else "skipped"
        case "FAILED":
            if when in ("failure", "always"):
                return "taken"
            return "skipped" if any(e.when.name == "FAILURE" for e in source.edges) else "blocked"
        case "SKIPPED":
            return "skipped"
        case "BLOCKED":
            return {"always": "taken", "failure": "skipped"}.get(when, "blocked")
        case _:
            return None


def _assert_join_holds(story, node):
    if node.id == "$output":
        return
    arrived = [_arrived(story, source, edge) for source, edge in _edges_into(story, node)]
    if node.join.value == "ANY":
        assert not arrived or "taken" in arrived, "S10"
    else:
        assert not arrived or (None not in arrived and "blocked" not in arrived and "taken" in arrived), "S10"


def _assert_states_follow(story):
    """Every node that did not run had a reason not to."""
    if any(isinstance(event, StopOrdered) for event in story.journal):
        return
    for node in story.definition.graph:
        state = story.states[node.id]
        arrived = [_arrived(story, source, edge) for source, edge in _edges_into(story, node)]
        assert None not in arrived
        if state in ("SKIPPED", "BLOCKED"):
            assert state == ("BLOCKED" if "blocked" in arrived else "SKIPPED")
            assert arrived
            assert "taken" not in arrived or ("blocked" in arrived and node.join.value == "ALL")
        else:
            assert state in ("SUCCEEDED", "FAILED")
    unhandled = [
        node.id
        for node in story.definition.nodes.values()
        if story.states[node.id] == "FAILED" and not node.is_failure_handled
    ]
    assert story.state == ("FAILED" if unhandled else "SUCCESS")


def _assert_undone_in_reverse(story):
    """Before an end that is not good, all that succeeded and can be undone is undone: each once, the last one first."""
    done: list[str] = []
    undoing: list[WorkKey] = []
    for event in story.journal:
        match event:
            case CompensationStarted():
                assert [key.node for key in event.works] == done[::-1]
                done, undoing = [], [*event.works]
            case RunSucceeded() if event.key in undoing or f"{event.key.node}$undo" in story.definition.nodes:
                if event.key in undoing:
                    assert undoing.pop(0) == event.key
                elif not event.key.iteration:
                    done.append(f"{event.key.node}$undo")
            case RunFailed() | RunLost() if event.key in undoing and event.reason is not None:
                assert undoing.pop(0) == event.key
            case ExecutionFinished():
                assert not undoing
                assert not done or event.state == "SUCCESS"
            case _:
                pass


TestFortune = Fortune.TestCase
TestFortune.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
