"""docs/grpcurl.md, run as it is printed: grpcurl, a key, and no proto file."""

import asyncio
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.go import grpcurl
from tests.support.stack import Stack, running_stack

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]

PAGE = Path(__file__).resolve().parents[2] / "docs/grpcurl.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORTS = {"127.0.0.1:7401": "api", "127.0.0.1:7402": "dispatcher", "127.0.0.1:7403": "coordinator",
         "127.0.0.1:7404": "runner"}  # fmt: skip
SCRIPT_SECONDS = 120
# Records the request, the answer and the exit code of each call, also of one inside $( ).
RECORDER = """
grpcurl() {
    local n=$(( $(cat "$CALLS/count") + 1 )); echo $n > "$CALLS/count"
    printf '%s\\n' "${@: -1}" > "$CALLS/$n.asked"; printf '%s ' "$@" > "$CALLS/$n.line"
    "$GRPCURL" "$@" > "$CALLS/$n.out" 2> "$CALLS/$n.err"
    local code=$?; echo $code > "$CALLS/$n.code"
    cat "$CALLS/$n.out"; return $code
}
echo 0 > "$CALLS/count"
"""


@dataclass
class Call:
    line: str
    code: int
    out: str
    err: str

    @property
    def answers(self) -> list[Any]:
        """The answer of a call, or the answers of a stream."""
        decoder, rest, found = json.JSONDecoder(), self.out.strip(), []
        while rest:
            value, end = decoder.raw_decode(rest)
            found.append(value)
            rest = rest[end:].strip()
        return found

    @property
    def answer(self) -> Any:
        assert self.code == 0, self.err
        (only,) = self.answers
        return only


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack() -> AsyncIterator[Stack]:
    program = await asyncio.to_thread(grpcurl)
    assert program.exists()
    async with running_stack() as made:
        yield made


@pytest.fixture(scope="module")
def calls(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Call]]:
    """The outcome of each command of the page, by the method or verb that it ends with."""
    script = RECORDER + "\n".join(BLOCK.findall(PAGE.read_text()))
    for address, service in PORTS.items():
        script = script.replace(address, stack.member(service).grpc)
    script = script.replace(".windlass/admin.key", str(stack.home.key_file("admin")))
    place = tmp_path_factory.mktemp("calls")
    environment = {"CALLS": str(place), "GRPCURL": str(grpcurl()), "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-c", script], env=environment, timeout=SCRIPT_SECONDS, check=False, capture_output=True)
    made = defaultdict(list)
    for number in range(1, int((place / "count").read_text()) + 1):
        asked, line, out, err, code = (
            (place / f"{number}.{part}").read_text() for part in ("asked", "line", "out", "err", "code")
        )
        made[asked.strip().rpartition("/")[2]].append(Call(line, int(code), out, err))
    return made


async def test_every_process_tells_what_it_serves_to_callers_with_a_key(calls: dict[str, list[Call]]) -> None:
    own = [
        "windlass.api.v1.ExecutionService",
        "grpc.channelz.v1.Channelz",
        "windlass.coordinator.v1.RunnerSessions",
        "grpc.health.v1.Health",
    ]
    for call, service in zip(calls["list"], own, strict=True):
        listed = call.out.split()
        assert service in listed
        assert not {"windlass.catalog.v1.CatalogService", "windlass.coordinator.v1.ReadService"} & {*listed}
        assert {"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"} < {*listed}


async def test_methods_and_messages_are_described(calls: dict[str, list[Call]]) -> None:
    (method,) = calls["windlass.api.v1.ExecutionService.StartExecution"]
    assert "rpc StartExecution" in method.out, method.err
    (message,) = calls["windlass.api.v1.StartExecutionRequest"]
    assert "string request_id" in message.out, message.err


async def test_health_is_told_without_a_key(calls: dict[str, list[Call]]) -> None:
    assert [call.answer for call in calls["Check"]] == [{"status": "SERVING"}] * 2


async def test_a_definition_is_applied_and_carried_to_its_result(calls: dict[str, list[Call]]) -> None:
    applied, nap, _ = calls["ApplyWorkflow"]
    assert applied.answer["change"] == nap.answer["change"] == "CREATED"
    waited, started, *_ = calls["StartExecution"]
    execution = waited.answer["execution"]
    assert execution["state"] == "SUCCESS"
    assert execution["summary"]["succeeded"] == ["greet", "rest"]
    assert started.answer["execution"]["id"] != execution["id"]


async def test_an_execution_is_watched_to_its_end_and_its_runs_are_listed(calls: dict[str, list[Call]]) -> None:
    (watched,) = calls["WatchExecution"]
    assert watched.code == 0, watched.err
    events = [answer["event"] for answer in watched.answers]
    assert [int(event["seq"]) for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "ExecutionFinished"
    (runs,) = calls["ListRuns"]
    assert sorted(run["node"] for run in runs.answer["runs"]) == ["greet", "rest"]
    (listed,) = calls["ListExecutions"]
    assert {execution["state"] for execution in listed.answer["executions"]} == {"SUCCESS"}


async def test_an_execution_is_cancelled(calls: dict[str, list[Call]]) -> None:
    (cancelled,) = calls["CancelExecution"]
    execution = cancelled.answer["execution"]
    assert execution["state"] == "CANCELLED"
    assert execution["error"]["message"] == "slept enough"


async def test_errors_come_with_their_details(calls: dict[str, list[Call]]) -> None:
    (unknown,) = calls["GetExecution"]
    assert "Code: NotFound" in unknown.err
    assert '"reason": "EXECUTION_NOT_FOUND"' in unknown.err
    assert '"domain": "windlass"' in unknown.err
    faulty = calls["ApplyWorkflow"][-1]
    assert "Code: InvalidArgument" in faulty.err
    assert '"reason": "INVALID_DEFINITION"' in faulty.err
    assert "google.rpc.BadRequest" in faulty.err
    assert "definition.nodes[0].module" in faulty.err
    assert "definition.edges[0].to" in faulty.err
    keyless = calls["StartExecution"][-1]
    assert "Code: Unauthenticated" in keyless.err
    assert '"reason": "KEY_MISSING"' in keyless.err
