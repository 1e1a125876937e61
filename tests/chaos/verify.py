"""`windlass admin verify` on a stack: every promise that rows can show, with the number of cases it saw."""

import asyncio
import json
import subprocess
import sys

from tests.support.stack import Stack

# What a workload of chaos must have shown at least one case of.
SHOWN = {"S1", "S2", "S6", "S7", "S8", "S9", "S10"}


async def verify(stack: Stack) -> None:
    """Fails with the lines of the promises that are broken."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "windlass.cli", "admin", "verify", "--home", str(stack.home.root)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = await child.communicate()
    lines = [json.loads(line) for line in output.splitlines()]
    assert child.returncode == 0, f"{[line for line in lines if line.get('broken')]}\n{errors.decode()}"
    seen = {line["promise"]: line["cases"] for line in lines}
    assert {promise for promise in SHOWN if not seen.get(promise)} == set(), seen
