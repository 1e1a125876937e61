"""The clock of a process, and the waits between its tries."""

from datetime import timedelta

import pytest

from services.chassis.process.backoff import Backoff
from services.chassis.process.clock import SystemClock


async def test_system_clock_is_aware_and_sleeps() -> None:
    clock = SystemClock()
    start = clock.monotonic()
    await clock.sleep(0.001)
    assert clock.monotonic() > start
    assert clock.now().utcoffset() == timedelta(0)
    assert abs(clock.epoch_ns() / 1e9 - clock.now().timestamp()) < 60


def test_backoff_grows_to_its_cap_and_starts_again() -> None:
    backoff = Backoff(first=1, cap=4)
    waits = [backoff.next() for _ in range(50)]
    for wait, ceiling in zip(waits, [1, 2, 4] + [4] * 47, strict=True):
        assert ceiling * 0.1 <= wait <= ceiling
    backoff.reset()
    assert backoff.next() <= 1


@pytest.mark.parametrize("wrong", [{"first": 0}, {"first": 3, "cap": 2}])
def test_backoff_refuses_senseless_numbers(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="backoff needs"):
        Backoff(**wrong)
