"""Ctrl-C while somebody watches."""

import os
import signal
import time

import pytest

from windlass.cli.events import hearing_interrupts


class Callback:
    """Like a callback of gRPC: Python swallows what is raised in it."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


def watch() -> None:
    with hearing_interrupts():
        Callback()
        time.sleep(30)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_a_callback_has_swallowed_comes_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        watch()
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.alarm(0) == 0
