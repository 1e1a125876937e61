"""Each run is reported, whatever its attempt does: no exception leaves the worker, and no run stays unreported."""

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from services.runner.app import worker
from services.runner.core.failures import Failure, FailureClass
from services.runner.core.job import Ended, StoredOutput, Succeeded
from services.runner.peers.translate import progress_of, report_of
from tests.support.probe import some
from tests.support.runner_bench import HANGS_SECONDS, Bench, Desk, Signal, a_job
from windlass.sdk import Branch, Context, ModuleError, PermanentError, TransientError


class WireDesk(Desk):
    """Encodes each report as it would be sent."""

    def report(self, ended: Ended) -> None:
        report_of(ended, "1").SerializeToString()
        super().report(ended)


@pytest.fixture
def bench(tmp_path: Any) -> Iterator[Bench]:
    made = Bench(tmp_path, desk=WireDesk())
    yield made
    made.close()


class Homemade(ModuleError):
    """Its author does not call our `__init__`."""

    class_name = "WHATEVER"

    def __init__(self) -> None:
        Exception.__init__(self, "homemade")


@pytest.mark.parametrize(
    ("error", "failure_class", "kind"),
    [
        (asyncio.CancelledError(), FailureClass.TRANSIENT, "CancelledError"),
        (SystemExit(3), FailureClass.TRANSIENT, "SystemExit"),
        (ValueError("bad file \udcff"), FailureClass.PERMANENT, "ValueError"),
        (PermanentError("x", type=404), FailureClass.PERMANENT, "404"),  # type: ignore[arg-type]
        (TransientError("x", retry_after="30"), FailureClass.TRANSIENT, "TRANSIENT"),  # type: ignore[arg-type]
        (TransientError("x", retry_after=float("inf")), FailureClass.TRANSIENT, "TRANSIENT"),
        (Homemade(), FailureClass.TRANSIENT, "TRANSIENT"),
    ],
)
@pytest.mark.parametrize("way", ["async", "thread", "inline"])
async def test_whatever_a_module_raises_is_reported(
    bench: Bench, error: BaseException, failure_class: FailureClass, kind: str, way: str
) -> None:
    def raising(_ctx: Context, _inputs: Any, _config: Any) -> None:
        raise error

    async def raising_async(_ctx: Context, _inputs: Any, _config: Any) -> None:
        raise error

    bench.registry.declare("test.raises@1", inline=way == "inline")(raising_async if way == "async" else raising)
    assert await bench.failure(a_job("test.raises@1")) == (failure_class, kind)
    assert bench.worker.going == 0


async def test_a_module_that_cancels_its_own_task_is_reported(bench: Bench) -> None:
    async def suicidal(_ctx: Context, _inputs: Any, _config: Any) -> None:
        task = some(asyncio.current_task())
        task.cancel()
        await asyncio.sleep(0)

    bench.registry.declare("test.suicidal@1")(suicidal)
    assert isinstance(await bench.outcome(a_job("test.suicidal@1")), Failure)


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "returned", [float("nan"), {"a": [float("inf"), None]}, {1: 2}, object(), "\ud800", 2**70, deep(31), deep(2_000)]
)
async def test_what_is_not_json_is_a_permanent_failure(bench: Bench, returned: Any) -> None:
    bench.registry.declare("test.bad@1", inline=True)(lambda _ctx, _inputs, _config: returned)
    assert await bench.failure(a_job("test.bad@1")) == (FailureClass.PERMANENT, "OUTPUT_NOT_JSON")


async def test_what_is_as_deep_as_may_be_is_an_output(bench: Bench) -> None:
    bench.registry.declare("test.deep@1", inline=True)(lambda _ctx, _inputs, _config: deep(30))
    assert await bench.outcome(a_job("test.deep@1")) == Succeeded(orjson.dumps(deep(30)))


