"""Start the local stack, stop it from elsewhere, and look at it.

Hazard: `down` trusts the home's lock, not up.json: the file of a killed stack may name a pid that another process has
by now.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from deploy.local import installation
from deploy.local.child import ChildFailed
from deploy.local.home import STOPPING, Home, HomeTaken
from deploy.local.plan import Options
from deploy.local.ports import PortTaken
from deploy.local.postgres import PostgresFailed
from deploy.local.supervisor import Supervisor
from windlass.cli.invocation import as_typed

DONE, FAILED = 0, 1
# A stop is promised within this time.
DOWN_SECONDS = 15.0
POLL_SECONDS = 0.1

EXPECTED = (*installation.EXPECTED, PortTaken, PostgresFailed, ChildFailed)
Say = Callable[[str], None]


def up(options: Options, say: Say, show: Callable[[Home], None]) -> int:
    """Run the stack until SIGTERM or Ctrl-C; `show` is called once, when all is ready."""
    supervisor = Supervisor(options, say)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, supervisor.stop)
        await supervisor.run(lambda: show(supervisor.home))

    failed = False
    try:
        asyncio.run(run())
    except* EXPECTED as errors:
        failed = True
        for error in leaves(errors):
            say(explain(error, supervisor.home))
    return FAILED if failed else DONE


def explain(error: BaseException, home: Home) -> str:
    if isinstance(error, HomeTaken):
        return f"{error}; stop it with: {as_typed('windlass down', home.root)}"
    return str(error)


def down(home: Home, say: Say) -> int:
    pid = home.holder()
    if not pid:
        say(f"nothing runs on {home.root}")
        return DONE
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has ended by itself just now
    except PermissionError:
        say(f"{home.root} is run by process {pid}, which is not yours to stop")
        return FAILED
    until = time.monotonic() + DOWN_SECONDS
    while home.holder() == pid:
        if time.monotonic() > until:
            say(f"process {pid} has not ended in {DOWN_SECONDS:g} s")
            return FAILED
        time.sleep(POLL_SECONDS)
    say(f"stopped {home.root}")
    return DONE


def status(home: Home, say: Say) -> dict[str, Any] | None:
    """The content of up.json while its stack is up. Otherwise None, after a message that says what there is."""
    pid = home.holder()
    if pid is None:
        say(f"nothing runs on {home.root}; start it with: {as_typed('windlass up', home.root)}")
        return None
    found, doing = home.read_up(), home.doing()
    if found is None or doing == STOPPING:
        say(f"{home.root} is {doing} (process {pid})")
        return None
    return found


def leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    nested = (leaves(each) if isinstance(each, BaseExceptionGroup) else [each] for each in group.exceptions)
    return [leaf for each in nested for leaf in each]
