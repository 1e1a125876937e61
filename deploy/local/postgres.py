"""The embedded PostgreSQL: we make, start, watch and stop it.

It is configured like a production server (postgresql.conf): fsync on, scram passwords, loopback only, an unprivileged
user. We add the life cycle:

- The data directory is made whole or not at all: initdb writes beside it, and the result is renamed into place.
- There is one server per data directory. The server *inherits* a lock on `<data>.lock`. While it or one of its backends
  lives, even orphaned, the lock is taken, and the next start waits and says so.
- The server dies with its supervisor. The death signal is SIGINT, PostgreSQL's fast shutdown: it ends sessions and
  writes a checkpoint, so that the next start needs no recovery.
- After a SIGKILL of everything it recovers from its log, however long that takes. It is ready when a login works.

Hazard: `postmaster.pid` survives a SIGKILL. Another process of the same user may have its pid by now, which makes
PostgreSQL refuse to start. Our lock proves that no server of this directory lives, so the file is removed.
"""

import asyncio
import contextlib
import itertools
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import psycopg

from deploy.local import binaries, ports
from deploy.local.files import sync_directory, try_lock, write_private
from deploy.local.launch import launcher, tell
from services.chassis.process.backoff import Backoff

SUPERUSER = "windlass"
CONNECT_TIMEOUT_SECONDS = 5
REPORT_EVERY_SECONDS = 5

# With these settings of glibc a backend keeps a statement's memory for the next one. Returning it and faulting it in
# again took an eighth of the server's cost of a flush of the coordinator.
ENVIRONMENT = {
    "PATH": os.defpath,
    "LC_ALL": "C",
    "TZ": "UTC",
    "MALLOC_TRIM_THRESHOLD_": "16777216",
    "MALLOC_TOP_PAD_": "1048576",
}

INITDB = (
    "--auth=scram-sha-256",
    "--encoding=UTF8",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--locale=C",
)

Say = Callable[[str], None]


@contextlib.asynccontextmanager
async def reporting(report: Say, text: Callable[[], str]) -> AsyncIterator[None]:
    """Report the text every five seconds for as long as the block takes."""

    async def repeat() -> None:
        for seconds in itertools.count(REPORT_EVERY_SECONDS, REPORT_EVERY_SECONDS):
            await asyncio.sleep(REPORT_EVERY_SECONDS)
            report(f"{text()} ({seconds} s so far)")

    reporter = asyncio.create_task(repeat())
    try:
        yield
    finally:
        reporter.cancel()


class PostgresFailed(Exception):
    """The server could not be made or started; the message says why and where its log is."""