@pytest.mark.parametrize("label", [5, None, "x" * 256, "\ud800"])
async def test_a_branch_that_is_no_label_is_a_permanent_failure(bench: Bench, label: Any) -> None:
    bench.registry.declare("test.branch@1", inline=True)(lambda _ctx, _inputs, _config: Branch(label))
    assert await bench.failure(a_job("test.branch@1")) == (FailureClass.PERMANENT, "INVALID_BRANCH")


@pytest.mark.parametrize(
    "template", ["{{ 2 ** 70 }}", "{{ {1: 2} }}", "{{ 1e308 * 10 }}", "{{ 99999999999 * 99999999999 }}"]
)
@pytest.mark.parametrize("module", ["transform@1", "delay@1"])
async def test_a_template_that_becomes_no_json_fails_its_node(bench: Bench, template: str, module: str) -> None:
    job = a_job(module, config={"duration": 0}, inputs={"a": template}, has_templates=True)
    assert await bench.failure(job) == (FailureClass.PERMANENT, "TEMPLATE_ERROR")


async def test_an_output_that_is_gone_fails_the_attempt(bench: Bench) -> None:
    gone = StoredOutput("ab" * 16 + "/2026-08-00/" + "0" * 64 + ".json", "0" * 64, 3, a_job().lease)
    job = a_job("transform@1", inputs={"a": "{{ nodes.x.output }}"}, has_templates=True, outputs={"x": gone})
    assert await bench.failure(job) == (FailureClass.TRANSIENT, "OUTPUT_MISSING")


@pytest.mark.parametrize("module", ["transform@1", "delay@1"])
@pytest.mark.parametrize(
    "broken", [{"inputs": b"{nope"}, {"cursor": b"{nope"}, {"config": b"[]", "has_templates": True}]
)
async def test_a_grant_that_cannot_be_read_fails_its_attempt(bench: Bench, module: str, broken: dict[str, Any]) -> None:
    assert await bench.failure(a_job(module, **broken)) == (FailureClass.TRANSIENT, "INTERNAL")


async def test_a_cost_that_is_no_number_costs_nothing(bench: Bench) -> None:
    async def costly(ctx: Context, _inputs: Any, _config: Any) -> None:
        ctx.cost_tokens = object()  # type: ignore[assignment]

    bench.registry.declare("test.costly@1")(costly)
    assert await bench.outcome(a_job("test.costly@1")) == Succeeded(b"null")
    assert bench.desk.ended[0].cost_tokens == 0


async def test_an_outcome_that_cannot_be_written_is_reported_as_a_failure(tmp_path: Any) -> None:
    class Choosy(Desk):
        def report(self, ended: Ended) -> None:
            if isinstance(ended.outcome, Succeeded):
                raise TypeError("this cannot be written")
            super().report(ended)

    outcome = await Bench(tmp_path, desk=Choosy()).outcome(a_job())
    assert isinstance(outcome, Failure)
    assert outcome.type == "INTERNAL"


@pytest.mark.parametrize("cursor", [{"s": {1, 2}}, float("nan"), "x" * 70_000, "\ud800"])
async def test_a_cursor_that_cannot_be_kept_is_the_modules_error(bench: Bench, cursor: Any) -> None:
    async def telling(ctx: Context, _inputs: Any, _config: Any) -> str:
        await ctx.heartbeat(0.1, "first", cursor={"page": 1})
        try:
            await ctx.heartbeat(0.2, "second", cursor=cursor)
        except PermanentError as error:
            told.extend(bench.worker.news("c1"))
            return error.type
        return ""

    told: list[Any] = []
    bench.registry.declare("test.telling@1")(telling)
    outcome = await bench.outcome(a_job("test.telling@1"))
    kind = "CURSOR_TOO_LARGE" if cursor == "x" * 70_000 else "CURSOR_NOT_JSON"
    assert outcome == Succeeded(orjson.dumps(kind))
    assert [(news.message, news.cursor) for news in told] == [("first", b'{"page":1}')]


