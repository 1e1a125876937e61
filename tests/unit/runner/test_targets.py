"""A run names what it calls. When the circuit of that is open, nothing is called and the run is handed back."""

from collections.abc import Iterator
from typing import Any

import pytest

from services.runner.core.egress import Egress
from services.runner.core.failures import Failure
from services.runner.core.job import Released, Succeeded
from services.runner.peers.translate import job_of, report_of
from tests.support.careless_server import careless_server
from tests.support.runner_bench import Bench, a_job
from windlass.coordinator.v1 import sessions_pb2 as pb
from windlass.sdk import CircuitOpenError, Context, PermanentError, TransientError


@pytest.fixture
def bench(tmp_path: Any) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


class Calls:
    """A module that names its targets, and what it has called."""

    def __init__(self, bench: Bench, *targets: str, ends_with: Exception | None = None) -> None:
        self.made: list[str] = []

        async def call(ctx: Context, _inputs: Any, _config: Any) -> None:
            for target in targets:
                ctx.target(target)
                self.made.append(target)
            if ends_with is not None:
                raise ends_with

        bench.registry.declare("crm.put@1")(call)


def handed_back() -> Released:
    return Released("CIRCUIT_OPEN", may_have_begun=False)


async def test_a_run_that_succeeds_says_what_it_called(bench: Bench) -> None:
    calls = Calls(bench, "crm")
    assert isinstance(await bench.outcome(a_job("crm.put@1")), Succeeded)
    assert (calls.made, bench.desk.ended[0].target) == (["crm"], "crm")


async def test_a_run_that_fails_says_what_it_called_last(bench: Bench) -> None:
    Calls(bench, "crm", "mail", ends_with=TransientError("down"))
    assert isinstance(await bench.outcome(a_job("crm.put@1")), Failure)
    assert bench.desk.ended[0].target == "mail"


async def test_a_run_without_a_target_names_none(bench: Bench) -> None:
    await bench.outcome(a_job())
    assert bench.desk.ended[0].target == ""
    assert not report_of(bench.desk.ended[0], "r").HasField("released")
    assert b"crm" not in report_of(bench.desk.ended[0], "r").SerializeToString()


async def test_an_open_target_is_not_called_and_the_run_is_handed_back(bench: Bench) -> None:
    calls = Calls(bench, "crm")
    assert await bench.outcome(a_job("crm.put@1", open_targets=["mail", "crm"])) == handed_back()
    assert calls.made == []
    report = report_of(bench.desk.ended[0], "r")
    assert (report.released.reason, report.target) == ("CIRCUIT_OPEN", "crm")


async def test_a_run_that_has_called_something_before_fails_and_is_not_handed_back(bench: Bench) -> None:
    calls = Calls(bench, "mail", "crm")
    outcome = await bench.outcome(a_job("crm.put@1", open_targets=["crm"]))
    assert isinstance(outcome, Failure)
    assert (calls.made, outcome.failure_class.value) == (["mail"], "CIRCUIT_OPEN")


async def test_an_open_circuit_that_the_module_found_itself_is_its_failure(bench: Bench) -> None:
    Calls(bench, "crm", ends_with=CircuitOpenError("mine"))
    outcome = await bench.outcome(a_job("crm.put@1"))
    assert isinstance(outcome, Failure)
    assert outcome.failure_class.value == "CIRCUIT_OPEN"


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_module_that_always_calls_the_same_declares_it(bench: Bench, is_async: bool) -> None:
    made: list[str] = []

    def plain(ctx: Context, _inputs: Any, _config: Any) -> None:
        made.append(ctx.called)

    async def awaited(ctx: Context, _inputs: Any, _config: Any) -> None:
        made.append(ctx.called)

    bench.registry.declare("crm.put@1", target="crm")(awaited if is_async else plain)
    assert await bench.outcome(a_job("crm.put@1", open_targets=["crm"])) == handed_back()
    assert isinstance(await bench.outcome(a_job("crm.put@1", open_targets=["mail"])), Succeeded)
    assert made == ["crm"]


async def test_a_short_module_that_declares_its_target_is_handed_back_too(bench: Bench) -> None:
    bench.registry.declare("crm.put@1", target="crm", inline=True)(lambda _ctx, _inputs, _config: None)
    assert await bench.outcome(a_job("crm.put@1", open_targets=["crm"])) == handed_back()


@pytest.mark.parametrize("target", ["", "a\nb", "t" * 256])
async def test_a_name_that_cannot_be_shown_is_refused(bench: Bench, target: str) -> None:
    Calls(bench, target)
    outcome = await bench.outcome(a_job("crm.put@1"))
    assert isinstance(outcome, Failure)
    assert (outcome.failure_class.value, outcome.type) == (PermanentError.class_name, "INVALID_TARGET")


async def test_an_output_that_cannot_be_kept_says_nothing_about_the_target(tmp_path: Any) -> None:
    async def call(ctx: Context, _inputs: Any, _config: Any) -> str:
        ctx.target("crm")
        return "x" * 300_000

    # Nothing can be kept below a file.
    (tmp_path / "file").write_text("")
    bench = Bench(tmp_path / "file")
    bench.registry.declare("crm.get@1")(call)
    outcome = await bench.outcome(a_job("crm.get@1"))
    assert isinstance(outcome, Failure)
    assert (outcome.type, bench.desk.ended[0].target) == ("OUTPUT_STORE", "")
    bench.close()


async def test_a_request_names_host_and_port_and_nothing_else(bench: Bench) -> None:
    async with careless_server() as port:
        for status in (200, 404, 503):
            url = f"http://canary:canary@127.0.0.1:{port}/{status}?canary=canary"
            await bench.outcome(a_job("http.request@1", config={"url": url}))
        assert [each.target for each in bench.desk.ended] == [f"127.0.0.1:{port}"] * 3
        url = f"http://127.0.0.1:{port}/200"
        job = a_job("http.request@1", config={"url": url}, open_targets=[f"127.0.0.1:{port}"])
        assert await bench.outcome(job) == handed_back()


@pytest.mark.parametrize("url", ["http://169.254.169.254/", "http://127.0.0.1:1/"])
async def test_a_request_that_was_not_sent_has_called_nothing(tmp_path: Any, url: str) -> None:
    bench = Bench(tmp_path, egress=Egress())
    assert isinstance(await bench.outcome(a_job("http.request@1", config={"url": url})), Failure)
    assert bench.desk.ended[0].target == ""
    bench.close()


def test_a_grant_names_the_targets_that_are_not_to_be_called() -> None:
    assert job_of(pb.RunGrant(open_targets=["crm", "mail"]), 0).open_targets == ("crm", "mail")
    assert job_of(pb.RunGrant(), 0).open_targets == ()
