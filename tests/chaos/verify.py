"""Runs `windlass admin verify` on a stack, which checks every promise that rows can show and counts its cases."""

import asyncio
import json
import subprocess
import sys

from tests.chaos.history import History, cases, faults_of
from tests.chaos.load import Load
from tests.support.stack import Stack

# Any workload must have shown at least one case of each of these.
SHOWN = {"S1", "S2", "S3", "S6", "S7", "S8", "S9", "S10", "S11", "S12"}
# A workload whose starts have request keys shows these too, while some of it is going.
SHOWN_UNDER_LOAD = SHOWN | {"S4", "S5", "S13", "S14"}
# A workload that has lost a coordinator while runs were under way shows this too.
TAKE_OVER = "S26"
HELD = 3


async def verify(stack: Stack, shown: set[str] = SHOWN) -> None:
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
    assert {promise for promise in shown if not seen.get(promise)} == set(), seen


async def verify_history(stack: Stack, load: Load, history: History, *also: str) -> None:
    """Check that nothing is lost or done again, that the stack still works, and that its rows keep the promises."""
    faults = faults_of(history)
    assert not faults, faults
    assert all(cases(history).values()), cases(history)
    await load.final(await load.start("chaos-row"))
    await verify_under_load(stack, load, *also)


async def verify_under_load(stack: Stack, load: Load, *also: str) -> None:
    """Verify while executions are going, so that there are slots, leases and holders to judge."""
    async with load.held(HELD):
        await verify(stack, SHOWN_UNDER_LOAD | set(also))
