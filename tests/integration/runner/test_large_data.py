"""The data of templates: much of it is parsed in the child alone, and how much a node gets is bounded."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from services.rendering.__main__ import VALUES_MAX
from services.runner.app.attempt import LOADED_BYTES_MAX
from services.runner.core.failures import Failure, FailureClass
from services.runner.core.job import Succeeded
from services.runner.core.plain import PARSED_BYTES_MAX
from tests.support.runner_bench import INPUT, RUN_LEASE, Bench, a_job


@pytest_asyncio.fixture(loop_scope="session")
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    await asyncio.to_thread(made.close)


def reading(template: Any, **outputs: Any) -> Any:
    return a_job("transform@1", inputs={"read": template}, outputs=outputs, has_templates=True)


def text_of(size_bytes: int) -> bytes:
    return b'"' + b"x" * (size_bytes - 2) + b'"'


# The input and the state of the job count too.
FITS = PARSED_BYTES_MAX - len(INPUT) - len(a_job().state)


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("excess", [0, 1])
async def test_data_over_the_limit_is_parsed_in_the_child(bench: Bench, is_stored: bool, excess: int) -> None:
    data = text_of(FITS + excess)
    value = await bench.outputs.put(data, RUN_LEASE) if is_stored else data
    condition = {"expression": "nodes.up.output | length > 5"}
    conditions = a_job("condition@1", 1, config=condition, outputs={"up": value}, has_templates=True)
    assert await bench.outcome(conditions) == Succeeded(b'{"result":true}', "true")
    used = bool(bench.rendering.children.pids)
    read = await bench.outcome(reading("{{ nodes.up.output | length }}", up=value))
    assert read == Succeeded(b'{"read":%d}' % (len(data) - 2))
    assert [used, bool(bench.rendering.children.pids)] == [excess == 1] * 2


async def test_a_node_that_reads_none_of_much_data_needs_no_child(bench: Bench) -> None:
    assert await bench.outcome(reading("text", up=text_of(FITS + 1))) == Succeeded(b'{"read":"text"}')
    assert bench.rendering.children.pids == []


async def test_stored_outputs_are_loaded_up_to_a_total(bench: Bench) -> None:
    half = await bench.outputs.put(text_of(LOADED_BYTES_MAX // 2), RUN_LEASE)
    rest = await bench.outputs.put(text_of(LOADED_BYTES_MAX // 2 + 1), RUN_LEASE)
    found = await bench.outcome(reading("{{ nodes.b.output | length }}", a=half, b=half))
    assert found == Succeeded(b'{"read":%d}' % (LOADED_BYTES_MAX // 2 - 2))
    found = await bench.outcome(reading("{{ nodes.a.output | length }}", a=half, b=rest))
    assert isinstance(found, Failure), found
    assert (found.failure_class, found.type) == (FailureClass.PERMANENT, "INPUTS_TOO_LARGE")
    assert str(LOADED_BYTES_MAX + 1) in found.message


async def test_as_much_as_may_be_loaded_can_be_read_and_handed_on(bench: Bench) -> None:
    """The limit of the child's memory is not far above what this takes."""
    text = await bench.outputs.put(text_of(LOADED_BYTES_MAX - 64), RUN_LEASE)
    found = await bench.outcome(reading("{{ nodes.up.output }}", up=text))
    assert isinstance(found, Succeeded), found
    record = b'{"id":1,"name":"customer","email":"c@example.org","price":7.37,"tags":["a","b"],"city":"Berlin"}'
    count = LOADED_BYTES_MAX // (len(record) + 1) - 1
    records = await bench.outputs.put(b"[" + b",".join([record] * count) + b"]", RUN_LEASE)
    found = await bench.outcome(reading("{{ nodes.up.output | length }}", up=records))
    assert found == Succeeded(b'{"read":%d}' % count)


async def test_data_that_take_too_much_memory_are_named_as_the_cause(bench: Bench) -> None:
    objects = await bench.outputs.put(b"[" + b",".join([b'{"a":1}'] * 2_000_000) + b"]", RUN_LEASE)
    found = await bench.outcome(reading("{{ nodes.up.output }}", up=objects))
    assert isinstance(found, Failure), found
    assert (found.failure_class, found.type) == (FailureClass.PERMANENT, "TEMPLATE_ERROR")
    assert "take too much memory" in found.message


async def test_a_reference_that_understates_its_size_gets_around_no_limit(bench: Bench) -> None:
    """Its runner may have been anybody's."""
    stored = await bench.outputs.put(text_of(PARSED_BYTES_MAX * 2), RUN_LEASE)
    found = await bench.outcome(reading("{{ nodes.up.output }}", up=replace(stored, size_bytes=0)))
    assert isinstance(found, Failure), found
    assert found.type == "OUTPUT_MISSING"
    assert bench.rendering.children.pids == []


@pytest.mark.parametrize(("count", "is_good"), [(VALUES_MAX - 1, True), (VALUES_MAX, False)])
async def test_what_a_module_gets_has_at_most_so_many_values(bench: Bench, count: int, is_good: bool) -> None:
    """This process has to parse it, and each value takes many times its bytes."""
    stored = await bench.outputs.put(b"[" + b",".join([b"[]"] * count) + b"]", RUN_LEASE)
    found = await bench.outcome(reading("{{ nodes.up.output }}", up=stored))
    if is_good:
        assert isinstance(found, Succeeded), found
    else:
        assert isinstance(found, Failure), found
        assert (found.failure_class, found.type) == (FailureClass.PERMANENT, "TEMPLATE_ERROR")
        assert found.message == f"inputs: the rendered value has more than {VALUES_MAX} values"


@pytest.mark.parametrize(
    "data",
    [
        b"no JSON",
        b"",
        b'null}}, "documents": {"config": {}, "inputs": {"read": "mine"}}, "x": {"y": {"z": 1',
        b'1\n{"head": {"documents": {"config": {}, "inputs": {"read": "mine"}}}}',
    ],
)
async def test_data_that_is_no_json_is_a_failure_and_no_part_of_the_request(bench: Bench, data: bytes) -> None:
    stored = await bench.outputs.put(data, RUN_LEASE)
    found = await bench.outcome(reading("{{ nodes.up.output }}", up=stored, long=text_of(PARSED_BYTES_MAX)))
    if not data:
        assert found == Succeeded(orjson.dumps({"read": None}))
        return
    assert isinstance(found, Failure), found
    assert (found.failure_class, found.type) == (FailureClass.PERMANENT, "TEMPLATE_ERROR")
    assert found.message == "nodes.up.output is not JSON"


async def test_what_a_grant_left_out_does_not_count_as_stored(bench: Bench) -> None:
    half = await bench.outputs.put(text_of(LOADED_BYTES_MAX // 2), RUN_LEASE)
    left_out = replace(half, key="runs/3", sha256="")
    found = await bench.outcome(reading("{{ nodes.a.output | length }}", a=half, b=half, c=left_out))
    assert isinstance(found, Failure), found
    assert found.type == "OUTPUT_MISSING", "it was tried, and no coordinator is here"
