"""Fixtures for every test, and the rule that says which tests run at the same time."""

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

pytest_plugins = ["tests.support.postgres"]

# How long an example takes says how busy the machine is, and nothing about the product.
settings.register_profile("windlass", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("windlass")


class OneStackAtATime(LoadFileScheduling):  # type: ignore[misc] # it has no types
    """The tests of one file share a worker, and so do all tests that start a whole stack: leases at a tenth of their
    times need half of the machine."""

    def _split_scope(self, nodeid: str) -> str:
        starts_stacks = nodeid.startswith(("tests/chaos/", "tests/e2e/"))
        return "stacks" if starts_stacks else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    return OneStackAtATime(config, log)
