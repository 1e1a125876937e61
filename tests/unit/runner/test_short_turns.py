"""Modules that compute in threads leave the interpreter to the event loops soon."""

import sys
from collections.abc import Iterator

import pytest

from services.runner.app.module_loop import ModuleLoop
from services.runner.app.module_threads import ModuleThreads
from services.runner.app.short_turns import SWITCH_SECONDS

# Python's own, which is 5 ms.
DEFAULT_SECONDS = 0.005


@pytest.fixture(autouse=True)
def interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(DEFAULT_SECONDS)
    yield
    sys.setswitchinterval(before)


async def test_a_plain_function_takes_short_turns() -> None:
    assert await ModuleThreads().call(sys.getswitchinterval) == pytest.approx(SWITCH_SECONDS)


async def test_an_async_module_takes_short_turns() -> None:
    async def interval() -> float:
        return sys.getswitchinterval()

    modules = ModuleLoop()
    try:
        assert await modules.call("run e.1", interval) == pytest.approx(SWITCH_SECONDS)
    finally:
        modules.close()
        modules.join()
