"""Jaeger shows the same tree. It is a real Jaeger 2 in memory, and is asked by its HTTP query API, as its page does."""

import asyncio
import contextlib
import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deploy.local.launch import launcher
from tests.support.api import Client
from tests.support.go import jaeger
from tests.support.otlp import EVERY_HOP, ONE_STEP_TREE
from tests.support.postgres import free_port
from tests.support.probe import eventually
from tests.support.stack import Stack, running_stack

# The first run builds it.
pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]

READY_SECONDS = 60.0
SERVICES = {"api", "dispatcher", "coordinator", "runner"}
CONFIGURATION = """
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines:
    traces: {receivers: [otlp], exporters: [jaeger_storage_exporter]}
  telemetry:
    metrics: {level: none}
    logs: {level: warn}
extensions:
  jaeger_query:
    storage: {traces: memory}
    http: {endpoint: "127.0.0.1:%(query)d"}
    grpc: {endpoint: "127.0.0.1:%(query_grpc)d"}
  jaeger_storage:
    backends:
      memory: {memory: {max_traces: 1000}}
receivers:
  otlp:
    protocols:
      grpc: {endpoint: "127.0.0.1:%(otlp)d"}
exporters:
  jaeger_storage_exporter: {trace_storage: memory}
"""


@dataclass
class Jaeger:
    otlp: int
    query: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.otlp}"

    async def ask(self, path: str) -> Any:
        """The answer; None while there is none, or its status is not 200."""

        def fetch() -> Any:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{self.query}{path}", timeout=5) as answer,
            ):
                return json.load(answer)["data"] or []

        return await asyncio.to_thread(fetch)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def collector(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Jaeger]:
    program = await asyncio.to_thread(jaeger)
    place: Path = tmp_path_factory.mktemp("jaeger")
    made = Jaeger(otlp=free_port(), query=free_port())
    configuration = place / "jaeger.yaml"
    configuration.write_text(CONFIGURATION % {**vars(made), "query_grpc": free_port()})
    with (place / "jaeger.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *launcher("SIGTERM"),
            *(str(program), "--config", str(configuration)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:

        async def answers() -> bool:
            assert process.returncode is None, (place / "jaeger.log").read_text()
            return await made.ask("/api/services") is not None

        await eventually(answers, READY_SECONDS, "Jaeger to answer")
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack(collector: Jaeger) -> AsyncIterator[Stack]:
    async with running_stack(otlp_endpoint=collector.endpoint) as made:
        yield made


async def test_jaeger_shows_an_execution_as_one_tree_and_finds_it_by_its_id(stack: Stack, collector: Jaeger) -> None:
    client = Client(stack)
    await client.apply("shown", [{"id": "only", "module": "noop@1"}])
    execution = await client.run("shown")

    async def whole() -> dict[str, Any] | None:
        found = await collector.ask(f"/api/traces/{execution.trace_id}")
        return found[0] if found and len(found[0]["spans"]) >= len(EVERY_HOP) else None

    trace: dict[str, Any] = await eventually(whole, 30, "the whole trace in Jaeger")
    names = {span["spanID"]: span["operationName"] for span in trace["spans"]}
    links = set()
    for span in trace["spans"]:
        parents = [names[each["spanID"]] for each in span["references"] if each["refType"] == "CHILD_OF"]
        links.add(" < ".join([span["operationName"], *parents]))
    assert sorted(links) == ONE_STEP_TREE
    assert {process["serviceName"] for process in trace["processes"].values()} == SERVICES
    (execute,) = (span for span in trace["spans"] if span["operationName"] == "run.execute")
    assert ("execution.id", execution.id) in [(tag["key"], tag["value"]) for tag in execute["tags"]]
    # This is the way back from an id in a log or a ticket to the trace.
    tags = urllib.parse.quote(json.dumps({"execution.id": execution.id}))

    async def found() -> list[Any]:
        return await collector.ask(f"/api/traces?service=api&tags={tags}") or []

    (same,) = await eventually(found, 30, "the trace by its tag")
    assert same["traceID"] == execution.trace_id
    assert {*(await collector.ask("/api/services"))} >= SERVICES
