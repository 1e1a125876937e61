"""`windlass up`: starts PostgreSQL, the schemas, the keys and the four services, keeps them running, and stops them.

A start goes in this order: the home's lock, the ports, PostgreSQL, roles and schemas, keys, then all services at once
(each waits for the others), then up.json. A stop goes in this order: api, runners, coordinators, dispatchers,
PostgreSQL, so that each can still report to the next. It takes at most 15 s; what has not ended by then is killed.

Hazards: up.json lists living processes only and is rewritten at each change, so it may lack a replica that is being
restarted. Everything runs in one task group: an error stops the whole stack in the same order.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from deploy.local import ports, provision
from deploy.local.child import Child, ChildFailed, reason_of
from deploy.local.files import write_private
from deploy.local.home import RUNNING, STOPPING, Home
from deploy.local.installation import ensure_keys, prepare
from deploy.local.logs import keep_bounded
from deploy.local.plan import LOOPBACK, STOP_SECONDS, Options, members, port_of, postgres_port, write_peers
from deploy.local.postgres import PostgresFailed, PostgresServer, Say, reporting
from deploy.local.secret import ServiceSecret
from services.chassis.telemetry.logs import setup_logging

POSTGRES_STOP_SECONDS = 2.0
BACKOFF_SECONDS_FIRST = 0.2
BACKOFF_SECONDS_MAX = 2.0
# After a life of this length the backoff begins at its first value again.
STEADY_SECONDS = 10.0


class Supervisor:
    def __init__(self, options: Options, say: Say) -> None:
        self.options = options
        self._say = say
        self.home = Home(options.home)
        self._postgres: PostgresServer | None = None
        self._children: list[Child] = []
        self._is_up = False
        self._stop = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None
        self._keepers: list[asyncio.Task[None]] = []

    def stop(self) -> None:
        """End the stack, or the start of it."""
        self._stop.set()
        if self._starting is not None:
            self._starting.cancel()

    async def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Return when the stack was told to stop and has ended. Raises what kept it from starting."""
        self._starting = asyncio.current_task()
        try:
            async with self.running():
                self._starting = None
                on_ready()
                await self._stop.wait()
                self._say("stopping")
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The stack is up inside the block, and is stopped after it."""
        setup_logging(service="up", level="WARNING")  # a person reads `say`, not the log
        self.home.take()
        secret = ServiceSecret()
        self._children = [
            Child(member, self.home.log_file(member.service, member.replica), secret, self._changed, self._say)
            for member in members(self.options, self.home)
        ]
        for child in self._children:
            for purpose, address in child.member.addresses().items():
                ports.require_free(LOOPBACK, port_of(address), f"{child.name} ({purpose})")
        try:
            async with asyncio.TaskGroup() as keepers:
                try:
                    await self._start(keepers)
                    yield
                finally:
                    await self._end()
        finally:
            secret.close()
            self.home.forget_up()

    async def _start(self, keepers: asyncio.TaskGroup) -> None:
        self._keepers.append(keepers.create_task(keep_bounded(self.home.logs)))
        superuser_url = await self._database(keepers)
        write_private(self.home.operator_url_file, superuser_url)
        await prepare(self.home, superuser_url)
        await ensure_keys(self.home, superuser_url)
        write_peers(self.home, [child.member for child in self._children])
        self._say("starting " + ", ".join(child.name for child in self._children))
        async with reporting(self._say, self._awaited), asyncio.TaskGroup() as starting:
            for child in self._children:
                starting.create_task(child.start())
        for child in self._children:
            self._keepers.append(keepers.create_task(self._keep(child)))
        self._is_up = True
        self._changed()
        self.home.tell(RUNNING)

    def _awaited(self) -> str:
        return "waiting for " + ", ".join(child.name for child in self._children if not child.is_ready)

    async def _database(self, keepers: asyncio.TaskGroup) -> str:
        """The operator's address of the database server. The embedded server is started here."""
        if self.options.database_url is not None:
            host, port = provision.address_of(self.options.database_url)
            self._say(f"the database is in PostgreSQL at {host}, port {port}")
            return self.options.database_url
        self._postgres = PostgresServer(
            self.home.postgres,
            port=postgres_port(self.options),
            log=self.home.logs / "postgres.log",
            password_file=self.home.password_file("postgres"),
            report=self._say,
        )
        await self._postgres.start()
        self._keepers.append(keepers.create_task(self._keep(self._postgres)))
        return self._postgres.url()

    async def _keep(self, part: Child | PostgresServer) -> None:
        """Start a process again when it has ended, with backoff when it dies young."""
        pause = BACKOFF_SECONDS_FIRST
        while True:
            since = time.monotonic()
            code = await part.wait()
            self._changed()
            self._say(f"{part.name} ended ({reason_of(code)})" + ("" if self.options.restart else ", and is left so"))
            if not self.options.restart:
                return
            if time.monotonic() - since >= STEADY_SECONDS:
                pause = BACKOFF_SECONDS_FIRST
            await asyncio.sleep(pause)
            pause = min(pause * 2, BACKOFF_SECONDS_MAX)
            try:
                await part.start()
            except ChildFailed:
                continue  # its end is reported by the next turn
            except (PostgresFailed, ports.PortTaken) as error:
                self._say(str(error))
                continue
            self._changed()
            self._say(f"{part.name} runs again as process {part.pid}")

    async def _end(self) -> None:
        """Stop everything in order."""
        self._stop.set()
        self._is_up = False
        self.home.tell(STOPPING)
        for keeper in self._keepers:
            keeper.cancel()  # or it would start again what is stopped below
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for service, seconds in STOP_SECONDS.items():
            replicas = [child for child in self._children if child.member.service == service]
            await asyncio.gather(*(child.stop(seconds) for child in replicas))
        if self._postgres is not None:
            try:
                async with asyncio.timeout(POSTGRES_STOP_SECONDS):
                    await self._postgres.stop()
            except TimeoutError:
                # An immediate stop loses nothing: the next start recovers what was committed from the log.
                await self._postgres.stop(signal.SIGQUIT)

    def _changed(self) -> None:
        """Rewrite up.json, which does not exist before the stack is ready."""
        if self._is_up:
            self.home.write_up(self.described())

    def described(self) -> dict[str, Any]:
        return {
            "home": str(self.home.root),
            "pid": self.home.holder(),
            "postgres": self._postgres_entry(),
            "processes": [_entry(child) for child in self._children if child.pid is not None],
        }

    def _postgres_entry(self) -> dict[str, Any]:
        """A server that the stack did not start has neither pid nor start_time."""
        if self._postgres is None:
            host, port = provision.address_of(self.options.database_url or "")
            return {"pid": None, "host": host, "port": port}
        server = self._postgres
        start_time = _rfc3339(server.start_time)
        return {"pid": server.pid, "host": LOOPBACK, "port": server.port, "start_time": start_time}


def _rfc3339(time_seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_seconds))


def _entry(child: Child) -> dict[str, Any]:
    member = child.member
    return {
        "service": member.service,
        "replica": member.replica,
        "pid": child.pid,
        "grpc": member.grpc,
        "http": None,  # no service has an HTTP face yet
        "metrics": member.metrics,
        "ready": child.is_ready,
        "start_time": _rfc3339(child.start_time),
    }
