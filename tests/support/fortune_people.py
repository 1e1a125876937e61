"""The part of people in the machine of random fortune: their commands, and that each is carried out once."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from services.coordinator.core.commands import (
    Cancel,
    CompleteRun,
    DecideApproval,
    Discard,
    FailRun,
    HeartbeatRun,
    MarkFixed,
    Pause,
    Quarantine,
    Requeue,
    Resume,
    Retry,
    Signal,
)
from services.coordinator.core.decision import RefusalReason
from services.coordinator.core.events import CommandRefused, WorkTakenOver
from services.coordinator.core.forking import finished_work
from services.coordinator.core.values import ApprovalChoice, Error, ErrorClass
from tests.support.fortune import FortuneBase
from tests.support.random_workflows import OUTPUT
from tests.support.story import Story

ORIGIN_ID = "01931f3c-0000-7c3d-8e4f-1234567890ab"
REOPENINGS_MAX = 3
# The end of a message id says what the command is.
CONTENT = "#" + "a" * 32
JSON = st.sampled_from([OUTPUT, b"null", b'"by hand"'])


class People(FortuneBase):
    is_fork = False

    def give(self, make: Any, *fields: Any, **more: Any) -> Any:
        """A person gives a command. The first answer is kept, except that of an execution that had ended: nothing is
        added to its journal, so it answers a repeat by its end."""
        command = make(f"m{len(self.given)}.{len(self.story.journal)}{CONTENT}", "ann", *fields, **more)
        was_final = self.story.execution.is_final
        decision = self.when(command)
        if decision.events or not was_final:
            self.given.append((command, decision.refusal))
        return decision

    def lease(self) -> Any:
        """Under which a command to an execution that has ended is carried out."""
        return {"epoch": self.story.execution.epoch + 1, "holder": "c3"}

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def give_again(self, data: Any) -> None:
        """A repeated command changes nothing and gets the first answer; another one with its request id is refused."""
        command, first = self.pick(data, self.given)
        decision = self.when(command)
        assert (decision.events, decision.refusal) == ([], first)
        decision = self.when(replace(command, message_id=command.message_id.replace(CONTENT, "#" + "b" * 32)))
        assert decision.refusal.reason is RefusalReason.REQUEST_ID_REUSED
        assert self.story.execution.is_final or [type(event) for event in decision.events] == [CommandRefused]

    @rule(is_resumed=st.booleans())
    def pause_or_resume(self, is_resumed: bool) -> None:
        self.give(Resume if is_resumed else Pause)

    @precondition(lambda self: len(self.story.journal) > 12)
    @rule()
    def cancel(self) -> None:
        """Late copies of those before change nothing, though the execution may have been reopened since."""
        command = Cancel(f"cancel:{len(self.story.journal)}{CONTENT}", "enough", "ann")
        if self.when(command).events:
            self.cancels.append(command)
        for each in (command, *self.cancels):
            assert self.when(each).events == [], "it is repeated"

    @precondition(lambda self: any(node.module == "wait_signal@1" for node in self.story.definition.nodes.values()))
    @rule(signal=st.sampled_from(["paid", "paid", "go"]), payload=JSON)
    def signal(self, signal: str, payload: bytes) -> None:
        self.give(Signal, signal, payload)

    @precondition(lambda self: self.story.execution.approvals)
    @rule(data=st.data(), key=st.sampled_from(["k1", "k2", "k3"]), choice=st.sampled_from(ApprovalChoice))
    def decide(self, data: Any, key: str, choice: ApprovalChoice) -> None:
        number = self.pick(data, self.story.execution.approvals)
        role = data.draw(st.sampled_from(["ADMIN", "ADMIN", "WORKFLOW"]))
        self.give(DecideApproval, key, role, number, choice)

    @precondition(lambda self: self.story.execution.runs)
    @rule(data=st.data(), kind=st.integers(0, 2), error=st.sampled_from(ErrorClass), output=JSON)
    def answer_from_outside(self, data: Any, kind: int, error: ErrorClass, output: bytes) -> None:
        number = self.pick(data, self._runs_to_answer())
        if kind == 0:
            self.give(CompleteRun, number, output, data.draw(st.sampled_from(["", "left", "true"])))
        elif kind == 1:
            self.give(FailRun, number, Error(error, "X", "x"), data.draw(st.floats(0, 1, exclude_max=True)))
        else:
            # Heartbeats are many, and each says how it is now. So they are not remembered.
            self.when(HeartbeatRun("beat", "", number, data.draw(st.none() | st.floats(0, 1)), "half"))

    def _runs_to_answer(self) -> list[int]:
        """Those that somebody may answer, or, if there are none, those whose completion token is void."""
        execution = self.story.execution
        waiting = [wait.work.run.number for wait in execution.waits.values() if wait.kind.name == "OUTSIDE"]
        return [*waiting, *execution.live] or [run.number for run in execution.runs]

    @precondition(lambda self: self.story.execution.runs)
    @rule(data=st.data(), is_to_come=st.booleans())
    def quarantine(self, data: Any, is_to_come: bool) -> None:
        execution = self.story.execution
        newest = [work.run for work in execution.work.values() if work.run is not None]
        to_come = [run.number for run in newest if run.work.state.value in ("READY", "BACKOFF", "HELD_BACK", "WAITING")]
        runs = [*execution.live, *to_come] if is_to_come else []
        self.give(Quarantine, self.pick(data, runs or [run.number for run in execution.runs]))

    @precondition(lambda self: self.reopenings < REOPENINGS_MAX and self.has_ended_work())
    @rule(data=st.data(), is_from_node=st.booleans())
    def retry(self, data: Any, is_from_node: bool) -> None:
        """Work is done again; only this changes an execution that has ended."""
        from_node = self._a_node(data) if is_from_node else ""
        self.give(Retry, from_node, **self.lease())

    @precondition(lambda self: self.reopenings < REOPENINGS_MAX and self.story.execution.dead_letters)
    @rule(data=st.data(), make=st.sampled_from([Requeue, MarkFixed, Discard]))
    def resolve(self, data: Any, make: Any) -> None:
        number = self.pick(data, self.story.execution.dead_letters)
        given = [number, b'"by hand"'] if make is MarkFixed else [number]
        self.give(make, *given, **self.lease())

    def has_ended_work(self) -> bool:
        return any(run.end_time for run in self.story.execution.runs)

    def _a_node(self, data: Any) -> str:
        nodes = self.story.definition.nodes
        return str(self.pick(data, nodes)) if nodes else ""

    @precondition(lambda self: not self.is_fork and len(self.story.journal) > 8)
    @rule(data=st.data(), is_from_node=st.booleans())
    def fork(self, data: Any, is_from_node: bool) -> None:
        """The origin ends well. The machine goes on with a fork of what it had done before."""
        from_node = self._a_node(data) if is_from_node else ""
        finished = finished_work(self.story.execution, from_node)
        asked = {"origin_execution_id": ORIGIN_ID, "origin_seq": self.story.execution.seq, "from_node": from_node}
        self.end_well()
        self.watch(Story(**self.document))
        self.is_fork = True
        self.do(lambda: self.story.start(**asked, finished=finished))
        for event in self.story.journal:
            if isinstance(event, WorkTakenOver):
                origin = finished[event.key.node]
                assert (event.output, event.branch, event.origin_run) == (origin.output, origin.branch, origin.run)
        assert not from_node or self.story.states[from_node] != "SUCCEEDED" or self.story.run(from_node).attempt
