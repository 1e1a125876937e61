"""Ready work is assigned to runners."""

from collections.abc import Mapping
from typing import Any, cast

from services.chassis.identity.callers import CallerKind, Identity
from services.chassis.lease.frames import Attach
from services.chassis.session.registry import SessionRegistry
from services.coordinator.app.assigning import Assigner
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.runner_scope import RunnerScope
from services.coordinator.core.commands import Start
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.handlers import handle
from services.coordinator.core.state import Execution
from services.coordinator.core.values import Origin
from services.coordinator.peers.dispatch import start_command
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant


class Session:
    """A session that has only the runner's scope and credit."""

    def __init__(self, name: str, credit: int, **more: Any) -> None:
        self.instance_id = name
        self.attach = Attach(holder=name, instance_id=name, capacity=credit, **more)
        self.data = RunnerScope(self.attach, Identity(CallerKind.RUNNER, "k", "", ""))
        self.credit = credit

    def take_credit(self, wanted: int) -> int:
        taken = min(wanted, self.credit)
        self.credit -= taken
        return taken


class Fleet:
    def __init__(self, *sessions: Session) -> None:
        self.sessions = list(sessions)
        self.demand = 0

    def with_credit(self) -> list[Session]:
        return [each for each in self.sessions if each.credit]

    def set_demand(self, waiting: int) -> None:
        self.demand = waiting


def assigner_of(fleet: Fleet, *executions: OwnedExecution) -> Assigner:
    """The executions have entered it one after the other, at time 1."""
    made = Assigner(cast("SessionRegistry", fleet))
    for each in executions:
        made.enter(each, 1)
    return made


def owned(
    name: str, width: int, workspace: str = "w", module: str = "noop@1", inputs: Mapping[str, str] | None = None
) -> OwnedExecution:
    nodes = [{"id": f"n{number}", "module": module, "inputs": inputs or {}} for number in range(width)]
    execution = Execution(name, compile_definition({"name": "w", "nodes": nodes, "edges": []}))
    handle(execution, Start(1, "c", Origin(workspace, "w", 1, "v1", create_time=1)), 1)
    return OwnedExecution(name, 1, start_command(ExecutionGrant(), "c1"), execution=execution)


def test_credit_goes_round_robin_and_is_never_exceeded() -> None:
    one, two = Session("one", 2), Session("two", 5)
    mine = owned("e1", 6)
    assigner = assigner_of(Fleet(one, two), mine)
    assert [each.session.instance_id for each in assigner.give(2)[mine]] == ["one", "two"] * 2 + ["two"] * 2
    assert (one.credit, two.credit) == (0, 1)


def test_no_work_is_given_twice_in_one_batch() -> None:
    mine = owned("e1", 200)
    assigner = assigner_of(Fleet(Session("one", 500)), mine)
    works = [each.work for each in assigner.give(2)[mine]]
    assert len(works) == len(set(works)) == 200


def test_a_fan_out_does_not_hold_up_the_step_behind_it() -> None:
    wide, narrow = owned("wide", 500), owned("narrow", 1)
    assigner = assigner_of(Fleet(Session("one", 100)), wide, narrow)
    given = assigner.give(2)
    assert len(given[narrow]) == 1
    assert len(given[wide]) == 99


def test_work_that_nobody_can_do_holds_up_nothing_and_is_demanded() -> None:
    fleet = Fleet(Session("one", 10))
    strange, plain = owned("strange", 3, module="x.y@1"), owned("plain", 1)
    assigner = assigner_of(fleet, strange, plain)
    assert set(assigner.give(2)) == {plain}
    assert fleet.demand == 3
    assert not assigner.is_idle


def test_workspaces_take_turns_when_credit_is_short() -> None:
    session = Session("one", 1)
    many, other = owned("many", 50, workspace="a"), owned("other", 1, workspace="b")
    assigner = assigner_of(Fleet(session), many, other)
    first = assigner.give(2)
    session.credit = 1
    second = assigner.give(2)
    assert {*first, *second} == {many, other}


