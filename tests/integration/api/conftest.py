"""A whole api in this process, on a real PostgreSQL. A test chooses its peers."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest_asyncio

from services.api.app.key_material import key_hash
from services.api.app.ports import NewKey
from services.api.config import ApiSettings
from services.api.store.bootstrap import FirstKeys, bootstrap
from services.api.store.keys import PostgresKeys
from services.api.wiring import ApiService
from services.chassis.identity.callers import CallerKind, Identity, ServiceCredential
from services.chassis.postgres.database import Database
from tests.support.postgres import Database as TestDatabase
from tests.support.postgres import PostgresCluster
from tests.support.running_services import started

SECRET = "a secret of the tests, long enough"


@dataclass
class RunningApi:
    port: int
    keys: FirstKeys
    url: str

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.port}")

    def bearer(self, key: str) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {key}")]

    def service(self, name: str) -> list[tuple[str, str]]:
        return list(ServiceCredential([SECRET.encode()], name).metadata)


@asynccontextmanager
async def running_api(
    database: TestDatabase, directory: Path, *, dispatchers: str = "", coordinators: str = ""
) -> AsyncIterator[RunningApi]:
    secret_file = directory / "service.secret"
    secret_file.write_text(SECRET)
    keys = await bootstrap(database.url("api"))
    settings = ApiSettings(
        grpc_address="127.0.0.1:0",
        metrics_address="",
        database_url=database.url("api"),
        service_secret_file=secret_file,
        dispatchers=dispatchers,
        coordinators=coordinators,
        drain_seconds=1.0,
        enqueue_seconds=2.0,
        # Without peers, the api has nothing to wait for.
        read_seconds=5.0 if coordinators else 0.2,
    )
    service = await started("api", settings, ApiService)
    try:
        yield RunningApi(service.port, keys, database.url("api"))
    finally:
        await service.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def api(postgres: PostgresCluster, tmp_path_factory) -> AsyncIterator[RunningApi]:
    """An api without any peer."""
    database = await postgres.database(migrated=True)
    async with running_api(database, tmp_path_factory.mktemp("api")) as made:
        yield made
    await postgres.drop(database)


async def make_key(api: RunningApi, key: str, role: str, *, workspace: str = "default") -> str:
    """The id of the key that is made."""
    database = Database(api.url, name="test")
    new = NewKey(uuid.uuid4(), key_hash(key), role, workspace, key, None)
    made = await PostgresKeys(database).add(Identity(CallerKind.SYSTEM, "test"), new)
    await database.close()
    assert made is not None
    return made.key_id
