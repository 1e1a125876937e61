"""The runner in Go (examples/runner-go), which was written from the contracts alone, works on a real stack."""

import asyncio
import os
import shutil
from pathlib import Path

import psycopg
import pytest

from tests.support.api import Client, output_of
from tests.support.conformance import account, examined
from tests.support.go import GO_RUNNER, built_runner, go_runner, vet
from tests.support.probe import eventually, some
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import resources_pb2, workspaces_pb2
from windlass.api.v1.workspaces_pb2_grpc import ApiKeyServiceStub

# The first run builds it.
pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]

CODE_LINES_MAX = 500
EXECUTIONS = 8_000
BATCH = 1_000
ENDS_SECONDS = 600.0
STOP_SECONDS = 20.0
# Two such texts have more than goes inline.
CHARACTERS = 200_000
OPTIONS = ["--quick", "go.echo@1", "--slow", 'go.wait@1={"seconds": 600}']
# Faults of a runner: the code in runner.go, what stands there instead, the story and the rule that show it.
FAULTS = [
    ("attach.Held = append(attach.Held, l.Lease)", "_ = l", "stream_breaks", "ATTACH_NAMES_LEASES"),
    ("s.beatSentAt.Before(r.lostAt)", "false", "stream_breaks", "BEAT_ON_LOSS"),
    ("pause, last = 10*time.Millisecond, max(", "pause, last = time.Minute, max(", "coordinators_are_away", "GRACE"),
    ("delete(r.sessions, s)", "delete(r.sessions, s)\n\tr.handBack(nil)",
     "coordinators_are_away", "GRACE_SPARES_RUNNING"),
    ("s.timing.GetBeat().AsDuration()", "3*time.Second", "beats_are_timely", "BEAT_TIMELY"),
    ("Full: true", "Full: s.beatNumber > 1", "beats_are_timely", "BEAT_FIRST_FULL"),
    ("s.silence = 2 * s.timing.Beat.AsDuration()", "s.silence = time.Hour", "coordinator_is_silent", "SILENCE"),
    ("cmp.Or(r.selfFence, 8*time.Second)", "time.Minute", "attach_is_not_answered", "ATTACHED_MISSING"),
    ("fence < term && ", "", "times_are_impossible", "TIMING_INVALID"),
    ("grace && grace <= closed", "grace && closed > 0", "times_are_impossible", "TIMING_INVALID"),
    ("s.timing.GetBeat().AsDuration()", "min(s.timing.GetBeat().AsDuration(), 600*time.Millisecond)",
     "times_change", "TIMING_NEWEST"),
    ("!r.sessions[each.sentOn] &&", "each.sentOn == nil &&", "answer_is_lost", "REPORT_REPEATED"),
    ("|| !r.sessions[each.session])", "|| each.session == nil)", "report_is_repeated_elsewhere", "REPORT_ELSEWHERE"),
    ("if l == nil || l.sentOn != s {", "if l == nil {\n\t\tpanic(id)\n\t} else if l.sentOn != s {",
     "report_is_repeated_elsewhere", "REPORT_TAKEN_AGAIN"),
    ('refusal == "REPORT_INVALID" &&', "refusal == id &&", "report_is_not_understood", "REPORT_INVALID"),
    ("case time.Since(r.aliveAt) >= s.timing.GetSelfFence().AsDuration():", "case false:",
     "beats_are_heard_but_not_answered", "SELF_FENCE"),
    ("case max(r.denied[id], r.deniedBefore[id]) >= epoch:", "case false:",
     "revocation_overtakes_its_grant", "REVOKE_BINDING"),
    ("case isAtWork &&", "case isAtWork && false &&", "places_are_kept_for_others", "GRANT_PLACES"),
    ("l.workspace == grant.Workspace", 'l.workspace != ""', "places_are_kept_for_others", "GRANT_PLACES"),
    ("l != nil && l.Epoch == each.Epoch {", "l != nil && l.session != s {", "much_comes_at_once", "FRAME_ORDER"),
    ("known.Epoch == epoch:", "known.Epoch == -1:", "grant_arrives_twice", "GRANT_ONCE"),
    ("waitsFor[reason]", "nil", "execution_ends", "REVOKE_STOPPED"),
    ("s.silence = 2 * s.timing.Beat.AsDuration()", "s.silence, control.Revoked = 2*s.timing.Beat.AsDuration(), nil",
     "revocation_is_repeated", "REVOKE_REPEATED"),
    ("r.instance, r.aliveAt = uuid.NewString(), time.Time{}", "r.aliveAt = time.Time{}",
     "instance_ends", "INSTANCE_FRESH"),
    ("r.lostAt = time.Now()", "r.lostAt = time.Now(); if status.Code(err) == 16 { r.instance = uuid.NewString() }",
     "streams_end_with_a_status", "STATUS_REATTACHES"),
    ("code != codes.ResourceExhausted {", "true {", "output_is_large", "TRANSFER_AGAIN"),
    ("case len(text) <= inlineMax:", "case true:", "output_is_large", "OUTPUT_UPLOADED"),
    ("slices.Chunk(text, partMax)", "slices.Chunk(text, 2*partMax)", "output_is_large", "UPLOAD_FORM"),
    ("code != codes.Unavailable &&", "code != codes.Aborted &&", "output_is_large", "TRANSFER_AGAIN"),
    ("if grant.Rendered == nil {", "if true {", "inputs_are_references", "INPUT_FETCHED"),
    ("io.EOF {\n\t\t\treturn err", "io.EOF {\n\t\t\treturn nil", "reference_is_gone", "INPUT_MISSING"),
    ("l != nil && l.Epoch == epoch {", "l != nil {", "epochs_rise", "REVOKE_UNKNOWN"),
]  # fmt: skip


