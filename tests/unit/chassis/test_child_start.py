"""A service starts children that work for it."""

import os

from services.chassis.process.child_start import start_child


def test_the_service_goes_before_its_child_from_the_beginning() -> None:
    """Before any code of ours runs in the child: it has not read its input, and this module has nothing to settle."""
    child = start_child("this")
    try:
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == min(os.nice(0) + 5, 19)
        printed, _ = child.communicate()
        assert b"Zen" in printed
    finally:
        child.kill()
        child.wait()
