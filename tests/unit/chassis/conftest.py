"""The shop of shop.py. It is compiled once, and opened for each test that asks for it."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from services.chassis.telemetry import otlp
from services.chassis.telemetry.tracing import FinishedSpan, setup_tracing
from tests.unit.chassis.shop import Counter, Shop, compiled_into, guard_of, open_shop


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with compiled_into(tmp_path_factory.mktemp("shop")) as compiled:
        yield compiled


@pytest_asyncio.fixture(loop_scope="session")
async def counter(shop: Shop) -> AsyncIterator[Counter]:
    async with open_shop(shop, guard_of()) as opened:
        yield opened


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FinishedSpan]]:
    """The finished spans of this process, which has tracing for this test."""
    finished: list[FinishedSpan] = []
    monkeypatch.setattr(otlp, "open_pipeline", lambda **_: (finished.append, lambda: None))
    setup_tracing(service="shop", version="7", instance="shop-0", endpoint="a collector")
    yield finished
    setup_tracing(service="", version="", instance="", endpoint="")
