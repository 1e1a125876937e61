"""Secrets in the addresses and headers of requests are in the definition, and nowhere else, however the requests fail.

What a workflow is given as input, and what a server answers to a request that succeeds, is data and is stored.
"""

import asyncio
import base64
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import grpc
import psycopg
import pytest
import pytest_asyncio
from google.protobuf import json_format
from psycopg import sql

from tests.support.api import Client
from tests.support.careless_server import careless_server
from tests.support.command_line import windlass
from tests.support.otlp import EVERY_HOP, Collector, collector
from tests.support.postgres import free_port
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import executions_pb2, resources_pb2, workflows_pb2

CANARY = "canary"
# Its requests fail on purpose, more often than a circuit would let them.
NO_CIRCUIT = "coordinator:WINDLASS_CIRCUIT_OUTCOMES_MIN=100000"
# Only these tables hold definitions, which are what their author wrote.
DEFINITIONS = {("api", "workflow_versions")}
# Written by somebody who would like to command the terminal of whoever looks.
COMMANDS = "\x1b[2J\x9b31m\u202e\nstate      SUCCESS"
SECRETS = {
    "headers": {"X-Api-Key": "canary-header", "X-Session": "Token canary-token"},
    "query": {"key": "canary=query", "next": "canary/é"},
    "timeout": "1s",
}
FAILING = {
    "refused": "http://USER@127.0.0.1:PORT/403?sig=canary-sig",
    "told": "http://USER@127.0.0.1:PORT/404?sig=canary-sig&as=json",
    "failed": "http://USER@127.0.0.1:PORT/503?sig=canary-sig",
    "hangs": "http://USER@127.0.0.1:PORT/odd/hangs?sig=canary-sig",
    "closes": "http://USER@127.0.0.1:PORT/odd/closes?sig=canary-sig",
    "circles": "http://USER@127.0.0.1:PORT/odd/circles?sig=canary-sig",
    "cookies": "http://USER@127.0.0.1:PORT/odd/cookies?sig=canary-sig",
    "nobody": "http://USER@127.0.0.1:FREE/?sig=canary-sig",
    "no_tls": "https://USER@127.0.0.1:PORT/?sig=canary-sig",
    "denied": "http://USER@127.0.0.2:PORT/?sig=canary-sig",
    "malformed": "http://USER@127.0.0.1:canary/?sig=canary-sig",
}
# Their templates are rendered, and what becomes of them is kept when they fail for good.
TEMPLATED = "http://USER@127.0.0.1:PORT/403?sig=canary-sig&for={{ execution.id }}"
WITH_TEMPLATES = {"templated", "each"}


class Told(NamedTuple):
    """A stack on which every request has failed, and what its api said of that."""

    stack: Stack
    spans: Collector
    execution: resources_pb2.Execution
    said: list[Any]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def told() -> AsyncIterator[Told]:
    async with (
        collector() as spans,
        careless_server() as port,
        running_stack(otlp_endpoint=spans.endpoint, allow_net=["127.0.0.1"], extra_env=[NO_CIRCUIT]) as stack,
    ):
        yield await telling(stack, spans, port)


async def fails_with_secrets(client: Client, port: int) -> resources_pb2.Execution:
    """An execution in which every request has failed."""
    free = str(free_port())

    def request(url: str) -> dict[str, Any]:
        url = url.replace("USER", "canary-user:canary-word").replace("PORT", str(port)).replace("FREE", free)
        return {"module": "http.request@1", "config": {"url": url, **SECRETS}}

    nodes: list[dict[str, Any]] = [{"id": id, **request(url)} for id, url in FAILING.items()]
    nodes.append({"id": "templated", **request(TEMPLATED), "inputs": {"of": "{{ execution.id }}"}})
    each = {"items": "{{ [execution.id] }}", "body": request(TEMPLATED)}
    nodes.append({"id": "each", "module": "for_each@1", "config": each})
    nodes.append({"id": "commands", "module": "fail@1", "config": {"type": "PERMANENT", "message": COMMANDS}})
    await client.apply("careless", nodes, retry={"attempts": 2, "initialDelay": "10ms"})
    return await client.run("careless")


async def telling(stack: Stack, spans: Collector, port: int) -> Told:
    client = Client(stack)
    execution = await fails_with_secrets(client, port)
    events = executions_pb2.ListEventsRequest(execution_id=execution.id, page_size=1_000)
    said = [
        await client.get(execution.id),
        *await client.runs_of(execution.id),
        await client.call(client.executions.ListEvents, events),
        await refusal(client),
    ]
    await spans.trace(execution.trace_id, names=[*EVERY_HOP, "http GET", "run.backoff"])
    return Told(stack, spans, execution, said)


async def refusal(client: Client) -> Any:
    """What is said of a definition that is not accepted."""
    config = {"url": "htp://canary:canary@host/?canary", "headers": {"X-Api-Key": ["canary"]}, "query": "canary"}
    request = workflows_pb2.ApplyWorkflowRequest()
    json_format.ParseDict(
        {"name": "no", "nodes": [{"id": "a", "module": "http.request@1", "config": config}]}, request.definition
    )
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.call(client.workflows.ApplyWorkflow, request)
    return refused.value.details(), refused.value.trailing_metadata()


