"""The ledger that the user modules of these tests write."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.postgres import reachable_directory


@pytest_asyncio.fixture
async def ledger(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    """An empty ledger. Stacks that are started while it exists find it by the environment."""
    directory = reachable_directory("windlass-ledger-")
    (directory / "effects").mkdir()
    monkeypatch.setenv("WINDLASS_TEST_LEDGER", str(directory))
    yield directory
    shutil.rmtree(directory)
