"""The client in TypeScript (examples/typescript): it is generated, type-checked, and works on a real stack."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.api import Client
from tests.support.stack import Stack

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/typescript"
STEP_SECONDS = 600
# The first run downloads the generator and the compiler.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]


def done(*command: str) -> subprocess.CompletedProcess[str]:
    """A command of the example's page, at the root of the project."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=STEP_SECONDS, check=False
    )


@pytest.fixture(scope="module")
def program() -> Path:
    if shutil.which("npm") is None:
        pytest.skip("no Node to build it with")
    installed = done("npm", "install", "--silent", "--prefix", "examples/typescript")
    assert installed.returncode == 0, installed.stderr
    generated = done("buf", "generate", "--template", "examples/typescript/buf.gen.yaml")
    assert generated.returncode == 0, generated.stderr
    # It checks the types of everything that was generated, not only of what the client uses.
    checked = done("npx", "--prefix", "examples/typescript", "tsc", "-p", "examples/typescript")
    assert checked.returncode == 0, checked.stdout
    return EXAMPLE / "out/client.js"


def test_every_contract_of_clients_and_runners_is_generated(program: Path) -> None:
    assert program.exists()
    contracts = [*(ROOT / "protos/windlass/api").rglob("*.proto"), *(ROOT / "protos/windlass/types").rglob("*.proto")]
    contracts.append(ROOT / "protos/windlass/coordinator/v1/sessions.proto")
    for contract in contracts:
        made = EXAMPLE / "gen" / contract.relative_to(ROOT / "protos").with_suffix("")
        assert made.with_name(f"{made.name}_pb.ts").exists(), contract


async def test_client_starts_an_execution_and_prints_its_end(
    program: Path, shared_stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [{"id": "a", "module": "transform@1", "inputs": {"x": "{{ input.n * 2 }}"}}]
    await Client(shared_stack).apply("typed", nodes, output={"x": "{{ nodes.a.output.x }}"})
    monkeypatch.setenv("WINDLASS_ADDRESS", shared_stack.member("api").grpc)
    monkeypatch.setenv("WINDLASS_KEY_FILE", str(shared_stack.home.key_file("admin")))
    ended = done("node", str(program), "typed", '{"n": 21}')
    assert ended.stdout == 'SUCCESS {"x":42}\n', ended.stderr
    refused = done("node", str(program), "no-such-workflow")
    assert refused.returncode == 1
    assert refused.stderr.startswith("WORKFLOW_NOT_FOUND ")
