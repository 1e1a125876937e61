"""Before it talks to anybody, the command line imports little, refuses wrong usage, and finds the api by itself."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tests.support.command_line import running_home, windlass
from windlass.cli.app import app
from windlass.cli.connection import Api
from windlass.cli.invocation import as_typed

COMMANDS = ("up", "down", "status", "serve", "migrate", "start", "watch", "runs", "validate", "workflow", "admin")
HEAVY = {"grpc", "google.protobuf", "rich", "yaml", "psycopg", "asyncio", "services", "deploy", "structlog"}


def test_help_imports_nothing_heavy() -> None:
    """`windlass --help` is promised within 250 ms; each of these alone would cost most of it."""
    program = "import sys; from windlass.cli.app import app; print('\\n'.join(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert set(shown.stdout.split()) & HEAVY == set()


def test_help_lists_the_commands() -> None:
    shown = windlass("--help")
    assert shown.returncode == 0
    for command in COMMANDS:
        assert f"\n  {command} " in shown.stdout


_GROUPS = ("workflow", "approvals", "circuits", "dead-letters", "run", "keys", "workspace", "admin")


@pytest.mark.parametrize("group", [(), *((name,) for name in _GROUPS)])
def test_summary_of_every_command_is_one_whole_sentence(group: tuple[str, ...]) -> None:
    commands = windlass(*group, "--help", COLUMNS="80").stdout.partition("Commands:\n")[2].splitlines()
    assert commands
    assert [line for line in commands if not line.endswith(".") or line.endswith("...")] == []


def commands_below(command: Any) -> Iterator[Any]:
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from commands_below(inner)


def test_every_option_is_described_by_a_sentence() -> None:
    options = [each for command in commands_below(typer.main.get_command(app)) for each in command.params]
    told = {(each.name, each.help) for each in options if each.param_type_name == "option" and not each.hidden}
    assert [(name, text) for name, text in told if not text or not (text[0].isupper() and text.endswith("."))] == []


def test_the_usage_of_a_command_has_each_bracket_once() -> None:
    tree: Any = typer.main.get_command(app)
    usages = [each.get_usage(typer.Context(each, info_name=each.name)) for each in commands_below(tree)]
    assert len(usages) > 60
    assert [usage for usage in usages if "[[" in usage or "]]" in usage] == []


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
        ("pause",),
        ("resume", "an-id", "--filter", "state = PAUSED"),
        ("retry", "an-id", "--inputs", "[1]"),
        ("dead-letters", "requeue"),
        ("dead-letters", "fix", "an-id", "--output", "{"),
        ("dead-letters", "redrive", "--filter", "node = x", "-o", "name"),
        ("events", "x", "--after-seq", "3", "--as-of-seq", "3"),
        ("keys", "create", "VIEWER", "--expires-in", "tomorrow"),
        ("workspace", "update", "team-a"),
        ("list", "--filter", os.fsdecode(b"\xff")),
    ],
)
def test_usage_errors_end_with_2_and_no_traceback(arguments: tuple[str, ...]) -> None:
    refused = windlass(*arguments)
    assert refused.returncode == 2, refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("start", "x", "--input", "@/no/such.json"), "cannot read /no/such.json: No such file or directory"),
        (("start", "x", "--input", "@/dev/null"), "this is empty, and not a JSON object"),
        (("start", "x", "--input", "5"), 'this is not a JSON object: an object has braces, like {"id": 7}'),
        (("workflow", "apply", "/no/such.yaml"), "cannot read /no/such.yaml: No such file or directory"),
        (("start", "x", "--timeout", "0"), "a duration is longer than 0 here"),
        (
            ("circuits", "open", "x", "--for", "soon"),
            "a duration is written like 30s, 1.5s, 250ms, 5m, 1h or 1d, not 'soon'",
        ),
        (
            ("dead-letters", "fix", "x", "--output", "@/no/such.json"),
            "cannot read /no/such.json: No such file or directory",
        ),
        (("replay", "none.jsonl"), "there is no file none.jsonl, and an execution id looks otherwise"),
        (
            ("run", "output", "x.1", "--output", "/no/such/file"),
            "cannot write /no/such/file: No such file or directory",
        ),
        (("run", "output", "x.1", "--output", "/"), "cannot write /: Is a directory"),
        (("events", "x", "--after-seq", "3", "--as-of-seq", "1"), "no event is after 3 and up to 1"),
        (("validate", "/dev/null"), "/dev/null is empty; a definition is an object with name, nodes and edges"),
    ],
)
def test_usage_error_says_what_is_wrong(arguments: tuple[str, ...], said: str) -> None:
    assert windlass(*arguments).stderr.splitlines()[-1].endswith(f": {said}")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("start it", "line 2 is not JSON: Expecting value at character 1"),
        ("[1]", 'line 2 is no request to start: a line is an object, like {"workflow": "w", "input": {}}'),
        ('{"inputt": {}}', "line 2 is no request to start: it has no field 'inputt', but workflow, version, input, "),
    ],
)
def test_a_line_that_is_no_start_is_named_once(line: str, said: str) -> None:
    refused = windlass("start-many", "-", given=f'{{"workflow": "w", "request_id": "r"}}\n{line}\n')
    assert refused.returncode == 2
    assert f": {said}" in refused.stderr.splitlines()[-1]


def test_ids_that_are_no_text_are_refused_in_words(tmp_path: Path) -> None:
    running_home(tmp_path, "127.0.0.1:1")
    # Nothing is sent for the first one either, so nobody is asked where no api answers.
    shown = windlass("cancel", "-", "--home", tmp_path, given=os.fsdecode(b"id\n\xff\xfe\n"), WINDLASS_KEY="k")
    assert shown.returncode == 2
    assert shown.stderr == "an argument, or a line of the standard input, is not text in UTF-8\n"


def test_what_cannot_be_printed_is_said_without_the_number_of_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        shown = subprocess.run(
            [sys.executable, "-m", "windlass.cli", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=os.environ | {"PYTHONUNBUFFERED": ""},
        )
    assert (shown.returncode, shown.stderr) == (1, "cannot go on: No space left on device\n")


def test_a_terminal_that_cannot_show_a_text_is_not_called_a_wrong_argument(tmp_path: Path) -> None:
    shown = windlass("context", "list", XDG_CONFIG_HOME=tmp_path, PYTHONIOENCODING="latin-1")
    assert (shown.returncode, shown.stderr.splitlines()) == (
        1,
        [
            "the terminal cannot show this text, because its encoding is latin-1;",
            "set PYTHONIOENCODING=utf-8, or LANG to a locale with UTF-8",
        ],
    )


def test_no_ids_are_nothing_to_do_and_no_fault(tmp_path: Path) -> None:
    shown = windlass("retry", "-", "--home", tmp_path, given="\n")
    assert (shown.returncode, shown.stdout) == (0, "")
    assert shown.stderr == "there is nothing to do: no id was given, or nothing matches\n"


def test_hint_names_the_home_only_to_our_own_commands(tmp_path: Path) -> None:
    assert as_typed("windlass list", tmp_path).endswith(f" list --home {os.path.relpath(tmp_path)}")
    assert as_typed("grpcurl -plaintext HOST:PORT list", tmp_path) == "grpcurl -plaintext HOST:PORT list"


def test_nothing_running_is_said_with_what_to_do(tmp_path: Path) -> None:
    shown = windlass("list", "--home", str(tmp_path))
    assert shown.returncode == 1
    assert f"windlass.cli up --home {os.path.relpath(tmp_path)}" in shown.stderr
    assert windlass("status", "--home", str(tmp_path)).returncode == 1
    assert windlass("down", "--home", str(tmp_path)).returncode == 0


def test_unreadable_key_is_named(tmp_path: Path) -> None:
    shown = windlass("list", "--home", running_home(tmp_path, "127.0.0.1:1"))
    assert shown.returncode == 1
    assert "admin.key" in shown.stderr
    assert "--key-file" in shown.stderr


def test_unreadable_authority_is_named() -> None:
    shown = windlass("get", "x", "--address", "127.0.0.1:1", "--authority-file", "/no/such.pem", WINDLASS_KEY="k")
    assert shown.returncode == 1
    assert "cannot read the authority in /no/such.pem" in shown.stderr


@pytest.mark.parametrize("address", ["far", "far:", ":7401", "far:x"])
def test_what_is_no_address_is_said_to_be_none(address: str) -> None:
    shown = windlass("get", "x", "--address", address, WINDLASS_KEY="k")
    assert (shown.returncode, shown.stderr) == (2, f"{address!r} is not HOST:PORT, like api.example.org:443\n")


def test_api_that_is_away_is_reported_with_its_code() -> None:
    shown = windlass("get", "x", "--address", "127.0.0.1:1", WINDLASS_KEY="k")
    assert shown.returncode == 1
    assert "no api answers at 127.0.0.1:1" in shown.stderr
    assert "reason: UNAVAILABLE" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_hint_names_the_address_and_the_key_that_were_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("WINDLASS_ADDRESS", raising=False)
    api = Api(address="far:7401", key_file=tmp_path / "my key")
    assert api.typed("windlass runs x").endswith(f" runs x --address far:7401 --key-file '{tmp_path}/my key'")
    assert api.typed("windlass status") == "windlass status"
    monkeypatch.setenv("WINDLASS_ADDRESS", "far:7401")
    assert api.typed("windlass runs x").endswith(f" runs x --key-file '{tmp_path}/my key'")
    assert Api(home=tmp_path / "a home").typed("windlass runs x").endswith("/a home'")
