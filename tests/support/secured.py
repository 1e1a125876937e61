"""Runs Windlass as in production: each service is a process of its own, which the others know by its certificate alone.

There is no supervisor and no home: a process has its settings from its environment. Callers without a certificate are
served at the public addresses.
"""

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.local.launch import launcher
from deploy.local.plan import PEERS
from deploy.local.provision import OWNERS
from services.api.store.bootstrap import FirstKeys, bootstrap
from services.chassis.identity.tls import Tls
from tests.support.certificates import Authority
from tests.support.postgres import Database, free_port
from tests.support.probe import eventually

SERVICES = ("api", "dispatcher", "coordinator", "runner")
READY_SECONDS = 30.0
LEASE_SCALE = 0.1
_RECONNECT = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200))


class Secured:
    """Four services. They keep their addresses while they are down."""

    def __init__(self, database: Database, directory: Path, keys: FirstKeys) -> None:
        (directory / "authority").mkdir()
        self.authority = Authority(directory / "authority")
        self.keys = keys
        self.inner = {service: f"127.0.0.1:{free_port()}" for service in SERVICES}
        self.public = {service: f"127.0.0.1:{free_port()}" for service in SERVICES}
        self._database = database
        self._directory = directory
        self._pairs = {service: self.authority.pair(service) for service in SERVICES}
        self._key_secret = directory / "key.secret"
        self._key_secret.write_text(secrets.token_hex(32))
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._channels: list[grpc.aio.Channel] = []

    def key(self) -> str:
        return self.keys.admin

    def channel(self, service: str = "api", *, address: str = "", tls: Tls | None = None) -> grpc.aio.Channel:
        """A channel to the public address that knows the authority alone, unless told otherwise."""
        credentials = (tls or Tls(None, self.authority.file)).for_client()
        made = grpc.aio.secure_channel(address or self.public[service], credentials, options=_RECONNECT)
        self._channels.append(made)
        return made

    def plain_channel(self, address: str) -> grpc.aio.Channel:
        made = grpc.aio.insecure_channel(address, options=_RECONNECT)
        self._channels.append(made)
        return made

    async def start(self, *services: str) -> None:
        """Start these services, and wait until a probe without a certificate finds each of them well."""
        for service in services:
            await self.run(service, service, self._settings(service))
        for service in services:
            await self.is_serving(service)

    async def run(self, name: str, service: str, settings: Mapping[str, Any]) -> None:
        """Start another process of that service, with these settings and no others."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("WINDLASS_")}
        told = {f"WINDLASS_{key}": str(value) for key, value in settings.items()}
        with self.log_file(name).open("ab") as log:
            self._running[name] = await asyncio.create_subprocess_exec(
                *launcher("SIGKILL"),
                *(sys.executable, "-m", f"services.{service}"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**inherited, "GRPC_ENABLE_FORK_SUPPORT": "0", **told},
            )

    async def is_serving(self, service: str) -> None:
        stub: Any = health_pb2_grpc.HealthStub(self.channel(service))

        async def probe() -> bool:
            assert self._running[service].returncode is None, self.log_file(service).read_text()
            with contextlib.suppress(grpc.aio.AioRpcError):
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=2)
                return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
            return False

        await eventually(probe, READY_SECONDS, f"{service} to serve")

    async def kill(self, name: str) -> None:
        """Kill it at once, as if its machine had gone."""
        process = self._running.pop(name)
        if process.returncode is None:
            process.kill()
        await process.wait()

    def log_file(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def common(self) -> dict[str, Any]:
        """The settings that every process needs."""
        return {
            "METRICS_ADDRESS": f"127.0.0.1:{free_port()}",
            "LEASE_SCALE": LEASE_SCALE,
            "TLS_AUTHORITY_FILE": self.authority.file,
        }

    def _settings(self, service: str) -> dict[str, Any]:
        pair = self._pairs[service]
        settings = self.common() | {
            "GRPC_ADDRESS": self.inner[service],
            "PUBLIC_GRPC_ADDRESS": self.public[service],
            "TLS_CERTIFICATE_FILE": pair.certificate_file,
            "TLS_KEY_FILE": pair.key_file,
        }
        for name, peer in PEERS[service].items():
            settings[name.removeprefix("WINDLASS_")] = self.inner[peer]
        if service in OWNERS:
            settings["DATABASE_URL"] = self._database.url(service)
        if service == "api":
            settings["KEY_SECRET_FILE"] = self._key_secret
        return settings

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)
        for name in list(self._running):
            await self.kill(name)


@contextlib.asynccontextmanager
async def secured_services(database: Database, directory: Path) -> AsyncIterator[Secured]:
    made = Secured(database, directory, await bootstrap(database.url("api")))
    try:
        await made.start(*SERVICES)
        yield made
    finally:
        await made.close()
