"""How free places become credit."""

from hypothesis import given
from hypothesis import strategies as st

from services.chassis.lease.division import shares


def test_without_demand_all_get_the_same():
    assert shares(10, [0, 0, 0]) == [4, 3, 3]


def test_demand_takes_all_but_the_standing_credit():
    assert shares(10, [0, 5, 0]) == [1, 8, 1]


def test_demands_share_in_proportion():
    assert shares(100, [10, 30]) == [25, 75]


def test_fewer_places_than_servers_leave_no_standing_credit():
    assert shares(2, [0, 7, 0]) == [0, 2, 0]


def test_nobody_gets_nothing():
    assert shares(10, []) == []


@given(st.integers(0, 10_000), st.lists(st.integers(0, 100_000), min_size=1, max_size=20))
def test_every_place_is_given_once(places: int, demands: list[int]):
    given_places = shares(places, demands)
    assert sum(given_places) == places
    assert min(given_places) >= 0
    if places >= len(demands):
        assert min(given_places) >= 1
