"""The settings of a runner."""

from ipaddress import ip_network

import pytest

from services.chassis.process.config import InvalidSettings
from services.runner.config import RunnerSettings


def test_no_network_is_open_by_default_and_several_may_be_named() -> None:
    assert RunnerSettings().allowed_networks == ()
    settings = RunnerSettings(runner_allow_net="10.1.0.0/16, fd12::/64,127.0.0.1,")
    assert settings.allowed_networks == tuple(map(ip_network, ("10.1.0.0/16", "fd12::/64", "127.0.0.1/32")))


@pytest.mark.parametrize("text", ["10.1.2.3/8", "localhost", "10.0.0.0/8;127.0.0.1"])
def test_a_network_that_is_none_is_a_fault(text: str) -> None:
    with pytest.raises(InvalidSettings, match="WINDLASS_RUNNER_ALLOW_NET must be networks"):
        RunnerSettings(runner_allow_net=text)
