"""Ctrl-C while somebody watches."""

import signal

import pytest

from windlass.cli.events import hearing_interrupts


class Callback:
    """Like a callback of gRPC: Python swallows what is raised in it."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def watch() -> None:
    with hearing_interrupts():
        Callback()
        signal.pause()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_a_callback_has_swallowed_comes_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        watch()
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.alarm(0) == 0
