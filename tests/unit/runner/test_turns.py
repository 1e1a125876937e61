"""Items and turns of loops at a runner: what their templates see, and the expression after a turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from services.runner.core.failures import FailureClass
from services.runner.core.job import StoredOutput, Succeeded
from tests.support.runner_bench import Bench, a_job


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def item(**given: Any) -> Any:
    inputs = {"is": "{{ item }}", "at": "{{ index }}"}
    return a_job("transform@1", inputs=orjson.dumps(inputs), has_templates=True, **given)


def turn(until: str, **given: Any) -> Any:
    inputs = {"n": "{{ index }}", "text": "abc"}
    return a_job("transform@1", inputs=orjson.dumps(inputs), has_templates=True, iteration=3, until=until, **given)


async def test_an_item_sees_itself_and_its_place_from_0(bench: Bench) -> None:
    outcome = await bench.outcome(item(iteration=4, item=b'{"id":7}'))
    assert orjson.loads(outcome.output) == {"is": {"id": 7}, "at": 3}


async def test_an_item_of_null_is_an_item(bench: Bench) -> None:
    outcome = await bench.outcome(item(iteration=1, item=b"null"))
    assert orjson.loads(outcome.output) == {"is": None, "at": 0}


async def test_a_plain_node_has_no_item(bench: Bench) -> None:
    assert await bench.failure(item()) == (FailureClass.PERMANENT, "TEMPLATE_ERROR")


async def test_a_large_item_is_rendered_in_a_child(bench: Bench) -> None:
    text = "x" * 250_000
    job = a_job(
        "transform@1",
        inputs=orjson.dumps({"is": "{{ item ~ item ~ item ~ item ~ item }}"}),
        has_templates=True,
        iteration=1,
        item=orjson.dumps(text),
    )
    outcome = await bench.outcome(job)
    assert isinstance(outcome.output, StoredOutput)
    assert outcome.output.size_bytes == 5 * len(text) + len('{"is":""}')


@pytest.mark.parametrize(
    ("until", "branch"),
    [
        ("output.n == 2", "true"),
        ("{{ output.n == 1 }}", "false"),
        ("output.n == index and input.id == 7", "true"),
        ("output.text", "true"),
        # These could grow, so a child evaluates them.
        ("output.n * 2 == 4", "true"),
        ("output.text|replace('b', '') == 'abc'", "false"),
    ],
)
async def test_the_branch_of_a_turn_is_the_truth_of_its_until(bench: Bench, until: str, branch: str) -> None:
    outcome = await bench.outcome(turn(until))
    assert (orjson.loads(outcome.output), outcome.branch) == ({"n": 2, "text": "abc"}, branch)


@pytest.mark.parametrize("until", ["output.missing.deeper", "output.n * missing", "output.n +"])
async def test_an_until_that_cannot_be_evaluated_fails_the_turn(bench: Bench, until: str) -> None:
    assert await bench.failure(turn(until)) == (FailureClass.PERMANENT, "TEMPLATE_ERROR")


async def test_a_turn_that_fails_is_not_asked(bench: Bench) -> None:
    job = a_job("fail@1", config=b'{"type":"PERMANENT"}', iteration=1, until="output.missing")
    assert await bench.failure(job) == (FailureClass.PERMANENT, "PERMANENT")


async def test_a_large_output_of_a_turn_is_asked_before_it_is_stored(bench: Bench) -> None:
    job = a_job(
        "transform@1",
        inputs=orjson.dumps({"text": "{{ input.text ~ input.text }}"}),
        has_templates=True,
        execution_input=orjson.dumps({"text": "x" * 200_000}),
        iteration=1,
        until="output.text|length == 400000",
    )
    outcome = await bench.outcome(job)
    assert isinstance(outcome, Succeeded)
    assert (isinstance(outcome.output, StoredOutput), outcome.branch) == (True, "true")