def test_every_request_has_failed_and_the_host_is_named(told: Told) -> None:
    assert told.execution.state == resources_pb2.Execution.FAILED
    errors = {run.node: f"{run.error.type}: {run.error.message}" for run in failed_runs(told)}
    assert errors.keys() == FAILING.keys() | WITH_TEMPLATES | {"commands"}
    named = (FAILING.keys() | WITH_TEMPLATES) - {"malformed"}
    assert {node for node, error in errors.items() if "127.0.0." in error} == named
    assert errors["refused"].startswith("HTTP_403: 127.0.0.1 answered HTTP 403: GET /403?sig=[withheld]")
    assert "--allow-net" in errors["denied"]


def failed_runs(told: Told) -> list[resources_pb2.Run]:
    return [each for each in told.said if isinstance(each, resources_pb2.Run) and each.error.type]


async def test_what_was_rendered_is_kept_without_them(told: Told) -> None:
    find = "SELECT convert_from(rendered, 'UTF8') FROM coordinator.dead_letters WHERE node = 'templated'"
    ((rendered,),) = await told.stack.rows(find)
    config = json.loads(rendered)["config"]
    assert config["headers"] == dict.fromkeys(SECRETS["headers"], "[withheld]")
    assert config["query"] == dict.fromkeys(SECRETS["query"], "[withheld]")
    assert config["url"].endswith("/403?[withheld]")
    assert json.loads(rendered)["inputs"] == {"of": told.execution.id}


def test_no_answer_of_the_api_tells_them(told: Told) -> None:
    for each in told.said:
        assert CANARY not in str(each)


async def test_no_row_holds_them(told: Told) -> None:
    """In any schema, the journal included."""
    held, seen = set(), b""
    async for table, row in rows_of(told.stack):
        seen += row
        if CANARY.encode() in row:
            held.add(table)
    assert held == DEFINITIONS
    assert b"answered HTTP 403" in seen


async def rows_of(stack: Stack) -> AsyncIterator[tuple[tuple[str, str], bytes]]:
    found = await stack.rows(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE'"
        " AND table_schema NOT IN ('pg_catalog', 'information_schema')"
    )
    assert len(found) > 15
    async with await psycopg.AsyncConnection.connect(stack.superuser_url()) as connection:
        for table in found:
            async for row in connection.cursor().stream(sql.SQL("SELECT * FROM {}").format(sql.Identifier(*table))):
                yield table, b" ".join(value if isinstance(value, bytes) else str(value).encode() for value in row)


def test_no_log_holds_them_or_a_control_character(told: Told) -> None:
    logs = {path.name: path.read_text() for path in told.stack.home.root.rglob("*.log")}
    assert len(logs) >= 4
    for name, log in {**logs, "up": told.stack.output.read_text()}.items():
        assert CANARY not in log, name
        for line in log.split("\n"):
            assert line.replace("\t", " ").isprintable(), (name, line)


async def test_no_span_or_metric_holds_them(told: Told) -> None:
    assert any("answered HTTP 403" in span.error for span in told.spans.spans)
    for span in told.spans.spans:
        assert CANARY not in repr(span)
    for service in ("api", "dispatcher", "coordinator", "runner"):
        page = await told.stack.metrics(service)
        assert "python_info" in page or service in page
        assert CANARY not in page


def said_by_commands(told: Told) -> Iterator[subprocess.CompletedProcess[str]]:
    home, id = told.stack.options.home, told.execution.id
    (templated,) = (run.id for run in failed_runs(told) if run.node == "templated")
    for command in (
        ["get", id],
        ["runs", id],
        ["events", id],
        ["watch", id],
        ["list"],
        ["explain", id],
        ["dead-letters", "list"],
        ["dead-letters", "groups"],
        ["dead-letters", "get", templated],
        ["start", "careless", "--wait"],
    ):
        for form in ([], ["--json"]):
            yield windlass(*command, *form, "--home", home)


async def test_no_command_tells_them_or_lets_others_command_the_terminal(told: Told) -> None:
    def look() -> list[subprocess.CompletedProcess[str]]:
        return list(said_by_commands(told))

    outputs = await asyncio.to_thread(look)
    for output in outputs:
        shown = output.stdout + output.stderr
        assert CANARY not in shown, output.args
        assert all(line.isprintable() for line in shown.split("\n")), output.args
        assert "Traceback" not in shown
    got, got_json = outputs[:2]
    assert r"\x1b[2J" in outputs[2].stdout
    assert "\nstate      SUCCESS" not in got.stdout
    assert json.loads(got_json.stdout)["id"] == told.execution.id


def readable(value: Any) -> str:
    """What is said in a part of an export. Bytes that are no printable text are in it as Base64."""
    if isinstance(value, dict | list):
        return " ".join(map(readable, value.values() if isinstance(value, dict) else value))
    if isinstance(value, str) and value.startswith("base64:"):
        return base64.b64decode(value.removeprefix("base64:")).decode("utf-8", "replace")
    return str(value)


async def test_an_export_holds_them_in_its_definition_alone(told: Told) -> None:
    export = await asyncio.to_thread(windlass, "export", told.execution.id, "--home", told.stack.options.home)
    parts = [json.loads(line) for line in export.stdout.splitlines()]
    assert len(parts) > 2
    assert CANARY in readable(parts[0]["header"].pop("definition"))
    assert all(CANARY not in readable(part) for part in parts)


async def test_what_a_run_worked_on_is_shown_as_whole_as_its_definition(told: Told) -> None:
    """Both are for those who may read the workspace. Nothing is stored for it."""
    (run,) = (each.id for each in failed_runs(told) if each.node == "templated")
    shown = await asyncio.to_thread(windlass, "inputs", run, "--home", told.stack.options.home)
    assert json.loads(shown.stdout)["config"]["headers"] == SECRETS["headers"]
