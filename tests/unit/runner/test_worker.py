"""The worker begins runs, hands some back, and reports outcomes."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from prometheus_client import REGISTRY

from services.runner.app import worker
from services.runner.app.module_loop import STALLED_SECONDS
from services.runner.app.modules.flow import delay, seconds_left
from services.runner.app.worker import TEND_SECONDS
from services.runner.core.failures import Failure, FailureClass
from services.runner.core.job import Deferred, Job, Released, Stopped, StoredOutput, Succeeded
from services.runner.peers.translate import report_of
from tests.support.probe import until
from tests.support.runner_bench import EXECUTION_ID, HANGS_SECONDS, RUN_LEASE, STALLED_SECONDS_MAX, Bench, Signal, a_job
from windlass.sdk import Context, TransientError

LONG = "{{ input.n }}"
PERMANENT, TIMEOUT, TRANSIENT = FailureClass.PERMANENT, FailureClass.TIMEOUT, FailureClass.TRANSIENT


@pytest.fixture
def bench(tmp_path: Any) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("job", "output", "branch"),
    [
        (a_job(), None, ""),
        (a_job("transform@1", inputs={"a": "{{ input.id }}"}, has_templates=True), {"a": 7}, ""),
        (a_job("condition@1", config={"expression": "input.id > 5"}), {"result": True}, "true"),
        (
            a_job("condition@1", config={"expression": "{{ input.id > 9 }}"}, has_templates=True),
            {"result": False},
            "false",
        ),
        (
            a_job("switch@1", config={"cases": [{"when": "input.id == 7", "branch": "seven"}], "default": "other"}),
            {"branch": "seven"},
            "seven",
        ),
        (a_job("switch@1", config={"cases": [], "default": "other"}), {"branch": "other"}, "other"),
        (a_job("fail@1", config={"untilAttempt": 2}, attempt=2), {"attempt": 2, "inputs": {}}, ""),
        (a_job("sleep@1", config={"d": "{{ input.id }}"}, has_templates=True, is_render_only=True), {"d": 7}, ""),
        (
            a_job(
                "not.mine@1", config={"c": 1}, inputs={"d": "{{ input.id }}"}, has_templates=True, is_render_all=True
            ),
            {"config": {"c": 1}, "inputs": {"d": 7}},
            "",
        ),
    ],
)
async def test_built_in_module_gives_its_output_and_branch(bench: Bench, job: Job, output: Any, branch: str) -> None:
    outcome = await bench.outcome(job)
    assert outcome == Succeeded(orjson.dumps(output), branch)


@pytest.mark.parametrize(
    ("job", "failure_class", "kind"),
    [
        (a_job("fail@1"), TRANSIENT, "TRANSIENT"),
        (a_job("fail@1", config={"type": "PERMANENT"}), PERMANENT, "PERMANENT"),
        (a_job("fail@1", config={"type": "CARD_DECLINED"}), TRANSIENT, "CARD_DECLINED"),
        (a_job("switch@1", config={"cases": []}), PERMANENT, "NO_BRANCH"),
        (a_job("condition@1"), PERMANENT, "INVALID_CONFIG"),
        (a_job("condition@1", config={"expression": [1, 2]}), PERMANENT, "INVALID_CONFIG"),
        (a_job("switch@1", config={"cases": [{"when": {"a": 1}, "branch": "a"}]}), PERMANENT, "INVALID_CONFIG"),
        (a_job("transform@1", inputs={"a": "{{ input.no }}"}, has_templates=True), PERMANENT, "TEMPLATE_ERROR"),
        (a_job("delay@1", config={"duration": "soon"}), PERMANENT, "INVALID_CONFIG"),
        (a_job("delay@1", config={"duration": "60s"}, timeout_seconds=0.01), TIMEOUT, "NODE_TIMEOUT"),
        (a_job("delay@1", config={"duration": "3600001ms"}), PERMANENT, "INVALID_CONFIG"),
        (
            a_job("delay@1", config={"duration": LONG}, execution_input={"n": "2h"}, has_templates=True),
            PERMANENT,
            "INVALID_CONFIG",
        ),
    ],
)
async def test_failures_have_a_class(bench: Bench, job: Job, failure_class: FailureClass, kind: str) -> None:
    assert await bench.failure(job) == (failure_class, kind)


async def test_no_more_run_at_once_than_allowed(tmp_path: Any) -> None:
    bench = Bench(tmp_path, concurrency=3)
    going, most, gate = 0, 0, Signal()

    async def hold(_ctx: Context, _inputs: Any, _config: Any) -> None:
        nonlocal going, most
        going += 1
        most = max(most, going)
        if going == 3:
            gate.set()
        await gate.wait()
        going -= 1

    bench.registry.declare("test.hold@1")(hold)
    bench.worker.take([a_job("test.hold@1", number) for number in range(9)])
    assert len(await bench.desk.until(9)) == 9
    assert most == 3


async def test_nothing_begins_past_the_self_fence_and_all_begins_after_it(bench: Bench) -> None:
    bench.desk.is_fenced = True
    bench.worker.take([a_job()])
    assert bench.desk.ended == []
    bench.desk.is_fenced = False
    bench.worker.resume()
    assert len(bench.desk.ended) == 1


async def test_work_queued_behind_long_work_is_handed_back_unbegun(tmp_path: Any) -> None:
    bench = Bench(tmp_path, concurrency=1)
    bench.worker.take([a_job("delay@1", 1, config={"duration": "60s"}), a_job("noop@1", 2)])
    bench.clock.advance(1.5)
    bench.worker.tend()
    assert [(e.job.run_id, e.outcome) for e in bench.desk.ended] == [("e.2", Released("QUEUED_TOO_LONG", False))]
    bench.worker.drop_all()


async def test_places_of_the_reserve_are_for_workspaces_without_a_run(tmp_path: Any) -> None:
    bench = Bench(tmp_path, concurrency=4)

    def job(number: int, workspace: str) -> Job:
        return a_job("delay@1", number, workspace=workspace, config={"duration": "60s"}, places_max=2)

    bench.worker.take([job(number, "flood") for number in (1, 2, 3)])
    assert bench.worker.going == 2
    bench.clock.advance(0.6)
    bench.worker.take([job(4, "quiet"), job(5, "quiet"), job(6, "third")])
    assert bench.worker.going == 4
    bench.clock.advance(0.6)
    bench.worker.tend()
    assert [(e.job.run_id, e.outcome) for e in bench.desk.ended] == [("e.3", Released("QUEUED_TOO_LONG", False))]
    bench.worker.drop(["e.1", "e.2", "e.4"])
    bench.worker.resume()
    assert bench.worker.going == 2, "what was held up has not begun"
    bench.worker.drop_all()
    await asyncio.to_thread(bench.close)


async def test_a_long_run_that_can_go_on_elsewhere_gives_way_to_work_that_waits(tmp_path: Any) -> None:
    bench = Bench(tmp_path, concurrency=2)
    begun, is_stopping = Signal(), Signal()

    async def scans(ctx: Context, _inputs: Any, _config: Any) -> None:
        ctx.tell(cursor={"row": 7})
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert bench.desk.ended == [], "it is handed back before it has stopped"
            is_stopping.set()

    bench.registry.declare("test.scans@1", resumable=True)(scans)

    @bench.registry.declare("test.waits@1")
    async def waits(_ctx: Context, _inputs: Any, _config: Any) -> None:
        await asyncio.Event().wait()

    bench.worker.take([a_job("test.scans@1", 1), a_job("test.waits@1", 2)])
    await begun.wait()
    bench.clock.advance(61.0)
    bench.worker.tend()
    assert bench.worker.going == 2, "nobody waits"
    bench.desk.is_demanded = True
    bench.worker.tend()
    await is_stopping.wait()
    (ended,) = await bench.desk.until(1)
    assert (ended.job.run_id, ended.outcome) == ("e.1", Released("GAVE_WAY", True, b'{"row":7}'))
    bench.worker.tend()
    assert bench.worker.going == 1, "the other one cannot go on elsewhere"
    begun.clear()
    bench.worker.take([a_job("test.scans@1", 3, attempt=2)])
    await begun.wait()
    bench.clock.advance(61.0)
    bench.worker.tend()
    assert bench.worker.going == 2, "each attempt keeps its place for longer"
    bench.worker.drop_all()
    await asyncio.to_thread(bench.close)


async def test_a_long_run_gives_a_place_of_the_reserve_back_after_a_second(tmp_path: Any) -> None:
    bench, begun = Bench(tmp_path, concurrency=3), Signal()
    bench.desk.is_demanded = True

    @bench.registry.declare("test.delay@1", resumable=True)
    async def waits(ctx: Context, inputs: Any, config: Any) -> Any:
        begun.set()
        return await cast("Awaitable[Any]", delay(ctx, inputs, config))

    config = {"duration": "1h"}
    for number in (1, 2, 3):
        bench.worker.take([a_job("test.delay@1", number, workspace=f"w{number}", config=config, places_max=2)])
    await begun.wait()
    bench.clock.advance(0.9)
    bench.worker.tend()
    assert bench.worker.going == 3, "each keeps its place for a second"
    bench.clock.advance(0.2)
    bench.worker.tend()
    (ended,) = await bench.desk.until(1)
    assert isinstance(ended.outcome, Released)
    assert (ended.job.run_id, ended.outcome.reason) == ("e.1", "GAVE_WAY")
    cursor = orjson.loads(ended.outcome.cursor)
    assert 3_500 < cursor["seconds_left"] <= 3_600
    bench.worker.tend()
    assert bench.worker.going == 2, "the reserve is free again"
    bench.worker.drop_all()
    going_on = a_job("delay@1", 4, config=config, cursor=b'{"seconds_left": 0}')
    assert await bench.outcome(going_on) == Succeeded(b"null")
    await asyncio.to_thread(bench.close)


@pytest.mark.parametrize(
    ("duration", "cursor"),
    [
        *(
            ("10ms", cursor)
            for cursor in (
                b'{"seconds_left": 1e9}',
                b'{"seconds_left": 100000000000000000000000000}',
                b'{"seconds_left": "nan"}',
                b'{"seconds_left": "inf"}',
                b'{"seconds_left": "1e9"}',
                b'{"seconds_left": [1e9]}',
                b'{"seconds_left": null}',
                b'{"seconds": 1e9}',
                b"[1e9]",
                b"1e9",
            )
        ),
        ("1h", b'{"seconds_left": -1e9}'),
        ("1h", b'{"seconds_left": 0.01}'),
    ],
)
async def test_no_cursor_makes_a_delay_longer(bench: Bench, duration: str, cursor: bytes) -> None:
    """It may come from a runner of the workspace, which writes what it likes into it."""
    assert await bench.outcome(a_job("delay@1", config={"duration": duration}, cursor=cursor)) == Succeeded(b"null")


def test_a_cursor_that_is_no_number_leaves_all_of_a_delay() -> None:
    assert seconds_left({"seconds_left": float("nan")}, 60.0) == 60.0
    assert seconds_left({"seconds_left": float("-inf")}, 60.0) == 0.0


async def test_an_unknown_module_is_handed_back(bench: Bench) -> None:
    assert await bench.outcome(a_job("billing.charge@2")) == Released("UNKNOWN_MODULE", may_have_begun=False)


@pytest.mark.parametrize("is_awaited", [True, False])
async def test_a_run_that_was_taken_back_stops_and_says_so_where_that_is_awaited(
    bench: Bench, is_awaited: bool
) -> None:
    seen: list[Context] = []
    begun, stopped = Signal(), Signal()

    async def wait(ctx: Context, _inputs: Any, _config: Any) -> None:
        seen.append(ctx)
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert bench.desk.ended == [], "nothing is said before it has stopped"
            stopped.set()

    bench.registry.declare("test.wait@1")(wait)
    bench.worker.take([a_job("test.wait@1")])
    await begun.wait()
    take_back = bench.worker.stop if is_awaited else bench.worker.drop
    take_back(["e.1", "e.2"])
    await stopped.wait()
    # By the end of two later runs, everything is said of the earlier one.
    bench.worker.take([a_job("delay@1", number, config={"duration": "0s"}) for number in (3, 4)])
    told = {ended.job.run_id: ended.outcome for ended in await bench.desk.until(3 if is_awaited else 2)}
    assert seen[0].cancelled
    assert [told.pop(run_id) for run_id in ("e.3", "e.4")] == [Succeeded(b"null")] * 2
    assert told == ({"e.1": Stopped()} if is_awaited else {})
    assert bench.worker.going == 0


async def test_queued_and_barely_begun_runs_that_are_stopped_say_so(tmp_path: Any) -> None:
    bench = Bench(tmp_path, concurrency=1)
    bench.worker.take([a_job("delay@1", number, config={"duration": "60s"}) for number in (1, 2, 3)])
    bench.worker.stop(["e.1", "e.2"])
    ended = await bench.desk.until(2)
    assert sorted((each.job.run_id, each.outcome) for each in ended) == [("e.1", Stopped()), ("e.2", Stopped())]
    bench.worker.drop(["e.3"])


async def test_a_plain_function_that_is_stopped_is_given_up(bench: Bench) -> None:
    gate, begun = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def blocks(_ctx: Context, _inputs: Any, _config: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        gate.wait()

    bench.registry.declare("test.blocks@1")(blocks)
    bench.worker.take([a_job("test.blocks@1")])
    await begun.wait()
    bench.worker.stop(["e.1"])
    assert [each.outcome for each in await bench.desk.until(1)] == [Stopped()]
    gate.set()


async def test_drain_hands_back_what_has_not_begun_and_then_what_is_going(tmp_path: Any) -> None:
    bench = Bench(tmp_path, concurrency=1)
    bench.worker.take([a_job("delay@1", 1, config={"duration": "60s"}), a_job("noop@1", 2)])
    for _ in range(5):
        await asyncio.sleep(0)
    bench.worker.drain()
    bench.worker.hand_back_going()
    assert [(e.job.run_id, e.outcome) for e in bench.desk.ended] == [
        ("e.2", Released("DRAINING", False)),
        ("e.1", Released("DRAINING", True)),
    ]


async def test_news_of_a_run_is_told_once_to_each_coordinator(bench: Bench) -> None:
    told = [Signal(), Signal()]

    async def step(ctx: Context, _inputs: Any, _config: Any) -> None:
        told[0].set()
        await told[1].wait()
        await ctx.heartbeat(0.5, "half", {"page": 2})
        told[0].set()
        await asyncio.Event().wait()

    bench.registry.declare("test.step@1")(step)
    bench.worker.take([a_job("test.step@1")])
    await told[0].wait()
    assert [(n.fraction, n.message) for n in bench.worker.news("c1")] == [(0.0, "")]
    assert bench.worker.news("c1") == []
    told[0].clear()
    told[1].set()
    await told[0].wait()
    for coordinator in ("c1", "c2"):
        assert [(n.fraction, n.cursor) for n in bench.worker.news(coordinator)] == [(0.5, b'{"page":2}')]
        assert bench.worker.news(coordinator) == []
    assert [n.message for n in bench.worker.news("c1", anew=True)] == ["half"]
    bench.worker.drop_all()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"cursor": {"page": 2}}, (0.5, "half", b'{"page":2}')),
        ({"progress": 0.75}, (0.75, "half", b'{"page":1}')),
        ({"message": "more"}, (0.5, "more", b'{"page":1}')),
        ({"progress": 0.0, "message": ""}, (0.0, "", b'{"page":1}')),
        ({}, (0.5, "half", b'{"page":1}')),
    ],
)
async def test_what_a_heartbeat_leaves_out_stays_as_it_was_told(bench: Bench, said: dict[str, Any], told: Any) -> None:
    async def steps(ctx: Context, _inputs: Any, _config: Any) -> None:
        await ctx.heartbeat(0.5, "half", {"page": 1})
        await ctx.heartbeat(**said)
        news.extend(bench.worker.news("c1"))

    news: list[Any] = []
    bench.registry.declare("test.steps@1")(steps)
    await bench.outcome(a_job("test.steps@1"))
    assert [(each.fraction, each.message, each.cursor) for each in news] == [told]


@pytest.mark.parametrize(("raised", "cursor"), [(True, b'{"page":2}'), (False, b"")])
async def test_the_last_cursor_goes_along_with_a_failure(bench: Bench, raised: bool, cursor: bytes) -> None:
    async def fails(ctx: Context, _inputs: Any, _config: Any) -> None:
        await ctx.heartbeat(cursor={"page": 2})
        if raised:
            raise TransientError("half way")

    bench.registry.declare("test.fails@1")(fails)
    await bench.outcome(a_job("test.fails@1"))
    assert bench.desk.ended[-1].cursor == cursor
    report = report_of(bench.desk.ended[-1], "r1")
    assert report.failed.cursor == cursor


async def test_a_large_output_is_kept_before_it_is_reported(bench: Bench) -> None:
    big = {"text": "x" * 300_000}
    outcome = await bench.outcome(a_job("transform@1", inputs=big))
    assert isinstance(outcome, Succeeded)
    assert isinstance(outcome.output, StoredOutput)
    assert await bench.outputs.get(outcome.output) == orjson.dumps(big)
    ref = outcome.output
    bench.desk.ended.clear()
    job = a_job(
        "transform@1", outputs={"up": ref}, inputs={"n": "{{ nodes.up.output.text|length }}"}, has_templates=True
    )
    assert await bench.outcome(job) == Succeeded(b'{"n":300000}')


async def test_input_that_its_grant_left_out_is_fetched_first(bench: Bench) -> None:
    ref = await bench.outputs.put(orjson.dumps({"text": "x" * 300_000}), RUN_LEASE)
    templates = {"n": "{{ input.text|length }}"}
    job = a_job("transform@1", execution_input=ref, inputs=templates, has_templates=True)
    assert await bench.outcome(job) == Succeeded(b'{"n":300000}')
    gone = replace(ref, key="ab" * 16 + "/2026-08-00/" + "0" * 64 + ".json")
    outcome = await bench.outcome(a_job("transform@1", execution_input=gone, inputs=templates, has_templates=True))
    assert isinstance(outcome, Failure)
    assert (outcome.failure_class, outcome.type) == (FailureClass.TRANSIENT, "OUTPUT_MISSING")


async def test_plain_functions_run_off_the_event_loop_and_their_errors_are_classed(bench: Bench) -> None:
    def blocking(ctx: Context, _inputs: Any, _config: Any) -> None:
        ctx.cost(5)
        raise TransientError(threading.current_thread().name, type="BUSY", retry_after=2.0)

    bench.registry.declare("test.blocking@1")(blocking)
    outcome = await bench.outcome(a_job("test.blocking@1"))
    assert isinstance(outcome, Failure)
    assert (outcome.type, outcome.retry_after_seconds) == ("BUSY", 2.0)
    assert outcome.message != threading.main_thread().name
    assert bench.desk.ended[0].cost_tokens == 5


async def test_a_modules_log_names_its_run(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.registry.declare("test.says@1", inline=True)(
        lambda ctx, _inputs, _config: ctx.log.warning("odd", extra={"shoe": 41})
    )
    await bench.outcome(a_job("test.says@1"))
    (record,) = caplog.records
    names = ("execution_id", "run_id", "node", "attempt", "shoe")
    assert [getattr(record, name) for name in names] == [EXECUTION_ID, "e.1", "n", 1, 41]


class Blocking:
    """The module `test.blocks@1`, which blocks the event loop of the async modules until the test ends it."""

    def __init__(self, bench: Bench) -> None:
        self.begun, self._gate = Signal(), threading.Event()
        self.end = self._gate.set
        bench.registry.declare("test.blocks@1")(self._block)

    async def _block(self, _ctx: Context, _inputs: Any, _config: Any) -> None:
        self.begun.set()
        assert self._gate.wait(HANGS_SECONDS)


def tend(bench: Bench, seconds: float) -> None:
    """As the worker does by itself for so long."""
    for _ in range(int(seconds / TEND_SECONDS)):
        bench.clock.advance(TEND_SECONDS)
        bench.worker.tend()


@asynccontextmanager
async def stalled(bench: Bench) -> AsyncIterator[Blocking]:
    """Its run has begun, and the worker has seen that the loop is stalled. Before it, `e.2` has begun."""
    made, begun = Blocking(bench), Signal()

    async def waits(_ctx: Context, _inputs: Any, _config: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    bench.registry.declare("test.waits@1")(waits)
    bench.worker.take([a_job("test.waits@1", 2)])
    await begun.wait()
    bench.worker.take([a_job("test.blocks@1", 1)])
    await made.begun.wait()
    bench.worker.tend()
    tend(bench, STALLED_SECONDS)
    try:
        yield made
    finally:
        made.end()
        bench.worker.drop_all()


async def test_a_worker_whose_modules_are_stalled_says_so_and_takes_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[dict[str, Any]] = []
    monkeypatch.setattr(
        worker, "log", SimpleNamespace(error=lambda _text, **more: errors.append(more), warning=lambda _text: None)
    )
    async with stalled(bench) as blocking:
        assert [error["task"] for error in errors] == ["run e.1"]
        assert (bench.desk.capacity, bench.worker.can_work()) == (0, False)
        assert REGISTRY.get_sample_value("runner_module_loop_stalled_seconds") == STALLED_SECONDS
        blocking.end()
        await bench.desk.until(1)

        def can_work() -> bool:
            bench.worker.tend()
            return bench.worker.can_work()

        await until(can_work, HANGS_SECONDS, "the loop to answer")
        assert bench.desk.capacity > 0
        assert REGISTRY.get_sample_value("runner_module_loop_stalled_seconds") == 0


async def test_what_has_not_begun_in_a_stalled_loop_is_handed_back_and_the_rest_goes_on(bench: Bench) -> None:
    bench.registry.declare("test.plain@1")(lambda _ctx, _inputs, _config: 1)
    async with stalled(bench):
        bench.worker.take([a_job("delay@1", 3, config={"duration": "0s"}), a_job("test.plain@1", 4), a_job()])
        told = {ended.job.module: ended.outcome for ended in await bench.desk.until(3)}
    assert told == {
        "delay@1": Released("LOOP_STALLED", False),
        "test.plain@1": Succeeded(b"1"),
        "noop@1": Succeeded(b"null"),
    }


async def test_a_module_that_never_ends_its_block_fails_its_run_and_costs_the_others_nothing(bench: Bench) -> None:
    async with stalled(bench):
        assert not bench.worker.gave_up.is_set()
        tend(bench, STALLED_SECONDS_MAX)
        assert bench.worker.gave_up.is_set()
        told = {ended.job.run_id: ended.outcome for ended in bench.desk.ended}
    failure = told.pop("e.1")
    assert isinstance(failure, Failure)
    assert (failure.failure_class, failure.type) == (FailureClass.TRANSIENT, "LOOP_BLOCKED")
    assert told == {"e.2": Released("LOOP_STALLED", True)}


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_module_leaves_its_work_to_whoever_has_the_token(bench: Bench, is_async: bool) -> None:
    async def later(ctx: Context, _inputs: Any, _config: Any) -> Any:
        return ctx.defer()

    def plain(ctx: Context, _inputs: Any, _config: Any) -> Any:
        tokens.append(ctx.defer())
        return object()

    tokens: list[str] = []
    bench.registry.declare("test.later@1")(later if is_async else plain)
    outcome = await bench.outcome(a_job("test.later@1", completion_token="e.1.proof"))
    assert outcome == Deferred(), "what it returns is ignored"
    assert tokens == ([] if is_async else ["e.1.proof"])
    assert bench.desk.capacity > 0, "its place is free"


async def test_a_module_that_fails_after_it_has_deferred_its_work_has_failed(bench: Bench) -> None:
    async def later(ctx: Context, _inputs: Any, _config: Any) -> Any:
        ctx.defer()
        raise TransientError("the bank is closed")

    bench.registry.declare("test.later@1")(later)
    assert await bench.failure(a_job("test.later@1", completion_token="e.1.proof")) == (TRANSIENT, "TRANSIENT")


async def test_work_without_a_token_cannot_be_deferred(bench: Bench) -> None:
    async def later(ctx: Context, _inputs: Any, _config: Any) -> Any:
        return ctx.defer()

    bench.registry.declare("test.later@1")(later)
    assert await bench.failure(a_job("test.later@1")) == (PERMANENT, "CANNOT_DEFER")