class PostgresServer:
    """One data directory and, while it runs, the server on it.

    The caller wants the data in `directory`; for root it may be elsewhere (binaries.reachable_place).
    """

    name = "PostgreSQL"

    def __init__(
        self, directory: Path, *, port: int, log: Path, password_file: Path, report: Say = lambda _text: None
    ) -> None:
        self._account = binaries.unprivileged_account()
        self._wanted = directory
        self.data = binaries.reachable_place(self._account, directory)
        self.port = port
        self._log = log
        self._password_file = password_file
        self._report = report
        self._process: asyncio.subprocess.Process | None = None
        self._lock: int | None = None
        self.start_time = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def password(self) -> str:
        return self._password_file.read_text().strip()

    def url(self, database: str = "postgres") -> str:
        """The superuser's address, for making roles and databases; services never use it."""
        return f"postgresql://{SUPERUSER}:{self.password}@127.0.0.1:{self.port}/{database}"

    async def start(self) -> None:
        """Make the data directory if there is none, and return when logins work."""
        if self.data != self._wanted:
            self._report(f"PostgreSQL never runs as root and cannot reach {self._wanted}; its data is in {self.data}")
        self.data.parent.mkdir(parents=True, exist_ok=True)
        await self._take_lock()
        ports.require_free("127.0.0.1", self.port, "PostgreSQL")
        if not (self.data / "PG_VERSION").exists():
            await self._initialise()
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self._write_settings()
        self._process = await self._launch("postgres", ["-D", str(self.data)], death_signal="SIGINT")
        self.start_time = time.time()
        backoff = Backoff(first=0.02, cap=0.5)
        async with reporting(self._report, lambda: "PostgreSQL is recovering"):
            while not await self._answers():  # noqa: ASYNC110 - no event tells that a login works
                await asyncio.sleep(backoff.next())

    async def wait(self) -> int:
        """Return the exit code when the server has ended."""
        assert self._process is not None, "not started"
        return await self._process.wait()

    async def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: fast and clean. SIGQUIT: immediate, with recovery at the next start. SIGKILL: like a crash."""
        if self._process is not None:
            if self._process.returncode is None:
                tell(self._process.pid, how)
            await self._process.wait()
        self._release_lock()

    async def _take_lock(self) -> None:
        # A restart waits here too: backends of a killed server may live on for a moment and hold the inherited lock.
        self._release_lock()
        lock = os.open(self.data.with_name(self.data.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        backoff = Backoff(first=0.02, cap=0.5)
        async with reporting(self._report, lambda: "waiting for the previous PostgreSQL on this data to end"):
            while not try_lock(lock):
                self._end_orphan()
                await asyncio.sleep(backoff.next())
        self._lock = lock

    def _end_orphan(self) -> None:
        """Ask a server that outlived its supervisor to end. It is ours if our data is its working directory."""
        # Errors mean that there is none, or that it has ended. The lock alone decides.
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
            if Path(f"/proc/{pid}/cwd").readlink() == self.data:
                os.kill(pid, signal.SIGINT)

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _initialise(self) -> None:
        self._report("making a new database")
        password = secrets.token_urlsafe(24)
        write_private(self._password_file, password)
        aside = self.data.with_name(self.data.name + ".new")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(mode=0o700)
        handed = aside.with_name(aside.name + ".pw")
        write_private(handed, password)
        self._hand_over(aside, handed)
        options = ["-D", str(aside), f"--username={SUPERUSER}", f"--pwfile={handed}", *INITDB]
        try:
            process = await self._launch("initdb", options, death_signal="SIGKILL")
            code = await process.wait()
        finally:
            handed.unlink(missing_ok=True)
        if code != 0:
            raise PostgresFailed(f"initdb ended with {code}; see {self._log}")
        aside.rename(self.data)
        sync_directory(self.data.parent)

    def _write_settings(self) -> None:
        """Write the whole postgresql.conf at every start, so that no old value remains."""
        path = self.data / "postgresql.conf"
        settings = Path(__file__).with_name("postgresql.conf").read_text(encoding="utf-8")
        path.write_text(f"{settings}port = {self.port}\n")
        self._hand_over(path)

    def _hand_over(self, *paths: Path) -> None:
        """Make the account of the server the owner."""
        if self._account is not None:
            for path in paths:
                os.chown(path, self._account.pw_uid, self._account.pw_gid)

    async def _launch(self, program: str, args: Sequence[str], *, death_signal: str) -> asyncio.subprocess.Process:
        account = self._account
        rights = [] if account is None else ["--uid", str(account.pw_uid), "--gid", str(account.pw_gid)]
        self._log.parent.mkdir(parents=True, exist_ok=True)
        assert self._lock is not None
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *launcher(death_signal, *rights),
                *(str(binaries.programs(account) / program), *args),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=ENVIRONMENT,
                pass_fds=(self._lock,),
            )

    async def _answers(self) -> bool:
        """True when a login works. Raises PostgresFailed when none ever will."""
        assert self._process is not None
        code = self._process.returncode
        if code is not None:
            raise PostgresFailed(f"PostgreSQL ended with {code} while starting; see {self._log}")
        try:
            connection = await psycopg.AsyncConnection.connect(self.url(), connect_timeout=CONNECT_TIMEOUT_SECONDS)
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise PostgresFailed(f"the password in {self._password_file} is not that of {self.data}") from error
            return False
        await connection.close()
        return True
