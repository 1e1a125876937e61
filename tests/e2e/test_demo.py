"""`make demo` ends by itself with a result, and the commands that it prints work as printed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.support.stack import running_stack

ROOT = Path(__file__).resolve().parents[2]
DEMO_SECONDS = 110


def run(line: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, capture_output=True, text=True, timeout=DEMO_SECONDS, check=False, cwd=ROOT)


async def test_demo_tells_its_story_and_its_commands_work_as_printed() -> None:
    told = run([sys.executable, "-m", "windlass.cli", "demo"])
    assert told.returncode == 0, told.stdout + told.stderr
    assert "The result: SUCCESS" in told.stdout
    for happened in ("RunFailed", "carrier failed once", "quick_check was skipped", "is on its way"):
        assert happened in told.stdout

    printed = [shlex.split(line) for line in re.findall(r"^  (\S+ -m windlass.cli .+)$", told.stdout, re.MULTILINE)]
    assert printed[0][-1] == "up"
    async with running_stack() as stack:
        outcomes = [run([*words, "--home", str(stack.options.home)]) for words in printed[1:]]
    *good, misfit, listed = outcomes
    assert [each.returncode for each in (*good, listed)] == [0] * (len(good) + 1), [each.stderr for each in outcomes]
    assert misfit.returncode == 1
    assert "INPUT_MISMATCH" in misfit.stderr
    assert listed.stdout.count("SUCCESS") == 2
