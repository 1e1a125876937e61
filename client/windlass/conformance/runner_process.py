"""The process of the runner under test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path


class RunnerProcess:
    """Starts a command with the addresses of the kit and a key in its environment:

    WINDLASS_COORDINATORS      host:port,host:port
    WINDLASS_RUNNER_KEY_FILE   a file with the key that every stream must have
    """

    def __init__(self, command: str, addresses: Sequence[str], key_file: Path, log: Path) -> None:
        self.log = log
        self._words = shlex.split(command)
        self._environment = {
            **os.environ,
            "WINDLASS_COORDINATORS": ",".join(addresses),
            "WINDLASS_RUNNER_KEY_FILE": str(key_file),
        }
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._words,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A command may be a shell or `env`; the whole group is ended.
                start_new_session=True,
            )

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    async def wait(self, seconds: float) -> int | None:
        """The exit code; None when it has not ended in that time."""
        assert self._process is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._process.wait()
        return None

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._signal(signal.SIGKILL)
            await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
