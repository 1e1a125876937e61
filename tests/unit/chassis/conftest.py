"""The shop of shop.py. It is compiled once, and opened for each test that asks for it."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.unit.chassis.shop import Counter, Shop, compiled_into, guard_of, open_shop


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with compiled_into(tmp_path_factory.mktemp("shop")) as compiled:
        yield compiled


@pytest_asyncio.fixture(loop_scope="session")
async def counter(shop: Shop) -> AsyncIterator[Counter]:
    async with open_shop(shop, guard_of()) as opened:
        yield opened
