"""The rules of both sides meet each other, in short strange stories by hypothesis and long busy ones by seed."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

from tests.support.lease_world import ADDRESSES, LEASES, LeaseWorld

LeaseWorld.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
TestLeaseWorld = LeaseWorld.TestCase


# Hypothesis is good at short strange stories; long busy ones need steps that mostly do something.
STEPS: dict[str, int] = {
    "they_say_all": 70,
    "they_talk": 20,
    "server_grants": 15,
    "server_begins_a_claim": 5,
    "claim_commits": 8,
    "holder_starts": 40,
    "holder_finishes": 25,
    "holder_hands_back": 2,
    "server_revokes": 2,
    "server_takes_over": 3,
    "server_wants": 5,
    "time_passes": 6,
    "cut": 3,
    "server_notices": 3,
    "freeze_or_thaw": 5,
    "database": 8,
    "sweep": 4,
    "new_work": 10,
}


class BusyWorld:
    """The story of one seed, made of the machine's own steps."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = LeaseWorld()
        self.world.begin()
        self.started = 0
        self.finished = 0

    def live(self, steps: int) -> None:
        for name in self.random.choices(list(STEPS), list(STEPS.values()), k=steps):
            getattr(self, f"_{name}", self._plain(name))()
            self.world.no_place_is_promised_twice()
            self.world.a_lease_has_one_holder()
            self.world.a_lease_has_one_result()
            self.world.no_report_is_answered_twice()
        self.started, self.finished = sum(self.world.starts.values()), sum(self.world.results.values())
        self.world.teardown()

    def _plain(self, name: str) -> Callable[[], None]:
        pick, world = self.random, self.world
        h, s = pick.randrange(2), pick.choice(ADDRESSES)
        per_holder = {"h": h, "pick": pick.randrange(100)}
        per_stream = {"h": h, "s": s}
        arguments: dict[str, dict[str, Any]] = {
            "they_say_all": per_stream,
            "they_talk": per_stream | {"parts": [pick.randrange(4) for _ in range(pick.randint(1, 8))]},
            "server_grants": per_stream | {"wanted": pick.randint(1, 4), "is_heard": pick.random() < 0.7},
            "server_begins_a_claim": per_stream | {"wanted": pick.randint(1, 4)},
            "holder_starts": per_holder,
            "holder_finishes": per_holder,
            "holder_hands_back": per_holder,
            "server_revokes": per_stream | {"name": pick.choice(LEASES)},
            "server_takes_over": per_stream | {"name": pick.choice(LEASES)},
            "server_wants": per_stream | {"demand": pick.choice([0, 1, 5, 20])},
            "time_passes": {"seconds": pick.choice([0.01, 0.5, 0.5, 2.0, 3.0, 6.5])},
            "cut": per_stream | {"is_noticed": pick.random() < 0.5},
            "freeze_or_thaw": {"h": h, "is_frozen": pick.random() < 0.2},
        }
        return lambda: getattr(world, name)(**arguments.get(name, {}))

    def _server_grants(self) -> None:
        if not self.world.is_away:
            self._plain("server_grants")()

    def _claim_commits(self) -> None:
        if self.world.claims and not self.world.is_away:
            self.world.claim_commits()

    def _server_notices(self) -> None:
        if self.world.ghosts:
            self.world.server_notices()

    def _database(self) -> None:
        self.world.database(is_away=self.random.random() < 0.2)

    def _sweep(self) -> None:
        if not self.world.is_away:
            self.world.sweep()

    def _new_work(self) -> None:
        """Finished work makes room for new work under its name; its epochs go on rising."""
        for name, row in self.world.rows.items():
            if row.is_done and all(name not in holder.rules.leases for holder in self.world.holders):
                row.is_done = False
                self.world.results[name] = 0
                return


@pytest.mark.parametrize("block", range(4))
def test_busy_worlds_keep_their_promises(block: int):
    started = finished = 0
    for seed in range(10 * block, 10 * block + 10):
        print(f"seed {seed}")
        world = BusyWorld(seed)
        world.live(400)
        started, finished = started + world.started, finished + world.finished
    assert started > 50, "stories in which nothing starts prove nothing"
    assert finished >= 10
