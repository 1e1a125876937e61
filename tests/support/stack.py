"""A whole stack of real processes for a test: `windlass up` on free ports, with leases at a tenth of their times.

    async with running_stack(coordinators=3) as stack:
        channel = stack.channel()                          # to the api, with the ADMIN key
        pid = stack.kill("coordinator", 1)                 # SIGKILL; the supervisor starts it again
        await stack.ready_again("coordinator", 1, pid)

The test fails unless everything that the stack started is gone at its end: `windlass up` is told to stop, has to do so
within the promised time (otherwise it is killed), and no pid that was ever seen may be left.

Hazards: with `own_postgres` the server belongs to the test (`stack.postgres`), which may stop it for any time.
Otherwise it belongs to the supervisor, which starts a dead server again at once.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psutil
import psycopg

from deploy.local.home import Home
from deploy.local.launch import launcher, tell
from deploy.local.plan import OFFSETS, Member, Options, members, on_free_ports, postgres_port
from deploy.local.postgres import PostgresServer
from deploy.local.secret import SETTING
from tests.support.postgres import WORKER, WORKERS, free_port, reachable_directory
from tests.support.probe import until

WINDLASS = (sys.executable, "-m", "windlass.cli")
READY_SECONDS = 60.0
# The promised time in which a stack ends.
STOP_SECONDS = 15.0


@dataclass
class Stack:
    """One running `windlass up`."""

    options: Options
    process: asyncio.subprocess.Process
    output: Path
    postgres: PostgresServer | None
    seen: set[int] = field(default_factory=set)
    _stopped: set[int] = field(default_factory=set)
    _channels: list[grpc.aio.Channel] = field(default_factory=list)

    @property
    def home(self) -> Home:
        return Home(self.options.home)

    def up(self) -> dict[str, Any]:
        """up.json as it is now."""
        found = self.home.read_up()
        assert found is not None, f"the stack is not up:\n{self.output.read_text()}"
        self.seen.update(each["pid"] for each in found["processes"])
        if found["postgres"]["pid"] is not None:
            self.seen.add(found["postgres"]["pid"])
        return found

    def entries(self, service: str) -> list[dict[str, Any]]:
        return [each for each in self.up()["processes"] if each["service"] == service]

    def pid(self, service: str, replica: int = 0) -> int:
        return int(next(each["pid"] for each in self.entries(service) if each["replica"] == replica))

    def member(self, service: str, replica: int = 0) -> Member:
        """The process with its planned addresses, which it keeps while it is down."""
        planned = members(self.options, self.home)
        return next(each for each in planned if (each.service, each.replica) == (service, replica))

    def key(self, name: str = "admin") -> str:
        return self.home.key_file(name).read_text().strip()

    def service_secret_file(self) -> Path:
        """The open file of a service that has the secret. Only a process that is not confined can read it."""
        pid = self.pid("api")
        descriptor = psutil.Process(pid).environ()[SETTING].rpartition("/")[2]
        return Path(f"/proc/{pid}/fd/{descriptor}")

    def metadata(self, key: str = "admin") -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self.key(key)}")]

    def channel(self, service: str = "api", replica: int = 0) -> grpc.aio.Channel:
        """A channel that is closed with the stack. Calls need `metadata=stack.metadata()`."""
        options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
        made = grpc.aio.insecure_channel(self.member(service, replica).grpc, options=options)
        self._channels.append(made)
        return made

    def log(self, service: str, replica: int = 0) -> str:
        return self.home.log_file(service, replica).read_text()

    def kill(self, service: str, replica: int = 0, how: signal.Signals = signal.SIGKILL) -> int:
        """Send the signal, and return the pid that got it."""
        pid = self.pid(service, replica)
        os.kill(pid, how)
        return pid

    @contextlib.contextmanager
    def stopped(self, service: str, replica: int = 0) -> Iterator[int]:
        """The process is stopped by SIGSTOP inside the block, and continued after it."""
        pid = self.kill(service, replica, signal.SIGSTOP)
        self._stopped.add(pid)
        try:
            yield pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            self._stopped.discard(pid)

    async def ready_again(self, service: str, replica: int, previous_pid: int, seconds: float = READY_SECONDS) -> int:
        """The pid of the successor, once it is ready."""

        def successor() -> int | None:
            for each in self.entries(service):
                if each["replica"] == replica and each["pid"] != previous_pid and each["ready"]:
                    return int(each["pid"])
            return None

        return await until(successor, seconds, f"{service}-{replica} to run again")

    def kill_postgres(self, how: signal.Signals = signal.SIGKILL) -> int:
        """End the embedded server. The supervisor starts it again."""
        pid = self.up()["postgres"]["pid"]
        assert isinstance(pid, int), "the server is the test's own: stack.postgres"
        os.kill(pid, how)
        return pid

    async def postgres_again(self, previous_pid: int, seconds: float = READY_SECONDS) -> int:
        def successor() -> int | None:
            pid = self.up()["postgres"]["pid"]
            return int(pid) if pid is not None and pid != previous_pid else None

        return await until(successor, seconds, "PostgreSQL to run again")

    def superuser_url(self, database: str = "windlass") -> str:
        """The address at which a test looks into the database itself."""
        if self.postgres is not None:
            return self.postgres.url(database)
        password = self.home.password_file("postgres").read_text().strip()
        return f"postgresql://windlass:{password}@127.0.0.1:{postgres_port(self.options)}/{database}"

    async def metrics(self, service: str, replica: int = 0) -> str:
        """The page that a process shows to Prometheus."""
        page = f"http://{self.member(service, replica).metrics}/metrics"
        with await asyncio.to_thread(urllib.request.urlopen, page, timeout=5) as answer:
            return str(answer.read().decode())

    async def rows(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """The rows that a statement finds in the database."""
        async with await psycopg.AsyncConnection.connect(self.superuser_url()) as connection:
            return await (await connection.execute(sql.encode(), params)).fetchall()

    async def counts(self, *tables: str) -> dict[str, int]:
        """The number of rows in each table, all at one moment."""
        (found,) = await self.rows(f"SELECT {', '.join(f'(SELECT count(*) FROM {table})' for table in tables)}")
        return dict(zip(tables, found, strict=True))

    async def close(self) -> list[str]:
        """End it as Ctrl-C would, and return the faults of its end. All processes are gone afterwards."""
        for channel in self._channels:
            await channel.close(None)
        for pid in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        if self.home.read_up() is not None:
            self.up()
        faults = []
        if not await self._ends_by_itself():
            faults.append(f"windlass up did not stop within {STOP_SECONDS:g} s:\n{self.output.read_text()}")
            tell(self.process.pid, signal.SIGKILL)
            await self.process.wait()
        left = [pid for pid in self.seen if is_alive(pid)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return [*faults, f"left behind: {left}"] if left else faults

    async def _ends_by_itself(self) -> bool:
        if self.process.returncode is not None:
            return True
        tell(self.process.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.process.wait()
        except TimeoutError:
            return False
        return True


@contextlib.asynccontextmanager
async def running_stack(
    *,
    apis: int = 1,
    dispatchers: int = 1,
    coordinators: int = 1,
    runners: int = 1,
    modules: Sequence[Path] = (),
    lease_scale: float = 0.1,
    otlp_endpoint: str | None = None,
    allow_net: Sequence[str] = (),
    restart: bool = True,
    extra_env: Sequence[str] = (),
    own_postgres: bool = False,
    home: Path | None = None,
    port_offset: int | None = None,
    program: Sequence[str] = WINDLASS,
) -> AsyncIterator[Stack]:
    """A ready stack. A test that starts the same stack again gives `home` and `port_offset`. A benchmark that runs the
    code of another work tree gives its `program`."""
    place = home or reachable_directory("windlass-stack-")
    options = Options(
        home=place,
        port_offset=0 if port_offset is None else port_offset,
        replicas={"api": apis, "dispatcher": dispatchers, "coordinator": coordinators, "runner": runners},
        modules=modules,
        lease_scale=lease_scale,
        otlp_endpoint=otlp_endpoint,
        allow_net=allow_net,
        restart=restart,
        extra_env=extra_env,
    )
    if port_offset is None:
        options = free_options(options)
    postgres = await _postgres_in(place) if own_postgres else None
    stack = await start_stack(options, postgres, program)
    try:
        await stack_is_up(stack)
        yield stack
    finally:
        faults = await stack.close()
        if postgres is not None:
            await postgres.stop()
        if home is None:
            shutil.rmtree(place, ignore_errors=True)
        assert not faults, "\n".join(faults)


async def start_stack(
    options: Options, postgres: PostgresServer | None = None, program: Sequence[str] = WINDLASS
) -> Stack:
    """Start `windlass up` as a child that dies with us. It is not ready yet."""
    output = options.home / "up.log"
    output.parent.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    if postgres is not None:
        environment["WINDLASS_DATABASE_URL"] = postgres.url()
    with output.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *launcher("SIGTERM"),
            *program,
            *command_line(options),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
        )
    return Stack(options, process, output, postgres, seen={process.pid})


def command_line(options: Options) -> list[str]:
    """The options as a person would type them."""
    line = ["up", "--home", str(options.home)]
    line += ["--port-offset", str(options.port_offset), "--lease-scale", str(options.lease_scale)]
    for service, count in options.replicas.items():
        line += [f"--{service}s", str(count)]
    for module in options.modules:
        line += ["--modules", str(module)]
    for network in options.allow_net:
        line += ["--allow-net", network]
    for entry in options.extra_env:
        line += ["--env", entry]
    if options.otlp_endpoint:
        line += ["--otlp-endpoint", options.otlp_endpoint]
    return line if options.restart else [*line, "--no-restart"]


async def stack_is_up(stack: Stack, seconds: float = READY_SECONDS) -> None:
    def ready() -> bool:
        assert stack.process.returncode is None, f"windlass up has ended:\n{stack.output.read_text()}"
        found = stack.home.read_up()  # a killed stack may have left its file behind
        return found is not None and found["pid"] == stack.process.pid

    await until(ready, seconds, "the stack to be up")
    stack.up()


def free_options(options: Options) -> Options:
    """The options with an offset at which every port is free. The workers of one run begin far from each other."""
    return on_free_ports(options, first=os.getpid() + WORKER * len(OFFSETS) // WORKERS)


def is_alive(pid: int) -> bool:
    """A zombie is dead. Its parent has only not asked yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _postgres_in(place: Path) -> PostgresServer:
    server = PostgresServer(
        place / "test-postgres",
        port=free_port(),
        log=place / "test-postgres.log",
        password_file=place / "test-postgres.password",
    )
    await server.start()
    return server
