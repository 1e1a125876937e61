"""Ready work is assigned to runners."""

import gc
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from services.chassis.identity.callers import CallerKind, Identity
from services.chassis.lease.frames import Attach
from services.chassis.session.registry import SessionRegistry
from services.coordinator.app.assigning import Assigner
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.runner_places import RunnerPlaces
from services.coordinator.app.runner_scope import RunnerScope
from services.coordinator.core.commands import Assign, AssignedRun, LoseRunner, Release, ReportSuccess, Start
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.handlers import handle
from services.coordinator.core.state import Execution
from services.coordinator.core.values import Origin, ReleaseReason
from services.coordinator.peers.dispatch import start_command
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant

PLACES = 10


class Session:
    """A session that has only the runner's scope and credit."""

    def __init__(self, name: str, credit: int, workspace: str = "", reserve: float = 0.0, **more: Any) -> None:
        self.instance_id = name
        self.attach = Attach(holder=name, instance_id=name, capacity=credit, **more)
        self.data = RunnerScope(self.attach, Identity(CallerKind.RUNNER, "k", workspace=workspace), reserve)
        self.credit = credit
        self.demand = 0

    def set_demand(self, demand: int) -> None:
        self.demand = demand

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
    made = Assigner(cast("SessionRegistry", fleet), RunnerPlaces())
    for each in executions:
        made.enter(each, 1)
    return made


def owned(
    name: str,
    width: int,
    workspace: str = "w",
    module: str = "noop@1",
    inputs: Mapping[str, str] | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    runner_weight: int = 0,
) -> OwnedExecution:
    more = {"module": module, "config": config or {}, "inputs": inputs or {}}
    nodes = [{"id": f"n{number}", **more} for number in range(width)]
    execution = Execution(name, compile_definition({"name": "w", "nodes": nodes, "edges": []}))
    origin = Origin(workspace, "w", 1, "v1", create_time=1, runner_weight=runner_weight)
    handle(execution, Start(1, "c", origin), 1)
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


def test_batches_leave_nothing_to_the_garbage_collector() -> None:
    """A batch makes a line for each workspace that waits. To collect those of many batches would stop everybody."""
    waiting = [owned(f"e{number}", 3, f"w{number}") for number in range(50)]
    assigner = assigner_of(Fleet(Session("one", PLACES)), *waiting)
    gc.collect()
    gc.disable()
    try:
        for now in range(2, 5):
            assigner.give(now)
        own = (each for each in gc.get_objects() if type(each).__module__ == Assigner.__module__)
        assert [each for each in own if each is not assigner] == []
    finally:
        gc.enable()


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


def test_a_turn_whose_until_its_runner_cannot_evaluate_waits() -> None:
    """To render it first would not help, and it would be rendered for ever."""
    foreign = Session("foreign", 5, modules=("x.y@1",), wants_rendered=True)
    mine = owned("e1", 1, module="repeat@1", config={"until": "output.done", "body": {"module": "x.y@1"}})
    assert given_to(assigner_of(Fleet(foreign, Session("ours", 5)), mine), mine) == []
    own = Session("own", 1, modules=("x.y@1", "transform@1"))
    assert given_to(assigner_of(Fleet(foreign, own), mine), mine) == [("own", False)]


def test_work_that_no_runner_could_do_is_not_rendered() -> None:
    mine = owned("e1", 1, module="x.y@1", inputs=TEMPLATED)
    other = Session("other", 5, modules=("z.z@1",), wants_rendered=True)
    assert given_to(assigner_of(Fleet(other, Session("ours", 5)), mine), mine) == []


def test_module_that_evaluates_its_config_is_not_for_a_runner_that_does_not_render() -> None:
    foreign = Session("foreign", 5, modules=("condition@1", "noop@1"), wants_rendered=True)
    assert foreign.data.modules == {"noop@1"}


class Shop:
    """An assigner, and executions that are leased what they are given."""

    def __init__(self, *sessions: Session) -> None:
        self.fleet = Fleet(*sessions)
        self.places = RunnerPlaces()
        self.assigner = Assigner(cast("SessionRegistry", self.fleet), self.places)
        self.now = 1

    def enter(self, *executions: OwnedExecution) -> None:
        for each in executions:
            self.assigner.enter(each, self.now)

    def give(self) -> Counter[str]:
        """How many places each workspace was given."""
        self.now += 1
        counts: Counter[str] = Counter()
        for each, given in self.assigner.give(self.now).items():
            execution = each.execution
            assert execution is not None
            grants = [AssignedRun(work, session.instance_id, session.attach.holder) for work, session, *_ in given]
            assert handle(execution, Assign(grants), self.now).refusal is None
            self.places.follow(each, execution.live, self.now)
            counts[execution.origin.workspace] += len(given)
        return counts

    def held(self, session: Session) -> dict[str, int]:
        """How many places of this runner each workspace holds."""
        return {name: use.held for (name, _), use in self.places.at(session.instance_id).items() if use.held}

    def end(self, session: Session, *executions: OwnedExecution, count: int) -> None:
        """The first `count` runs of these executions at this runner succeed, and their places are free."""
        runs = [(each, run) for each in executions for run in each.execution.live.values()]  # type: ignore[union-attr]
        for each, run in [pair for pair in runs if pair[1].instance_id == session.instance_id][:count]:
            assert each.execution is not None
            handle(each.execution, ReportSuccess(run.number, run.epoch, b"1"), self.now)
            self.places.follow(each, [run.number], self.now)
            session.credit += 1


