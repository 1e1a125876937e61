"""Ctrl-C while somebody watches."""

import signal
import threading

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


def test_in_a_thread_beside_the_main_one_nothing_changes() -> None:
    before = signal.getsignal(signal.SIGINT)
    found: list[object] = []

    def look() -> None:
        with hearing_interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [before]
