"""Installs a peer in .tools/peer-NAME, and runs its processes.

Hazard: processes are ended by SIGKILL, because their data is thrown away. Children that they have would stay behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from deploy.local.launch import launcher, tell
from tests.support.postgres import reachable_directory

ROOT = Path(__file__).resolve().parents[2]


def home(peer: str) -> Path:
    """The directory with everything that is installed for this peer."""
    return ROOT / ".tools" / f"peer-{peer}"


def sources(peer: str) -> Path:
    """The folder of this peer in our tree."""
    return ROOT / "benchmarks/peers" / peer


def python(peer: str) -> str:
    """The interpreter of its environment."""
    return str(home(peer) / "bin/python")


def make_environment(peer: str) -> None:
    """Install the packages of its requirements.txt from the package index."""
    if not Path(python(peer)).exists():
        subprocess.run([sys.executable, "-m", "venv", str(home(peer))], check=True)
    pip = [python(peer), "-m", "pip", "install", "--quiet", "--requirement", "requirements.txt"]
    subprocess.run(pip, check=True, cwd=sources(peer))


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for one round's data and logs."""
    place = reachable_directory("windlass-bench-")
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.asynccontextmanager
async def running(
    *command: str, log: Path, folder: Path = ROOT, variables: Mapping[str, str] | None = None, stdout: int | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that ends with the block, and also when we are killed. Its output goes to the log."""
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *launcher("SIGKILL"),
            *command,
            stdin=subprocess.DEVNULL,
            stdout=output if stdout is None else stdout,
            stderr=output,
            cwd=folder,
            env=variables,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            tell(process.pid, signal.SIGKILL)
        await process.wait()


async def figures(peer: str, *arguments: str, log: Path) -> dict[str, Any]:
    """The line that the workloads of this peer print at their end."""
    command = [python(peer), str(sources(peer) / "workloads.py"), *arguments]
    # The workloads import those of our modules that need nothing but psutil installed.
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    async with running(*command, log=log, variables=variables, stdout=subprocess.PIPE) as process:
        output, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{peer} ended with {process.returncode}:\n{end_of(log)}")
    line: dict[str, Any] = json.loads(output.splitlines()[-1])
    return line


def end_of(log: Path) -> str:
    """The end of the log, for the text of an error."""
    return log.read_text(errors="replace")[-2_000:]