def test_one_workspace_leaves_the_reserve_to_those_who_hold_nothing() -> None:
    session = Session("one", PLACES, reserve=0.2)
    shop = Shop(session)
    shop.enter(owned("flood", 40, "flood"))
    assert shop.give() == {"flood": 8}
    shop.enter(owned("first", 3, "first"))
    assert shop.give() == {"first": 1}, "the second place of the reserve is for somebody else"
    assert session.credit == 1


def test_what_is_kept_free_is_demanded_besides_the_work_that_waits() -> None:
    """Otherwise the runner finds that the credit is enough, and leaves the rest of its places to idle coordinators."""
    session = Session("one", 100, reserve=0.2)
    shop = Shop(session)
    session.credit = 50
    shop.enter(owned("many", 40, "w"))
    assert shop.give() == {"w": 40}
    shop.enter(owned("next", 1, "w"))
    assert shop.give() == {}
    assert session.demand == 1 + 10 > session.credit
    session.credit += session.demand - session.credit
    assert shop.give() == {"w": 1}
    assert (session.credit, shop.fleet.demand) == (10, 0)


@pytest.mark.parametrize(
    ("lived", "attempts", "given"),
    [(10_000, 1, {"second": 1}), (2_000_000, 1, {}), (10_000, 2, {})],
    ids=["short", "long", "short, but the rest of a long one"],
)
def test_half_of_the_reserve_is_for_those_whose_last_run_was_short(
    lived: int, attempts: int, given: dict[str, int]
) -> None:
    session = Session("one", PLACES, reserve=0.2)
    shop = Shop(session)
    before = owned("before", 1, "second")
    shop.enter(before)
    assert before.execution is not None
    for attempt in range(1, attempts + 1):
        assert shop.give() == {"second": 1}
        shop.now += lived
        if attempt < attempts:
            hand_back(shop, before, session)
            shop.now += 1_000_000
    shop.end(session, before, count=1)
    shop.now += 1_000_000
    for name in ("flood", "first"):
        shop.enter(owned(name, 40, name))
        shop.give()
    assert shop.held(session) == {"flood": 8, "first": 1}
    shop.enter(owned("again", 3, "second"))
    assert shop.give() == given


@pytest.mark.parametrize(("places", "most"), [(1, 1), (2, 1), (4, 3), (10, 8), (100, 80)])
def test_the_reserve_is_a_fifth_and_at_least_one_place(places: int, most: int) -> None:
    shop = Shop(Session("one", places, reserve=0.2))
    shop.enter(owned("flood", 200, "flood"))
    assert shop.give() == {"flood": most}


def test_a_runner_of_one_workspace_needs_no_reserve() -> None:
    shop = Shop(Session("own", PLACES, workspace="flood", reserve=0.2))
    shop.enter(owned("flood", 40, "flood"))
    assert shop.give() == {"flood": PLACES}


def test_a_workspace_holds_its_fair_share_while_another_has_ready_work() -> None:
    session = Session("one", PLACES, reserve=0.2)
    shop = Shop(session)
    flood, quiet = owned("flood", 40, "flood"), owned("quiet", 40, "quiet")
    shop.enter(flood)
    assert shop.give() == {"flood": 8}
    shop.enter(quiet)
    for _ in range(10):
        shop.give()
        shop.end(session, flood, count=1)
    shop.end(session, quiet, count=1)
    shop.give()
    assert shop.held(session) == {"flood": 4, "quiet": 4}


def test_shares_are_weighted() -> None:
    shop = Shop(Session("one", 100))
    shop.enter(owned("heavy", 200, "heavy", runner_weight=4), owned("light", 200, "light", runner_weight=1))
    assert shop.give() == {"heavy": 80, "light": 20}


def test_places_are_shared_at_each_runner_by_itself() -> None:
    common, special = Session("common", 10), Session("special", 10)
    special.data.modules = frozenset({"x.y@1"})
    shop = Shop(common, special)
    flood = owned("flood", 40, "flood", "x.y@1")
    shop.enter(flood, owned("quiet", 40, "quiet"))
    assert shop.give() == {"flood": 10, "quiet": 10}
    shop.enter(owned("more", 40, "quiet", "x.y@1"))
    shop.end(special, flood, count=2)
    assert shop.give() == {"quiet": 2}, "it holds nothing of this runner"


