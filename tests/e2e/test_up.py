"""`windlass up`, as a person uses it, is one command with one home, and leaves nothing behind, whatever is killed."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest

from deploy.local import provision
from deploy.local.home import KEYS
from deploy.local.logs import LOG_BYTES_MAX
from deploy.local.plan import Options
from deploy.local.secret import CORE_BYTES_MAX
from tests.support.command_line import windlass
from tests.support.postgres import reachable_directory
from tests.support.probe import some, until
from tests.support.stack import STOP_SECONDS, Stack, free_options, is_alive, running_stack, stack_is_up, start_stack

ENDED_SECONDS = 20.0
LONG_NODE = "name: long\nnodes:\n  - {id: only, module: delay@1, config: {duration: 600s}}\n"
OPERATIONS_PAGE = Path(__file__).resolve().parents[2] / "docs/operations.md"
LARGE_NODE = """
name: large
nodes: [{id: only, module: transform@1, inputs: {text: "{{ 'x' * 300000 }}"}}]
"""
ONE_NODE = "name: one\nnodes:\n  - {id: only, module: noop@1}\n"


@pytest.fixture
def home() -> Iterator[Path]:
    directory = reachable_directory("windlass-up-")
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


async def test_up_file_describes_what_runs(shared_stack: Stack) -> None:
    up = shared_stack.up()
    assert up["home"] == str(shared_stack.options.home)
    assert is_alive(up["postgres"]["pid"])
    assert {"host", "port", "start_time"} <= set(up["postgres"])
    services = [(each["service"], each["replica"]) for each in up["processes"]]
    assert services == [("api", 0), ("dispatcher", 0), ("coordinator", 0), ("coordinator", 1), ("runner", 0)]
    for each in up["processes"]:
        assert is_alive(each["pid"])
        assert each["ready"]
        assert {"grpc", "http", "metrics", "start_time"} <= set(each)


async def test_log_that_grows_large_begins_again(shared_stack: Stack) -> None:
    log = shared_stack.home.logs / "postgres.log"
    with log.open("ab") as appended:
        appended.write(b"x" * LOG_BYTES_MAX)
    await until(lambda: log.stat().st_size < LOG_BYTES_MAX, ENDED_SECONDS, "the log to begin again")
    assert log.with_name("postgres.log.1").stat().st_size >= LOG_BYTES_MAX


async def test_keys_and_credentials_are_private(shared_stack: Stack) -> None:
    files = [shared_stack.home.key_file(name) for name in KEYS] + [
        shared_stack.home.url_file(name) for name in provision.OWNERS
    ]
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600, path
        assert len(path.read_text().splitlines()) == 1


async def test_no_secret_is_on_a_command_line_or_in_an_environment(shared_stack: Stack) -> None:
    secrets = [shared_stack.key(name) for name in KEYS]
    secrets += [shared_stack.home.password_file(owner).read_text().strip() for owner in (*provision.OWNERS, "postgres")]
    secrets.append(shared_stack.service_secret_file().read_text().strip())
    for pid in shared_stack.seen:
        process = psutil.Process(pid)
        shown = " ".join([*process.cmdline(), *process.environ().values()])
        assert not [secret for secret in secrets if secret in shown], process.name()


async def test_no_process_leaves_its_memory_in_a_core_dump(shared_stack: Stack) -> None:
    for pid in shared_stack.seen:
        # 0 on a machine where nobody may have any.
        assert core_limits(pid) in ((str(CORE_BYTES_MAX),) * 2, ("0", "0"))


def core_limits(pid: int) -> tuple[str, ...]:
    """Soft and hard. They can be read of a process of another user, too."""
    limits = Path(f"/proc/{pid}/limits").read_text()
    return some(re.search(r"^Max core file size +(\d+) +(\d+) ", limits, re.MULTILINE)).groups()


async def test_second_up_on_the_home_is_refused_by_pid(shared_stack: Stack) -> None:
    second = windlass("up", "--home", shared_stack.options.home)
    assert second.returncode == 1
    assert f"process {shared_stack.process.pid}" in second.stderr
    assert "windlass.cli down --home" in second.stderr
    assert shared_stack.process.returncode is None


async def test_status_tells_what_runs_and_where(shared_stack: Stack) -> None:
    shown = windlass("status", "--home", shared_stack.options.home)
    assert shown.returncode == 0
    for each in shared_stack.up()["processes"]:
        assert each["grpc"] in shown.stdout
    database = next(line for line in shown.stdout.splitlines() if "postgres" in line)
    assert shared_stack.up()["postgres"]["start_time"] in database
    assert json.loads(windlass("status", "--json", "--home", shared_stack.options.home).stdout) == shared_stack.up()


async def test_command_line_carries_an_execution_to_its_result(shared_stack: Stack, tmp_path: Path) -> None:
    definition = tmp_path / "one.yaml"
    definition.write_text(f"# kept as it is\n{ONE_NODE}")
    home = shared_stack.options.home
    assert "CREATED" in windlass("workflow", "apply", str(definition), "--home", home).stdout
    assert windlass("workflow", "get", "one", "--home", home).stdout == definition.read_text()
    started = windlass("start", "one", "--wait", "--json", "--home", home)
    assert started.returncode == 0, started.stderr
    execution = json.loads(started.stdout)
    assert execution["state"] == "SUCCESS"
    assert execution["id"] in windlass("list", "--home", home).stdout
    assert "only" in windlass("runs", execution["id"], "--home", home).stdout
    watched = windlass("watch", execution["id"], "--json", "--home", home)
    assert [json.loads(line)["seq"] for line in watched.stdout.splitlines()] == [
        str(number) for number in range(1, int(execution["lastSeq"]) + 1)
    ]


async def test_workspaces_and_keys_are_made_listed_and_revoked(shared_stack: Stack, tmp_path: Path) -> None:
    home = shared_stack.options.home
    assert windlass("workspace", "create", "side", "--tier", "PRO", "--home", home).returncode == 0
    assert "side" in windlass("workspace", "list", "--home", home).stdout
    more = ("--executions-max", "7", "--json")
    changed = json.loads(windlass("workspace", "update", "side", *more, "--home", home).stdout)
    assert changed["limits"]["executionsMax"] == 7
    assert json.loads(windlass("workspace", "get", "side", "--json", "--home", home).stdout)["tier"] == "PRO"
    shown = windlass("workspace", "get", "side", "--home", home).stdout.splitlines()
    assert shown[:3] == ["workspace side", "tier      PRO", "at once   7"]

    made = json.loads(windlass("keys", "create", "VIEWER", "--workspace", "side", "--json", "--home", home).stdout)
    key_file = tmp_path / "side.key"
    key_file.write_text(made["key"])
    assert windlass("list", "--key-file", str(key_file), "--home", home).returncode == 0
    refused = windlass("start", "one", "--key-file", str(key_file), "--home", home)
    assert refused.returncode == 1
    assert "ROLE_REQUIRED" in refused.stderr

    named = ("--title", "for a day", "--expires-in", "1d")
    made = json.loads(windlass("keys", "create", "VIEWER", *named, "--json", "--home", home).stdout)
    create_time, expire_time = (datetime.fromisoformat(made["apiKey"][name]) for name in ("createTime", "expireTime"))
    # The end is counted from when it was typed, on the clock of the caller.
    assert timedelta(hours=23) < expire_time - create_time < timedelta(hours=25)
    assert "for a day" in windlass("keys", "list", "--home", home).stdout
    assert windlass("keys", "revoke", made["apiKey"]["keyId"], "--home", home).returncode == 0
    key_file.write_text(made["key"])
    assert "KEY_INVALID" in windlass("list", "--key-file", str(key_file), "--home", home).stderr


async def test_errors_name_the_reason_and_what_to_try(shared_stack: Stack) -> None:
    unknown = windlass("get", "01990000-0000-7000-8000-000000000000", "--home", shared_stack.options.home)
    assert unknown.returncode == 1
    assert "EXECUTION_NOT_FOUND" in unknown.stderr
    assert windlass("get", "--home", shared_stack.options.home).returncode == 2


async def test_down_ends_every_process_and_work_in_hand_goes_on_after_the_next_up(home: Path, tmp_path: Path) -> None:
    definition = tmp_path / "long.yaml"
    definition.write_text(LONG_NODE)
    async with running_stack(home=home) as stack:
        windlass("workflow", "apply", str(definition), "--home", home)
        begun = json.loads(windlass("start", "long", "--json", "--home", home).stdout)["id"]
        await until(lambda: "RUNNING" in windlass("runs", begun, "--home", home).stdout, 10, "the node to run")
        assert windlass("down", "--home", home).returncode == 0
        assert await stack.process.wait() == 0
        assert alive(stack.seen) == []
        assert not stack.home.up_file.exists()
        assert windlass("status", "--home", home).returncode == 1
        assert windlass("down", "--home", home).returncode == 0
    async with running_stack(home=home, port_offset=stack.options.port_offset):
        await until(lambda: "RUNNING" in windlass("runs", begun, "--home", home).stdout, 10, "the node to run again")
        journal = windlass("events", begun, "--home", home).stdout
        assert "RunReleased" in journal  # handed back: no attempt is charged, and nobody waited for a lease to end
        assert "RunLost" not in journal


async def test_a_copy_of_the_home_of_a_stack_that_is_down_is_a_backup(home: Path, tmp_path: Path) -> None:
    """With the command of docs/operations.md, after an earlier backup, and for what is kept beside the database."""
    definition, first = tmp_path / "large.yaml", home / ".windlass"
    definition.write_text(LARGE_NODE)
    (copying,) = re.findall(r"^windlass down && (cp .+)", OPERATIONS_PAGE.read_text(), re.MULTILINE)

    def backed_up() -> Path:
        subprocess.run(["bash", "-c", copying], cwd=home, check=True)
        return max(home.glob("windlass-*"))

    first.mkdir()
    await asyncio.to_thread(backed_up)
    async with running_stack(home=first):
        windlass("workflow", "apply", str(definition), "--home", first)
        ended = json.loads(windlass("start", "large", "--wait", "--json", "--home", first).stdout)["id"]
        assert windlass("down", "--home", first).returncode == 0
    backup = await asyncio.to_thread(backed_up)
    shutil.rmtree(first)
    async with running_stack(home=backup):
        output = windlass("run", "output", f"{ended}.1", "--home", backup)
        assert len(json.loads(output.stdout)["text"]) == 300_000, output.stderr
        verified = windlass("admin", "verify", "--home", backup)
        assert verified.returncode == 0, verified.stdout


async def test_interrupt_with_runs_going_ends_all_in_order(home: Path, tmp_path: Path) -> None:
    definition = tmp_path / "long.yaml"
    definition.write_text(LONG_NODE)
    async with running_stack(home=home, coordinators=2) as stack:
        windlass("workflow", "apply", str(definition), "--home", home)
        begun = [json.loads(windlass("start", "long", "--json", "--home", home).stdout)["id"] for _ in range(3)]
        await until(
            lambda: all("RUNNING" in windlass("runs", each, "--home", home).stdout for each in begun),
            30,
            "the nodes to run",
        )
        services = {each["pid"] for each in stack.up()["processes"]}
        survivors = when_ended(stack.up()["postgres"]["pid"], lambda: alive(services))
        stack.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(STOP_SECONDS):
            assert await stack.process.wait() == 0, stack.output.read_text()
        assert await survivors == []  # PostgreSQL was the last
        assert alive(stack.seen) == []
        assert not stack.home.up_file.exists()
        assert "is killed" not in stack.output.read_text()


@pytest.mark.chaos
async def test_stack_comes_back_after_a_kill_of_everything(home: Path) -> None:
    options = free_options(Options(home=home, lease_scale=0.1))
    stack = await start_stack(options)
    await stack_is_up(stack)
    key = stack.key()
    stack.process.kill()  # the kernel tells the children
    await stack.process.wait()
    await until(lambda: not alive(stack.seen), ENDED_SECONDS, "the children to end")

    stack = await start_stack(options)
    await stack_is_up(stack)
    # The supervisor is killed first, so nothing ends in order.
    for pid in sorted(stack.seen, key=lambda pid: pid != stack.process.pid):
        os.kill(pid, signal.SIGKILL)
    await stack.process.wait()
    async with running_stack(home=home, port_offset=options.port_offset) as again:
        assert not stack.seen & again.seen
        assert not alive(stack.seen)
        assert again.key() == key
        assert windlass("list", "--home", home).returncode == 0


async def test_taken_port_is_named_with_its_process(home: Path) -> None:
    options = free_options(Options(home=home))
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier stack had it a moment ago
        listener.bind(("127.0.0.1", 7402 + options.port_offset))
        listener.listen()
        refused = windlass("up", "--port-offset", str(options.port_offset), "--home", home)
    assert refused.returncode == 1
    assert f"port {7402 + options.port_offset}, which dispatcher-0 (gRPC) needs" in refused.stderr


async def test_another_server_serves_and_a_dead_child_is_left_so_on_request(home: Path) -> None:
    async with running_stack(home=home, own_postgres=True, restart=False) as stack:
        assert stack.up()["postgres"] == {"pid": None, "host": "127.0.0.1", "port": some(stack.postgres).port}
        assert windlass("list", "--home", home).returncode == 0
        assert stack.home.operator_url_file.stat().st_mode & 0o777 == 0o600
        verified = windlass("admin", "verify", "--home", home)  # in the database that the home knows
        assert verified.returncode == 0, verified.stderr
        killed = stack.kill("runner")
        await until(lambda: not stack.entries("runner"), ENDED_SECONDS, "up.json to forget the dead runner")
        assert not is_alive(killed)
        assert len(stack.entries("api")) == 1
        address = stack.home.operator_url_file.read_text()
    assert not stack.home.operator_url_file.exists()
    # The file is there again, as it is after a kill of everything.
    stack.home.operator_url_file.write_text(address)
    assert "no stack runs in" in windlass("admin", "verify", "--home", home).stderr


def when_ended(pid: int, look: Callable[[], list[int]]) -> asyncio.Future[list[int]]:
    """The answer of `look` at the moment when the process has ended."""
    loop, handle = asyncio.get_running_loop(), os.pidfd_open(pid)
    seen: asyncio.Future[list[int]] = loop.create_future()

    def ended() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        seen.set_result(look())

    loop.add_reader(handle, ended)
    return seen


def alive(pids: set[int]) -> list[int]:
    return [pid for pid in pids if is_alive(pid)]
