"""Fixtures for every test, and the rule which tests run at the same time."""

import pytest
from xdist.scheduler import LoadFileScheduling

pytest_plugins = ["tests.support.postgres"]


class OneStackIsKilledAtATime(LoadFileScheduling):  # type: ignore[misc] # it has no types
    """A file's tests share a worker; so do all of tests/chaos, whose kills and stops need half of the machine each."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/chaos" if nodeid.startswith("tests/chaos/") else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    return OneStackIsKilledAtATime(config, log)
