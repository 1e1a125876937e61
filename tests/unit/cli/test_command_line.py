"""Before it talks to anybody, the command line imports little, refuses wrong usage, and finds the api by itself."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.command_line import windlass

HEAVY = {"grpc", "google.protobuf", "rich", "yaml", "psycopg", "asyncio", "services", "deploy", "structlog"}


def test_help_imports_nothing_heavy() -> None:
    """`windlass --help` is promised within 250 ms; each of these alone would cost most of it."""
    program = "import sys; from windlass.cli.app import app; print('\\n'.join(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert set(shown.stdout.split()) & HEAVY == set()


def test_help_lists_the_commands() -> None:
    shown = windlass("--help")
    assert shown.returncode == 0
    for command in (
        "up",
        "down",
        "status",
        "serve",
        "migrate",
        "start",
        "watch",
        "runs",
        "validate",
        "workflow",
        "admin",
    ):
        assert f"\n  {command} " in shown.stdout


def test_version_is_that_of_the_distribution() -> None:
    shown = windlass("--version")
    assert (shown.returncode, shown.stdout) == (0, f"{version('windlass')}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("start",),
        ("serve", "kitchen"),
        ("up", "--port-offset", "-1"),
        ("up", "--env", "kitchen:A=1"),
        ("up", "--modules", "/no/such/file.py"),
        ("migrate",),
        ("start", "x", "--input", "[1]"),
        ("start", "x", "--input", "{"),
        ("start", "x", "--label", "eu"),
        ("workflow", "apply", "/no/such/file.yaml"),
    ],
)
def test_usage_errors_end_with_2_and_no_traceback(arguments: tuple[str, ...]) -> None:
    refused = windlass(*arguments)
    assert refused.returncode == 2, refused.stderr
    assert "Traceback" not in refused.stderr


def test_nothing_running_is_said_with_what_to_do(tmp_path: Path) -> None:
    shown = windlass("list", "--home", str(tmp_path))
    assert shown.returncode == 1
    assert f"windlass.cli up --home {os.path.relpath(tmp_path)}" in shown.stderr
    assert windlass("status", "--home", str(tmp_path)).returncode == 1
    assert windlass("down", "--home", str(tmp_path)).returncode == 0


def test_unreadable_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text(json.dumps({"processes": [{"service": "api", "grpc": "127.0.0.1:1"}]}))
    shown = windlass("list", "--home", str(tmp_path))
    assert shown.returncode == 1
    assert "admin.key" in shown.stderr
    assert "--key-file" in shown.stderr


def test_unreadable_authority_is_named() -> None:
    shown = windlass("get", "x", "--address", "127.0.0.1:1", "--authority-file", "/no/such.pem", WINDLASS_KEY="k")
    assert shown.returncode == 1
    assert "cannot read the authority in /no/such.pem" in shown.stderr


def test_api_that_is_away_is_reported_with_its_code() -> None:
    shown = windlass("get", "x", "--address", "127.0.0.1:1", WINDLASS_KEY="k")
    assert shown.returncode == 1
    assert "no api answers at 127.0.0.1:1" in shown.stderr
    assert "reason: UNAVAILABLE" in shown.stderr
    assert "Traceback" not in shown.stderr