def test_what_nobody_else_wants_may_be_had() -> None:
    shop = Shop(Session("one", PLACES))
    shop.enter(owned("flood", 40, "flood"), owned("quiet", 2, "quiet"))
    assert shop.give() == {"flood": 8, "quiet": 2}


@pytest.mark.parametrize(("lived", "more"), [(10_000, 16), (2_000_000, 8)])
def test_credit_beyond_the_places_is_for_those_whose_runs_are_short(lived: int, more: int) -> None:
    session = Session("one", PLACES, reserve=0.2)
    shop = Shop(session)
    before = owned("before", 1, "quiet")
    shop.enter(before)
    assert shop.give() == {"quiet": 1}
    shop.now += 10_000
    shop.end(session, before, count=1)
    flood = owned("flood", 40, "flood")
    shop.enter(flood)
    assert shop.give() == {"flood": 8}
    shop.now += lived
    shop.end(session, flood, count=8)
    session.credit += 8
    assert shop.give() == {"flood": more}
    shop.now += 1_000_000
    session.credit += 8
    assert shop.give() == {}, "no run has ended lately"
    shop.enter(owned("quiet", 1, "quiet"))
    assert shop.give() == {"quiet": 1}


def test_who_needs_a_place_now_and_then_does_not_queue_behind_those_who_always_do() -> None:
    session = Session("one", 5, reserve=0.2)
    shop = Shop(session)
    crowd = [owned(f"e{number}", 40, f"w{number}") for number in range(50)]
    shop.enter(*crowd)
    for _ in range(100):
        given = shop.give()
        shop.now += 300_000
        shop.end(session, *crowd, count=given.total())
    assert shop.give().total() == 4, "the crowd needs the reserve all the time"
    shop.enter(owned("quiet", 1, "quiet"))
    assert shop.give() == {"quiet": 1}


def test_short_runs_of_one_module_make_no_room_for_another() -> None:
    session = Session("one", PLACES, reserve=0.2)
    shop = Shop(session)
    quick = owned("quick", 8, "flood")
    shop.enter(quick)
    assert shop.give() == {"flood": 8}
    shop.end(session, quick, count=8)
    session.credit += 8
    shop.enter(owned("slow", 40, "flood", "delay@1"), owned("more", 40, "flood"))
    assert shop.give() == {"flood": 16}
    assert shop.places.at("one")["flood", "delay@1"].held == 8


def test_an_execution_that_is_forgotten_holds_no_places() -> None:
    session = Session("one", PLACES, reserve=0.2)
    shop = Shop(session)
    flood = owned("flood", 4, "flood")
    shop.enter(flood)
    shop.give()
    assert shop.held(session) == {"flood": 4}
    shop.places.forget(flood)
    assert shop.held(session) == {}


def hand_back(shop: Shop, mine: OwnedExecution, session: Session) -> None:
    assert mine.execution is not None
    for run in list(mine.execution.live.values()):
        handle(mine.execution, Release(run.number, run.epoch, ReleaseReason.REFUSED), shop.now)
        shop.places.follow(mine, [run.number], shop.now)
        session.credit += 1
    shop.enter(mine)


def test_work_is_not_granted_again_at_once_to_the_runner_that_handed_it_back() -> None:
    session = Session("one", PLACES, reserve=0.2)
    shop = Shop(session)
    mine = owned("mine", 1)
    shop.enter(mine)
    grants = 0
    for _ in range(1_000):
        grants += shop.give().total()
        hand_back(shop, mine, session)
        shop.now += 3_000
    # 0.25, 0.5, 1, 2 s and so on, within three seconds.
    assert grants == 4


def test_another_runner_is_granted_it_at_once() -> None:
    one, two = Session("one", PLACES, reserve=0.2), Session("two", 1)
    shop = Shop(one)
    mine, other = owned("mine", 3), owned("other", 1)
    shop.enter(mine)
    assert shop.give() == {"w": 3}
    hand_back(shop, mine, one)
    shop.enter(other)
    assert shop.give() == {"w": 1}, "the work behind it waits too"
    shop.fleet.sessions.append(two)
    assert shop.give() == {"w": 1}
    assert two.credit == 0
    assert not shop.assigner.is_idle


@pytest.mark.parametrize(("others", "passed", "given"), [(1, 0, 0), (1, 1_000_000, 1), (0, 0, 1)])
def test_work_that_a_runner_died_with_goes_to_another_that_has_credit(others: int, passed: int, given: int) -> None:
    first = Session("first life", 5)
    shop = Shop(first)
    mine = owned("mine", 1)
    shop.enter(mine)
    assert shop.give() == {"w": 1}
    assert mine.execution is not None
    handle(mine.execution, LoseRunner("first life"), shop.now)
    shop.places.follow(mine, [1], shop.now)
    second = Session("second life", 5)
    second.attach = replace(second.attach, holder="first life")
    shop.fleet.sessions[:] = [second, *[Session("other", 5)] * others]
    shop.enter(mine)
    shop.now += passed
    assert shop.give() == {"w": 1}
    assert 5 - second.credit == given
