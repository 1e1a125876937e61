"""A coordinator judges the runs that a runner names when it attaches."""

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.chassis.lease.frames import Attach, Lease, Refused
from services.chassis.session.owners import AttachRefused
from services.coordinator.app.ports import RunName, RunStanding
from services.coordinator.rpc.runners import SessionRunners

ID = "01931f3c-7a1b-7c3d-8e4f-1234567890ab"
LIVE = RunStanding(epoch=2, instance_id="i1", is_live=True, is_taken_back=False)
LEASE = Lease(f"{ID}.1", 2)


def runners_of(rows: Mapping[RunName, RunStanding]) -> SessionRunners:
    async def standings(names: Collection[RunName]) -> Mapping[RunName, RunStanding]:
        return {name: rows[name] for name in names if name in rows}

    made = SessionRunners(cast("Any", None), cast("Any", None), standings)
    made.registry = cast("Any", SimpleNamespace(of_instance=lambda _: None))
    return made


async def judged(run: RunStanding | None, *leases: Lease) -> list[Refused]:
    """The answer to the instance `i1`, when this is the row of its run."""
    rows = {} if run is None else {(ID, 1): run}
    return list(await runners_of(rows).admit(Attach("runner", "i1", 1, held=leases)))


@pytest.mark.parametrize(
    "attach",
    [
        Attach("runner", "i", 1, modules=["noop@1", "noop"]),
        Attach("runner", "i", 1, modules=["noop@1"], idempotent_modules=["noop"]),
    ],
)
async def test_name_that_is_no_modules_is_refused(attach: Attach) -> None:
    with pytest.raises(AttachRefused, match="modules are named"):
        await runners_of({}).admit(attach)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (LIVE, ""),
        # Its outcome is reported, and the acknowledgement is on the way.
        (LIVE._replace(is_live=False), ""),
        (LIVE._replace(is_live=False, is_taken_back=True), "LEASE_ENDED"),
        (LIVE._replace(epoch=3), "EPOCH_STALE"),
        (LIVE._replace(instance_id="i2"), "LEASE_UNKNOWN"),
        (None, "LEASE_UNKNOWN"),
    ],
)
async def test_row_of_the_run_says_whether_the_runner_still_has_it(run: RunStanding | None, reason: str) -> None:
    assert await judged(run, LEASE) == ([Refused(*LEASE, reason)] if reason else [])


async def test_lease_that_is_no_run_is_nobodys() -> None:
    assert await judged(None, Lease("x", 1)) == [Refused("x", 1, "LEASE_UNKNOWN")]
