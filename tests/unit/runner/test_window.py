"""With the window, short work streams and long work is not hoarded."""

from services.runner.core.window import AHEAD_MAX, Window


def test_nothing_is_asked_ahead_while_nothing_finishes() -> None:
    assert Window(10).capacity(5.0) == 10


def test_each_round_trip_of_short_work_widens_the_window() -> None:
    window = Window(10)
    window.finished(1.000, 10)
    assert window.capacity(1.001) == 20
    window.finished(1.002, 20)
    assert window.capacity(1.003) == 40


def test_the_window_closes_when_work_becomes_long() -> None:
    window = Window(10)
    window.finished(1.0, 500)
    assert window.capacity(1.2) == 10


def test_the_window_is_bounded() -> None:
    window = Window(10)
    window.finished(1.0, AHEAD_MAX * 3)
    assert window.capacity(1.0) == 10 + AHEAD_MAX