def test_what_was_dropped_is_passed_over() -> None:
    gone = owned("gone", 1)
    assigner = assigner_of(Fleet(Session("one", 10)), gone)
    gone.is_dropped = True
    assert assigner.give(2) == {}
    assert assigner.is_idle


def test_the_next_step_goes_before_those_who_wait() -> None:
    session = Session("one", 1)
    waiting, following = owned("waiting", 1), owned("following", 1)
    assigner = assigner_of(Fleet(session), waiting)
    assigner.enter(following, 2, is_following=True)
    assert set(assigner.give(2)) == {following}
    session.credit = 1
    assert set(assigner.give(3)) == {waiting}


def test_but_not_before_one_who_has_waited_for_long() -> None:
    session = Session("one", 1)
    waiting, following = owned("waiting", 1), owned("following", 1)
    assigner = assigner_of(Fleet(session), waiting)
    assigner.enter(following, 6_000_002, is_following=True)
    assert set(assigner.give(6_000_002)) == {waiting}
    session.credit = 1
    assert set(assigner.give(6_000_003)) == {following}


TEMPLATED = {"x": "{{ input.n }}"}


def given_to(assigner: Assigner, mine: OwnedExecution) -> list[tuple[str, bool]]:
    """The runner of each assigned work, and whether it only renders."""
    return [(each.session.instance_id, each.is_rendering) for each in assigner.give(2).get(mine, ())]


def test_work_with_templates_is_rendered_for_a_runner_that_cannot() -> None:
    foreign = Session("foreign", 5, modules=("x.y@1",), wants_rendered=True)
    mine = owned("e1", 2, module="x.y@1", inputs=TEMPLATED)
    waiting = assigner_of(Fleet(foreign), mine)
    assert given_to(waiting, mine) == [], "nobody renders yet"
    assert foreign.credit == 5
    assigner = assigner_of(Fleet(foreign, Session("ours", 5)), mine)
    assert given_to(assigner, mine) == [("ours", True)] * 2


def test_plain_or_rendered_work_goes_to_the_runner_that_does_not_render() -> None:
    foreign = Session("foreign", 5, modules=("x.y@1",), wants_rendered=True)
    plain, rendered = owned("e1", 1, module="x.y@1"), owned("e2", 1, module="x.y@1", inputs=TEMPLATED)
    assert rendered.execution is not None
    next(iter(rendered.execution.ready)).rendered = b'{"config":{},"inputs":{"x":1}}'
    assigner = assigner_of(Fleet(foreign, Session("ours", 5)), plain, rendered)
    given = assigner.give(2)
    assert [[(each.session.instance_id, each.is_rendering) for each in given[one]] for one in (plain, rendered)] == [
        [("foreign", False)],
        [("foreign", False)],
    ]


def test_runner_that_renders_does_the_work_itself() -> None:
    foreign = Session("foreign", 5, modules=("x.y@1",), wants_rendered=True)
    own = Session("own", 1, modules=("x.y@1", "transform@1"))
    mine = owned("e1", 1, module="x.y@1", inputs=TEMPLATED)
    assert given_to(assigner_of(Fleet(foreign, own), mine), mine) == [("own", False)]


def test_work_that_no_runner_could_do_is_not_rendered() -> None:
    mine = owned("e1", 1, module="x.y@1", inputs=TEMPLATED)
    other = Session("other", 5, modules=("z.z@1",), wants_rendered=True)
    assert given_to(assigner_of(Fleet(other, Session("ours", 5)), mine), mine) == []


def test_module_that_evaluates_its_config_is_not_for_a_runner_that_does_not_render() -> None:
    foreign = Session("foreign", 5, modules=("condition@1", "noop@1"), wants_rendered=True)
    assert foreign.data.modules == {"noop@1"}
