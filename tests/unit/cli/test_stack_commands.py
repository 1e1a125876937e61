"""The commands of the local stack when there is no stack, when it is not ready, or when an extra is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.local.files import write_private
from deploy.local.home import MIGRATING, RUNNING, STARTING, STOPPING, Home
from deploy.local.plan import Options
from deploy.local.supervisor import Supervisor
from tests.support.command_line import windlass

NOWHERE = "postgresql://dba:secret-word@127.0.0.1:1/postgres"
PROCESS = {
    "service": "api",
    "replica": 0,
    "pid": 7,
    "grpc": "127.0.0.1:7401",
    "metrics": "127.0.0.1:7601",
    "ready": True,
    "start_time": "2026-11-19T02:11:11Z",
}


def status_of(home: Home, postgres: dict[str, Any]) -> str:
    home.take()
    home.write_up({"home": str(home.root), "pid": os.getpid(), "postgres": postgres, "processes": [PROCESS]})
    home.tell(RUNNING)
    shown = windlass("status", "--home", home.root)
    assert shown.returncode == 0, shown.stderr
    return next(line for line in shown.stdout.splitlines() if "postgres" in line)


@pytest.mark.parametrize("doing", [STARTING, STOPPING, MIGRATING])
def test_status_says_what_the_owner_of_the_home_is_doing(tmp_path: Path, doing: str) -> None:
    home = Home(tmp_path)
    home.take(doing)
    shown = windlass("status", "--home", tmp_path)
    assert shown.returncode == 1
    assert shown.stderr == f"the stack in {tmp_path} is {doing} (process {os.getpid()})\n"


def test_status_of_a_stack_that_stops_is_not_what_ran(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.take()
    home.write_up({"home": str(tmp_path), "processes": [PROCESS]})
    home.tell(STOPPING)
    shown = windlass("status", "--home", tmp_path)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "is stopping" in shown.stderr


def test_status_tells_since_when_the_database_runs(tmp_path: Path) -> None:
    since = "2026-11-19T02:11:10Z"
    entry = {"pid": 6, "host": "127.0.0.1", "port": 7400, "start_time": since}
    line = status_of(Home(tmp_path), entry)
    assert "127.0.0.1:7400" in line
    assert since in line
    assert "starting" in status_of(Home(tmp_path / "again"), entry | {"pid": None})


def test_status_tells_where_a_database_elsewhere_is(tmp_path: Path) -> None:
    supervisor = Supervisor(
        Options(home=tmp_path, database_url="postgresql://dba:secret-word@db.example.org/postgres"), print
    )
    supervisor.home.take()
    entry = supervisor.described()["postgres"]
    line = status_of(Home(tmp_path / "shown"), entry)
    assert "elsewhere" in line
    assert "db.example.org:5432" in line
    assert "127.0.0.1" not in line
    assert "secret-word" not in json.dumps(entry)


def running_on(place: Path, database_url: str) -> None:
    """Hold the home as a running stack does."""
    home = Home(place)
    home.take(RUNNING)
    write_private(home.operator_url_file, database_url)


def test_verify_says_that_nothing_runs(tmp_path: Path) -> None:
    refused = windlass("admin", "verify", "--home", tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"no stack runs in {tmp_path}" in refused.stderr
    assert "--database-url" in refused.stderr


@pytest.mark.parametrize("where", ["home", "option"])
def test_verify_says_in_a_line_that_the_database_is_away(tmp_path: Path, where: str) -> None:
    if where == "home":
        running_on(tmp_path, NOWHERE)
        refused = windlass("admin", "verify", "--home", tmp_path)
    else:
        refused = windlass("admin", "verify", "--database-url", NOWHERE, "--home", tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("the database cannot be verified: ")
    assert len(refused.stderr.splitlines()) == 1
    assert "secret-word" not in refused.stderr


def test_home_that_was_typed_counts_for_more_than_the_environment(tmp_path: Path) -> None:
    other = NOWHERE.replace("127.0.0.1:1", "127.0.0.1:2")
    running_on(tmp_path, NOWHERE)
    asked = {
        "port 1 ": windlass("admin", "verify", "--home", tmp_path, WINDLASS_DATABASE_URL=other),
        "port 2 ": windlass("admin", "verify", "--database-url", other, "--home", tmp_path),
    }
    for port, refused in asked.items():
        assert port in refused.stderr


@pytest.mark.parametrize(
    ("command", "url"),
    [
        (("up",), "postgresql://dba:secret-word@[::1"),
        (("migrate",), "host=here password=secret-word"),
        (("admin", "bootstrap"), "http://secret-word"),
        (("admin", "verify"), "postgresql://dba:secret-word@here:secret-word/postgres"),
    ],
)
def test_address_that_is_none_is_refused_and_not_repeated(tmp_path: Path, command: tuple[str, ...], url: str) -> None:
    refused = windlass(*command, "--database-url", url, "--home", tmp_path)
    assert refused.returncode == 2, refused.stderr
    assert "Traceback" not in refused.stderr
    assert "secret-word" not in refused.stderr


@pytest.mark.parametrize("command", [("up",), ("serve", "runner")])
def test_network_that_is_none_is_refused(command: tuple[str, ...]) -> None:
    refused = windlass(*command, "--allow-net", "10.1.2.3/8")
    assert refused.returncode == 2, refused.stderr
    assert "10.1.2.3/8 has host bits set" in refused.stderr


@pytest.mark.parametrize("command", [("up",), ("down",), ("status",), ("admin", "verify")])
def test_home_that_is_a_file_is_said_without_a_traceback(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "file").write_text("")
    said = windlass(*command, "--home", tmp_path / "file")
    assert said.returncode == (0 if command == ("down",) else 1)
    assert "Traceback" not in said.stderr
    assert "Errno" not in said.stderr
    assert len(said.stderr.splitlines()) == 1


def test_migrate_says_in_a_line_that_the_database_is_away(tmp_path: Path) -> None:
    said = windlass("migrate", "--home", tmp_path, "--database-url", NOWHERE)
    assert (said.returncode, len(said.stderr.splitlines())) == (1, 1)
    assert "Connection refused Is the server running" in said.stderr
    assert "secret-word" not in said.stderr


@pytest.mark.parametrize("command", ["up", "status"])
def test_extra_that_is_not_installed_is_named(tmp_path: Path, command: str) -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None;"
        f" sys.argv = ['windlass', {command!r}, '--home', {str(tmp_path)!r}];"
        " from windlass.cli import main; main()"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 1
    assert said.stderr == "psycopg is not installed; this command needs windlass[local]\n"
