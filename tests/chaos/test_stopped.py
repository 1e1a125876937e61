"""A holder is stopped for two terms of its leases and continued. Its late messages are refused and logged."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.history import calls_in
from tests.chaos.load import under_load
from tests.chaos.verify import verify_history
from tests.support.pace import pause
from tests.support.probe import until
from tests.support.stack import Stack, running_stack

MODULES = Path(__file__).with_name("ledger_modules.py")
COORDINATORS = RUNNERS = 2
# The term of a run's lease, which is the longer one, at a tenth.
TERM_SECONDS = 1.5
STOPPED_SECONDS = 2.4 * TERM_SECONDS
ROUNDS = 2
# In these words each of them logs that its late append, or its late claim to its work, was refused. A report of the
# runner may come late too, but the refusal of the claim may also end the work before there is one.
SHOWN = {"coordinator": "fenced: another holder goes on with it", "runner": "the leases of this runner were ended"}


@pytest.mark.chaos
@pytest.mark.timeout(120)
@pytest.mark.parametrize("service", list(SHOWN))
async def test_stopped_for_two_terms_its_late_word_is_refused_and_nothing_doubled(service: str, ledger: Path) -> None:
    zombies: list[tuple[int, int]] = []
    async with running_stack(coordinators=COORDINATORS, runners=RUNNERS, modules=[MODULES]) as stack:
        async with under_load(stack, ledger, 13, seconds_between=0.3, also=["chaos-slow"]) as load:
            for _ in range(ROUNDS):
                await until(lambda: _has_work(stack, service, ledger), 30, f"work at {service}-0")
                with stack.stopped(service, 0) as pid:
                    zombies.append((pid, time.monotonic_ns()))
                    await pause(STOPPED_SECONDS)
                await pause(TERM_SECONDS)
        history = await load.history()
        # Nobody can keep a stopped process from finishing a call that it had begun. The effect key makes it harmless.
        history.calls = _without_late_ends(history.calls, zombies)
        assert SHOWN[service] in stack.log(service, 0), "nothing came late: the stop proved nothing"
        assert stack.pid(service, 0) == zombies[0][0], "it ended itself"
        await verify_history(stack, load, history)


def _has_work(stack: Stack, service: str, ledger: Path) -> bool:
    """True when a stopped runner would be in the middle of a call. For a coordinator, any call will do."""
    calls = calls_in(ledger)
    pids = {stack.pid("runner", 0)} if service == "runner" else {each["pid"] for each in stack.entries("runner")}
    ended = {call["run"] for call in calls if call["phase"] != "begin"}
    return any(call["pid"] in pids and call["run"] not in ended for call in calls)


def _without_late_ends(calls: list[dict[str, Any]], zombies: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Drop the ends of calls during which their process was stopped."""
    begun = {call["run"]: call["monotonic_ns"] for call in calls if call["phase"] == "begin"}
    return [
        call
        for call in calls
        if call["phase"] == "begin"
        or not any(
            call["pid"] == pid and begun[call["run"]] < stopped_ns < call["monotonic_ns"] for pid, stopped_ns in zombies
        )
    ]
