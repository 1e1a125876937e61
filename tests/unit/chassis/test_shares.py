"""How many of a number of places each owner gets."""

import pytest

from services.chassis.grpc.shares import Shares


def filled(shares: Shares, *owners: str, portions: int = 1) -> dict[str, int]:
    """Let the owners take places in turn until none of them gets one more."""
    taken = dict.fromkeys(owners, 0)
    while got := [owner for owner in owners if shares.take(owner, portions=portions)]:
        for owner in got:
            taken[owner] += 1
    return taken


@pytest.mark.parametrize(("owners", "each"), [("a", 60), ("ab", 40), ("abc", 30), ("abcde", 20)])
def test_owners_leave_as_many_places_as_each_of_them_has(owners: str, each: int) -> None:
    shares = Shares(120)
    assert filled(shares, *owners) == dict.fromkeys(owners, each)
    assert shares.take("new")


def test_owner_of_two_portions_gets_a_third() -> None:
    assert filled(Shares(120), "a", portions=2) == {"a": 40}


def test_place_that_is_given_back_is_free_for_anyone() -> None:
    shares = Shares(2)
    assert filled(shares, "a", "b") == {"a": 1, "b": 1}
    assert not shares.take("c")
    shares.give_back("a")
    assert shares.take("c")
    assert not shares.take("a")


def test_a_single_place_can_be_taken() -> None:
    assert filled(Shares(1), "a") == {"a": 1}


def test_owner_that_takes_many_places_at_once_gets_half_of_them_too() -> None:
    shares = Shares(100)
    assert not shares.take("a", places=51)
    assert shares.take("a", places=50)
    assert not shares.take("a")
    assert not shares.take("b", places=26)
    assert shares.take("b", places=25)
    shares.give_back("a", places=50)
    assert shares.take("b", places=25)
