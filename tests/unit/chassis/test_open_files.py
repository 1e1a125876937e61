"""A process keeps some of its files for its own work, however many connections there are."""

import resource

import pytest

from services.chassis.process import open_files

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("files", "addresses", "fit"),
    [(NO_LIMIT, 1, 10_000), (20_000, 1, 10_000), (20_000, 2, 9_750), (1_024, 1, 524), (1_024, 2, 262), (600, 1, 300)],
)
def test_connections_leave_some_files(files: int, addresses: int, fit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, NO_LIMIT))
    assert open_files.connections_that_fit(10_000, addresses) == fit


def test_all_files_that_the_system_grants_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 4_096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    open_files.allow_all()
    assert set_to == [(4_096, 4_096)]
