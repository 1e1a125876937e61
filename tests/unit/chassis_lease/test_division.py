"""Free places become credit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.chassis.lease.division import divide, shares
from services.chassis.lease.stream import HolderStream, StreamState


@pytest.mark.parametrize(
    ("places", "demands", "expected"),
    [
        pytest.param(10, [0, 0, 0], [4, 3, 3], id="without demand all get the same"),
        pytest.param(10, [0, 5, 0], [1, 8, 1], id="demand takes all but the standing credit"),
        pytest.param(100, [10, 30], [25, 75], id="demands share in proportion"),
        pytest.param(2, [0, 7, 0], [0, 2, 0], id="fewer places than servers leave no standing credit"),
        pytest.param(10, [], [], id="nobody gets nothing"),
    ],
)
def test_places_are_shared(places: int, demands: list[int], expected: list[int]):
    assert shares(places, demands) == expected


@given(st.integers(0, 10_000), st.lists(st.integers(0, 100_000), min_size=1, max_size=20))
def test_every_place_is_given_once(places: int, demands: list[int]):
    given_places = shares(places, demands)
    assert sum(given_places) == places
    assert min(given_places) >= 0
    if places >= len(demands):
        assert min(given_places) >= 1


def test_a_grant_beyond_the_credit_of_one_server_costs_no_place_of_another():
    """The credit of the first was called back while its grant was on the way. That run is over by now."""
    exceeded, needy = (HolderStream(address, "instance", 0.0, state=StreamState.LIVE) for address in ("s0", "s1"))
    exceeded.arrived()
    exceeded.bound = 0
    needy.demand = 1
    divide([exceeded, needy], free=1)
    assert needy.left == 1
