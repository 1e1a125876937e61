"""A service starts children that work for it."""

import os
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from services.chassis.process.child_start import start_child

OWN = Path("/proc/self/autogroup")
NICE = min(os.nice(0) + 5, 19)


@pytest.fixture
def child() -> Iterator[Popen[bytes]]:
    """It prints something, and has no code of ours that could settle its priority."""
    started = start_child("this")
    yield started
    started.kill()
    started.communicate()


def test_the_service_goes_before_its_child_from_the_beginning(child: Popen[bytes]) -> None:
    assert os.getpriority(os.PRIO_PROCESS, child.pid) == NICE
    printed, _ = child.communicate()
    assert b"Zen" in printed


def test_a_child_takes_no_cpu_time_from_the_share_of_its_service(child: Popen[bytes]) -> None:
    assert os.getsid(child.pid) == child.pid


@pytest.mark.skipif(os.geteuid() != 0 or not OWN.exists(), reason="the system has no shares of sessions to be changed")
def test_the_session_of_a_child_has_a_smaller_share(child: Popen[bytes]) -> None:
    assert Path(f"/proc/{child.pid}/autogroup").read_text().split()[-2:] == ["nice", str(NICE)]