@pytest.fixture(scope="module")
def program() -> Path:
    return go_runner()


def test_code_is_idiomatic_and_small(program: Path) -> None:
    assert program.exists()
    assert vet(GO_RUNNER) == ""
    lines = [line.strip() for path in GO_RUNNER.glob("*.go") for line in path.read_text().splitlines()]
    assert len([line for line in lines if line and not line.startswith("//")]) <= CODE_LINES_MAX


class GoRunner:
    """The runner with a key of its own, started as often as the test ends it."""

    def __init__(self, program: Path, stack: Stack, key: str, place: Path) -> None:
        key_file = place / "runner.key"
        key_file.touch(mode=0o600)
        key_file.write_text(key)
        coordinators = ",".join(each["grpc"] for each in stack.entries("coordinator"))
        settings = {"WINDLASS_COORDINATORS": coordinators, "WINDLASS_RUNNER_KEY_FILE": str(key_file)}
        self._environment = {**os.environ, **settings}
        self._command = [str(program), "-places", "20"]
        self._log = place / "runner.log"
        self.process: asyncio.subprocess.Process

    @classmethod
    async def with_key(cls, program: Path, stack: Stack, place: Path) -> "GoRunner":
        request = workspaces_pb2.CreateApiKeyRequest(role=workspaces_pb2.RUNNER, title="go")
        made = await Client(stack).call(ApiKeyServiceStub(stack.channel()).CreateApiKey, request)
        return cls(program, stack, made.key, place)

    async def start(self) -> None:
        with self._log.open("ab") as log:
            start = asyncio.create_subprocess_exec
            self.process = await start(*self._command, env=self._environment, stdout=log, stderr=log)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def drain(self) -> None:
        """It has to end by itself after SIGTERM."""
        self.process.terminate()
        async with asyncio.timeout(STOP_SECONDS):
            assert await self.process.wait() == 0


async def count(stack: Stack, what: str) -> int:
    async with await psycopg.AsyncConnection.connect(stack.superuser_url()) as connection:
        (found,) = some(await (await connection.execute(f"SELECT count(*) FROM coordinator.{what}")).fetchone())
        return int(found)


async def test_executions_survive_deaths_on_both_sides(program: Path, tmp_path: Path) -> None:
    """All succeed, and no node that has succeeded is done again."""
    async with running_stack(coordinators=2, runners=0) as stack:
        client = Client(stack)
        nodes = [
            {"id": "first", "module": "go.echo@1", "inputs": {"n": 1}},
            {"id": "second", "module": "go.wait@1", "config": {"seconds": 0.02}},
        ]
        await client.apply("go", nodes, edges=[{"from": "first", "to": "second"}])
        for _ in range(EXECUTIONS // BATCH):
            await client.start_many("go", BATCH)
        runner = await GoRunner.with_key(program, stack, tmp_path)
        await runner.start()

        async def has_ended(share: float) -> bool:
            return await count(stack, "executions WHERE end_time IS NOT NULL") >= share * EXECUTIONS

        try:
            for share, end in ((0.1, runner.kill), (0.3, runner.kill), (0.7, runner.drain)):
                await eventually(lambda share=share: has_ended(share), ENDS_SECONDS, f"{share:.0%} to end")  # type: ignore[misc]
                await end()
                await runner.start()
                if share == 0.3:
                    stack.kill("coordinator", 0)
            await eventually(lambda: has_ended(1), ENDS_SECONDS, "all executions to end")
            await runner.drain()
        finally:
            await runner.kill()
        assert await count(stack, "executions WHERE state = 'SUCCESS'") == EXECUTIONS
        assert await count(stack, "runs WHERE state = 'SUCCESS'") == len(nodes) * EXECUTIONS


async def test_templates_are_rendered_and_large_values_come_and_go(program: Path, tmp_path: Path) -> None:
    """A runner of the stack renders for it. Its inputs come by reference, and its output goes by upload."""
    async with running_stack(coordinators=2, runners=1) as stack:
        client = Client(stack)
        templates = {"doubled": "{{ input.t ~ input.t }}", "is": "{{ true }}"}
        await client.apply("large", [{"id": "a", "module": "go.echo@1", "inputs": templates}])
        runner = await GoRunner.with_key(program, stack, tmp_path)
        await runner.start()
        try:
            execution = await client.run("large", input={"t": "x" * CHARACTERS})
            assert execution.state == resources_pb2.Execution.SUCCESS, execution.error
            outputs = [await output_of(client, run.id) for run in await client.runs_of(execution.id) if run.attempt]
            await runner.drain()
        finally:
            await runner.kill()
    assert outputs == [{"doubled": "x" * 2 * CHARACTERS, "is": True}]


def test_runner_keeps_every_rule(program: Path) -> None:
    done = examined(str(program), *OPTIONS)
    assert set(account(done).values()) == {"kept"}, done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(("code", "instead", "story", "rule"), FAULTS, ids=[fault[-1] for fault in FAULTS])
def test_kit_names_the_rule_that_is_broken(
    program: Path, tmp_path: Path, code: str, instead: str, story: str, rule: str
) -> None:
    faulty = tmp_path / "runner-go"
    shutil.copytree(GO_RUNNER, faulty)
    text = (faulty / "runner.go").read_text()
    assert text.count(code) == 1
    (faulty / "runner.go").write_text(text.replace(code, instead))
    done = examined(str(built_runner(faulty, tmp_path / "faulty")), *OPTIONS, "--story", story)
    assert account(done)[rule] == "BROKEN", done.stdout
    assert done.returncode == 1