async def test_news_can_always_be_sent(bench: Bench) -> None:
    async def babbling(ctx: Context, _inputs: Any, _config: Any) -> None:
        await ctx.heartbeat(float("nan"), "a\0b\udcff" + "x" * 5_000)
        told.extend(bench.worker.news("c1"))

    told: list[Any] = []
    bench.registry.declare("test.babbling@1")(babbling)
    await bench.outcome(a_job("test.babbling@1"))
    progress = progress_of(told[0])
    assert (progress.fraction, progress.message[:4]) == (0.0, "a\N{REPLACEMENT CHARACTER}b?")
    assert len(progress.message) == 1_024


async def test_a_hung_plain_function_costs_its_place_and_no_other(tmp_path: Any) -> None:
    bench = Bench(tmp_path, concurrency=2)
    gate = threading.Event()

    def hangs(_ctx: Context, _inputs: Any, _config: Any) -> None:
        gate.wait()

    bench.registry.declare("test.hangs@1")(hangs)
    bench.registry.declare("test.works@1")(lambda _ctx, _inputs, _config: 1)
    outcome = await bench.outcome(a_job("test.hangs@1", timeout_seconds=0.01))
    assert isinstance(outcome, Failure)
    bench.clock.advance(1.0)
    bench.worker.tend()
    assert bench.desk.capacity == 1
    for number in range(2, 6):
        bench.worker.take([a_job("test.works@1", number)])
    assert [each.outcome for each in (await bench.desk.until(5))[1:]] == [Succeeded(b"1")] * 4
    big = {"text": "x" * 300_000}
    bench.worker.take([a_job("transform@1", 6, inputs=big)])
    assert isinstance((await bench.desk.until(6))[-1].outcome, Succeeded)
    gate.set()
    while bench.desk.capacity != 2:
        await asyncio.sleep(0)
        bench.clock.advance(1.0)
        bench.worker.tend()


async def test_runner_whose_every_place_is_hung_says_that_it_cannot_work(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, concurrency=2)
    errors: list[str] = []
    monkeypatch.setattr(worker, "log", SimpleNamespace(error=lambda text, **_: errors.append(text)))
    gate = threading.Event()
    bench.registry.declare("test.hangs@1")(lambda _ctx, _inputs, _config: gate.wait())
    for number, can_work in ((1, True), (2, False)):
        bench.worker.take([a_job("test.hangs@1", number, timeout_seconds=0.01)])
        await bench.desk.until(number)
        bench.worker.tend()
        assert bench.worker.can_work() is can_work
    bench.worker.tend()
    assert errors == ["plain functions that do not return hold every place"]
    gate.set()
    async with asyncio.timeout(HANGS_SECONDS):
        while not bench.worker.can_work():
            await asyncio.sleep(0)
            bench.worker.tend()


async def test_as_many_plain_functions_run_at_once_as_there_are_places(tmp_path: Any) -> None:
    places = 40
    bench = Bench(tmp_path, concurrency=places)
    together = threading.Barrier(places)
    bench.registry.declare("test.meets@1")(lambda _ctx, _inputs, _config: together.wait(10) >= 0)
    bench.worker.take([a_job("test.meets@1", number) for number in range(places)])
    ended = await bench.desk.until(places)
    assert {each.outcome for each in ended} == {Succeeded(b"true")}


async def test_a_run_whose_module_ignores_its_end_gives_no_outcome(bench: Bench) -> None:
    begun, over = Signal(), Signal()

    async def deaf(_ctx: Context, _inputs: Any, _config: Any) -> int:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            over.set()
        return 1

    bench.registry.declare("test.deaf@1")(deaf)
    bench.worker.take([a_job("test.deaf@1")])
    await begun.wait()
    bench.worker.drop(["e.1"])
    await over.wait()
    # By the end of two later runs, everything would be said of the earlier one.
    for number in (2, 3):
        assert await bench.outcome(a_job("delay@1", number, config={"duration": "0s"})) == Succeeded(b"null")
    assert ([each.job.run_id for each in bench.desk.ended], bench.worker.going) == (["e.2", "e.3"], 0)
