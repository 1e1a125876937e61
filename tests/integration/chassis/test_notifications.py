"""Notifications are hints that something has changed, over a connection that comes back."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from services.chassis.postgres import notifications
from services.chassis.postgres.connection import PgConnection
from services.chassis.postgres.notifications import Notifications
from tests.support.postgres import PostgresCluster


@pytest_asyncio.fixture(loop_scope="session")
async def url(postgres: PostgresCluster) -> AsyncIterator[str]:
    database = await postgres.database()
    yield database.superuser_url
    await postgres.drop(database)


async def test_each_channel_is_heard_once_after_every_connect(url: str) -> None:
    heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    listening = asyncio.create_task(
        Notifications(url, ["shoes", "Odd Name"], lambda *notice: heard.put_nowait(notice), name="ear").run()
    )
    speaker = PgConnection(url, name="speaker")
    assert [await heard.get(), await heard.get()] == [("shoes", ""), ("Odd Name", "")]
    await speaker.fetch("SELECT pg_notify('Odd Name', 'clog')")
    assert await heard.get() == ("Odd Name", "clog")

    ended = await speaker.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ear'")
    assert ended == [(True,)]
    assert [await heard.get(), await heard.get()] == [("shoes", ""), ("Odd Name", "")]
    await speaker.fetch("SELECT pg_notify('shoes', 'boot')")
    assert await heard.get() == ("shoes", "boot")

    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await speaker.close()


async def test_a_server_that_stands_still_is_left_for_one_that_answers(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "PROVE_SECONDS", 0.2)
    monkeypatch.setattr(notifications, "STATEMENT_SECONDS", 0.5)
    heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    listening = asyncio.create_task(
        Notifications(url, ["shoes"], lambda *notice: heard.put_nowait(notice), name="ear").run()
    )
    speaker = PgConnection(url, name="speaker")
    assert await heard.get() == ("shoes", "")
    ((backend,),) = await speaker.fetch("SELECT pid FROM pg_stat_activity WHERE application_name = 'ear'")
    os.kill(backend, signal.SIGSTOP)
    try:
        assert await heard.get() == ("shoes", "")
        assert not listening.done()
    finally:
        os.kill(backend, signal.SIGCONT)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await speaker.close()
