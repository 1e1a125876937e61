"""Answers that come in pieces, from an api of this test: where they are written, and how they go on after a loss."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.command_line import running_home, windlass
from windlass.api.v1 import executions_pb2, resources_pb2, runs_pb2

OUTPUT = b'{"paid": true}'
Serving = Callable[[str, str, Callable[..., Iterator[Any]]], str]


@pytest.fixture
def serving() -> Iterator[Serving]:
    """Serves one method that answers with a stream, and returns the address."""
    servers: list[grpc.Server] = []

    def serve(service: str, method: str, answers: Callable[..., Iterator[Any]]) -> str:
        server = grpc.server(ThreadPoolExecutor(1))
        request_type = getattr(executions_pb2 if service == "ExecutionService" else runs_pb2, f"{method}Request")
        handler: Any = grpc.unary_stream_rpc_method_handler(
            answers,
            request_deserializer=request_type.FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(f"windlass.api.v1.{service}", {method: handler})]
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield serve
    for server in servers:
        server.stop(grace=None).wait()


def outputs(_request: Any, _context: Any) -> Iterator[Any]:
    yield runs_pb2.GetRunOutputResponse(data=OUTPUT[:5])
    yield runs_pb2.GetRunOutputResponse(data=OUTPUT[5:])


def output_to(stdout: Any, address: str, *options: object) -> subprocess.CompletedProcess[str]:
    """Run `windlass run output` with this standard output, which is buffered as it is for people."""
    return subprocess.run(
        [sys.executable, "-m", "windlass.cli", "run", "output", "x.1", "--address", address, *map(str, options)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"WINDLASS_KEY": "k", "PYTHONUNBUFFERED": ""},
    )


@pytest.mark.parametrize("way", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "a link"])
def test_an_output_is_added_to_the_log_that_is_the_standard_output(way: str, serving: Serving, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"before\n")
    file = tmp_path / "link" if way == "a link" else Path(way)
    if way == "a link":
        file.symlink_to("/dev/stdout")
    with log.open("ab") as stdout:
        done = output_to(stdout, serving("RunService", "GetRunOutput", outputs), "--output", file)
        assert (done.returncode, done.stderr) == (0, "")
        stdout.write(b"\nafter\n")
    assert log.read_bytes() == b"before\n" + OUTPUT + b"\nafter\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == (["link", "log"] if way == "a link" else ["log"])


def test_an_output_that_a_full_disk_does_not_take_is_a_failure_in_words(serving: Serving) -> None:
    with Path("/dev/full").open("wb") as full:
        done = output_to(full, serving("RunService", "GetRunOutput", outputs))
    assert (done.returncode, done.stderr) == (1, "cannot go on: No space left on device\n")


def test_watch_goes_on_while_the_stack_that_it_watches_starts_again(serving: Serving, tmp_path: Path) -> None:
    asked: list[int] = []

    def events(request: Any, context: Any) -> Iterator[Any]:
        asked.append(request.after_seq)
        state = resources_pb2.Execution.RUNNING if len(asked) == 1 else resources_pb2.Execution.SUCCESS
        event = resources_pb2.Event(seq=len(asked), type="RunSucceeded", state=state)
        yield executions_pb2.WatchExecutionResponse(event=event)
        if len(asked) == 1:
            (tmp_path / "up.json").unlink()
            context.abort(grpc.StatusCode.UNAVAILABLE, "the api stops")

    address = serving("ExecutionService", "WatchExecution", events)
    (running_home(tmp_path, address) / "admin.key").write_text("of-the-home\n")
    watched = windlass("watch", "x", "--home", tmp_path, "--address", address, "-o", "json")
    assert (watched.returncode, watched.stderr, asked) == (0, "", [0, 1])
    assert len(watched.stdout.splitlines()) == 2
