"""A definition is validated without a stack, and nothing is loaded that this does not need."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import windlass

BAD = "name: x\nnodes:\n  - id: a\n    module: http.request@1\n    config: {uri: x}\n"
GOOD = "name: x\nnodes:\n  - {id: a, module: billing.charge@1}\n"


@pytest.mark.parametrize("command", [("validate",), ("workflow", "validate")])
def test_faults_are_told_with_line_and_node(tmp_path: Path, command: tuple[str, ...]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    shown = windlass(*command, str(file), "--offline", "--home", str(tmp_path))
    assert shown.returncode == 1
    unknown, missing = shown.stdout.splitlines()
    place = "fault: line 5, node a: nodes[0].config."
    assert unknown.startswith(f"{place}uri: there is no such field; known fields: body, headers, json, method, query")
    assert missing.startswith(f"{place}url: must be set: a url is text that begins with http:// or https:// (REQUIRED)")


def test_what_is_good_ends_with_0() -> None:
    shown = windlass("validate", "-", "--offline", given=GOOD)
    assert (shown.returncode, shown.stdout.splitlines()[-1]) == (0, "no fault")
    assert "warning: line 3, node a: nodes[0].module: billing.charge@1 is not built in" in shown.stdout


def test_json_is_read_as_json(tmp_path: Path) -> None:
    file = tmp_path / "twice.json"
    file.write_text('{"name": "x", "name": "y"}')
    shown = windlass("validate", str(file), "--offline", "--json")
    assert shown.returncode == 1
    assert '"reason": "DUPLICATE_KEY"' in shown.stdout


@pytest.mark.parametrize("given", ["", " \n", "\udcff"])
def test_no_text_is_a_usage_error(given: str) -> None:
    shown = windlass("validate", "-", "--offline", given=given)
    assert (shown.returncode, "Traceback" in shown.stderr) == (2, False)


def test_importing_the_language_loads_no_library() -> None:
    program = "import sys, windlass.definition.examination; print('\\n'.join(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    heavy = {"yaml", "minijinja", "jsonschema_rs", "orjson", "grpc", "google.protobuf", "services", "typer"}
    assert set(shown.stdout.split()) & heavy == set()
