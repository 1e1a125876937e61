"""One child process: it is started through the launcher, watched, and stopped in time.

Hazards: children are started from the main thread (launch.py says why). A child has its own process group. The whole
group is killed when the child does not end in time, so that processes of a runner's modules end with it.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.local.launch import CONFINED, launcher, tell
from deploy.local.plan import Member
from deploy.local.secret import SETTING, ServiceSecret

PROBE_SECONDS = 0.05
PROBE_TIMEOUT_SECONDS = 1.0
LOG_LINES_SHOWN = 15
# The signal for a child when the supervisor dies. PostgreSQL ends then too, so a drain is pointless, and the ports are
# free at once for the next start.
DEATH_SIGNAL = "SIGKILL"
# A port that is not open yet is tried again as often as we probe; gRPC's default is seconds.
CHANNEL_OPTIONS = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100)]


class ChildFailed(Exception):
    """A process ended before it was ever ready; the message holds the end of its log."""


class Child:
    def __init__(
        self, member: Member, log: Path, secret: ServiceSecret, changed: Callable[[], None], say: Callable[[str], None]
    ) -> None:
        self.member = member
        self.name = member.name
        self.is_ready = False
        self.start_time = 0.0
        self._log = log
        # The log is that of all processes of this name. The lines of the present one begin here.
        self._log_start = 0
        self._secret = secret
        self._changed = changed
        self._say = say
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Return when the process says SERVING; ChildFailed when it ends before."""
        await self._spawn()
        assert self._process is not None
        ended = asyncio.create_task(self._process.wait())
        serving = asyncio.create_task(serving_at(self.member.grpc))
        try:
            await asyncio.wait({ended, serving}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise ChildFailed(self._obituary(ended.result()))
        finally:
            ended.cancel()
            serving.cancel()
        self.is_ready = True
        self._changed()

    async def wait(self) -> int:
        """Return the exit code when the process, and with it its group, has ended."""
        assert self._process is not None
        code = await self._process.wait()
        self._kill_group()
        self.is_ready = False
        return code

    async def stop(self, seconds: float) -> None:
        """Send SIGTERM, and SIGKILL when the time is over. Nobody may start it again meanwhile."""
        if self._process is None or self._process.returncode is not None:
            return
        tell(self._process.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            self._say(f"{self.name} did not end within {seconds:g} s and is killed")
        self._kill_group()
        await self._process.wait()

    async def _spawn(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "WINDLASS_DATABASE_URL"}
        rights: tuple[str, ...] = ()
        if self.member.runs_modules:
            rights = CONFINED
        else:
            environment[SETTING] = self._secret.path
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *launcher(DEATH_SIGNAL, *rights),
                # -P: a folder named `services` in the current directory must not hide ours.
                *(sys.executable, "-P", "-m", f"services.{self.member.service}"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment | dict(self.member.env),
                pass_fds=() if self.member.runs_modules else (self._secret.descriptor,),
            )
        self.start_time = time.time()
        self._changed()

    def _kill_group(self) -> None:
        assert self._process is not None
        # These errors mean that the whole group has ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _obituary(self, code: int) -> str:
        content = self._log.read_bytes()
        # The log may have begun again meanwhile (logs.py).
        written = content[self._log_start if self._log_start <= len(content) else 0 :].decode(errors="replace")
        head = f"{self.name} ended before it was ready ({reason_of(code)}); the end of {self._log}:"
        return "\n".join([head, *readable(written)[-LOG_LINES_SHOWN:]])


def readable(log: str) -> list[str]:
    """The lines of a log, each traceback in place of the JSON that holds it."""
    lines: list[str] = []
    for line in log.splitlines():
        try:
            lines += json.loads(line)["exception"].splitlines()
        except (ValueError, TypeError, LookupError, AttributeError):
            lines.append(line)
    return lines


async def serving_at(address: str) -> None:
    """Return when the health service at `address` says SERVING."""
    check: Callable[..., Awaitable[health_pb2.HealthCheckResponse]]
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]
        while True:
            try:
                answer = await check(health_pb2.HealthCheckRequest(), timeout=PROBE_TIMEOUT_SECONDS)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.aio.AioRpcError:
                pass  # not listening yet
            await asyncio.sleep(PROBE_SECONDS)


def reason_of(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
