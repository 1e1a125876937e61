"""Limits of tiers, canonical JSON, execution ids: small forms that others rely on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.app.changes import Changes
from services.api.app.identifiers import Identifiers, is_execution_id
from services.api.core.tiers import Tier, in_force
from services.chassis.process.batcher import Level
from tests.support.manual_clock import ManualClock
from windlass.definition.json_values import canonical


def test_tier_gives_what_a_workspace_does_not_set_itself() -> None:
    assert in_force(Tier.FREE, 0, 0) == (1, 100_000)
    assert in_force(99, 0, 0) == in_force(Tier.FREE, 0, 0)
    assert in_force(Tier.PRO, 0, 7) == (5, 7)
    assert in_force(Tier.ENTERPRISE, 1000, 0) == (1000, 100_000)


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
def test_canonical_form_does_not_depend_on_the_order_of_keys(value: dict[str, object]) -> None:
    assert canonical(value) == canonical(dict(reversed(list(value.items()))))
    assert json.loads(canonical(value)) == value


def test_execution_ids_rise_within_a_millisecond_and_against_a_clock_that_goes_back() -> None:
    clock = ManualClock()
    identifiers = Identifiers(clock)
    minted = [identifiers.mint() for _ in range(5_000)]
    assert int(minted[0].replace("-", "")[:12], 16) == clock.epoch_ns() // 1_000_000
    clock.shift_wall(-10)
    minted += [identifiers.mint() for _ in range(10)]
    assert minted == sorted(minted)
    assert len(set(minted)) == len(minted)
    assert all(map(is_execution_id, minted))


@pytest.mark.parametrize(
    "text", ["", "abc", "01A1EF02-CD5C-7FC1-AC68-79B46E7A0574", "01a1ef02cd5c7fc1ac6879b46e7a0574"]
)
def test_other_forms_are_no_execution_ids(text: str) -> None:
    assert not is_execution_id(text)


@pytest.mark.parametrize("payload", ["", "key:not hexadecimal", "moon:full"])
def test_news_that_are_not_understood_mean_that_anything_may_have_changed(payload: str) -> None:
    forgotten: list[str] = []

    class RefreshingCache:
        def forget(self, *which: object) -> None: ...

        def forget_all(self) -> None:
            forgotten.append("all")

    limits, jobs = Level(), Level()
    cache: Any = RefreshingCache()
    Changes(cache, cache, limits, jobs).heard("changes", payload)
    assert (forgotten, limits.is_set, jobs.is_set) == (["all", "all"], True, True)
