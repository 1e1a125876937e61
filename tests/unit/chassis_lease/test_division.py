"""Free places become credit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.chassis.lease.division import divide, shares
from services.chassis.lease.stream import HolderStream, StreamState
from tests.support.probe import some


@pytest.mark.parametrize(
    ("places", "demands", "expected"),
    [
        pytest.param(10, [0, 0, 0], [4, 3, 3], id="without demand all get the same"),
        pytest.param(10, [0, 5, 0], [1, 8, 1], id="demand takes all but the standing credit"),
        pytest.param(100, [10, 30], [26, 74], id="demands share the rest in proportion"),
        pytest.param(2, [0, 7, 0], [0, 2, 0], id="fewer places than servers leave no standing credit"),
        pytest.param(3, [0, 1, 0], [0, 3, 0], id="idle servers leave more than one place to one with demand"),
        pytest.param(5, [1, 100, 0], [2, 2, 1], id="a small demand is more than one place"),
        pytest.param(3, [1, 100, 0], [1, 2, 0], id="few places go to those with demand"),
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
    wanting = [each for each, demand in zip(given_places, demands, strict=True) if demand]
    if places >= len(demands) + len(wanting):
        assert min(given_places) >= 1
    if wanting and places >= 2 * len(wanting):
        assert min(wanting) >= 2


def test_a_grant_beyond_the_credit_of_one_server_costs_no_place_of_another():
    """The credit of the first was called back while its grant was on the way. That run is over by now."""
    exceeded, needy = (HolderStream(address, "instance", 0.0, state=StreamState.LIVE) for address in ("s0", "s1"))
    exceeded.arrived()
    exceeded.bound = 0
    needy.demand = 1
    divide([exceeded, needy], free=1)
    assert needy.left == 1


def test_a_server_with_demand_gets_the_places_of_idle_ones_though_it_has_one():
    """It may have to keep that one free, so it would stand still beside idle servers with a place each."""
    streams = [HolderStream(f"s{number}", "instance", 0.0, state=StreamState.LIVE) for number in range(3)]
    divide(streams, free=3)
    for stream in streams:
        assert some(stream.take_credit()).amount == 1
    streams[0].demand = 1
    divide(streams, free=3)
    for stream in streams[1:]:
        stream.confirm(some(stream.take_credit()).number)
    divide(streams, free=3)
    assert [stream.left for stream in streams] == [3, 0, 0]
