"""The commands of the local stack: start it, stop it from another terminal, show its state.

Hazard: `down` trusts the home's lock and not up.json, because the pid that a killed stack leaves in up.json may belong
to another process by now.
"""

import asyncio
import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

from deploy.local import installation
from deploy.local.child import ChildFailed
from deploy.local.home import STOPPING, Home, HomeTaken
from deploy.local.plan import Options
from deploy.local.ports import PortTaken
from deploy.local.postgres import PostgresFailed
from deploy.local.supervisor import Supervisor
from windlass.cli.forms import OutputForm, show_plain
from windlass.cli.invocation import as_typed
from windlass.cli.output import say
from windlass.cli.render import grid

DONE, FAILED = 0, 1
_say = partial(say, err=True)
# `down` gives up after this time.
DOWN_SECONDS = 15.0
POLL_SECONDS = 0.1

EXPECTED_ERRORS = (*installation.EXPECTED_ERRORS, PortTaken, PostgresFailed, ChildFailed)


def up(options: Options) -> int:
    """Run the stack until SIGTERM or Ctrl-C."""
    supervisor = Supervisor(options, _say)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, supervisor.stop)
        await supervisor.run(lambda: _show_running(supervisor.home))

    failed = False
    try:
        asyncio.run(run())
    except* EXPECTED_ERRORS as errors:
        failed = True
        for error in errors_in(errors):
            _say(explain(error, supervisor.home))
    return FAILED if failed else DONE


def explain(error: BaseException, home: Home) -> str:
    if isinstance(error, HomeTaken):
        return f"{error}; stop it with: {as_typed('windlass down', home.root)}"
    return installation.in_words(error)


def down(root: Path) -> int:
    home = Home(root)
    pid = home.holder()
    if not pid:
        _say(f"no stack runs in {home.root}")
        return DONE
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # the stack has ended by itself just now
    except PermissionError:
        _say(f"no permission to stop process {pid}, which runs the stack in {home.root}")
        return FAILED
    until = time.monotonic() + DOWN_SECONDS
    while home.holder() == pid:
        if time.monotonic() > until:
            _say(f"process {pid} has not ended within {DOWN_SECONDS:g} s")
            return FAILED
        time.sleep(POLL_SECONDS)
    _say(f"stopped the stack in {home.root}")
    return DONE


def status(root: Path, form: OutputForm) -> int:
    """Show the content of up.json if the stack is up. Otherwise say what the process of the home is doing, if there is
    one.
    """
    home = Home(root)
    pid = home.holder()
    if pid is None:
        _say(f"no stack runs in {home.root}; start one with: {as_typed('windlass up', root)}")
        return FAILED
    found, doing = home.read_up(), home.doing()
    if found is None or doing == STOPPING:
        _say(f"the stack in {home.root} is {doing} (process {pid})")
        return FAILED
    if form == "table":
        _show_processes(found)
    elif form == "name":
        for each in found["processes"]:
            say(f"{each['service']}-{each['replica']}")
    else:
        show_plain(found, form)
    return DONE


def errors_in(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    """The errors in a group and in all groups inside it."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(errors_in(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found


def _show_running(home: Home) -> None:
    found = home.read_up()
    assert found is not None, "up.json is written before this is called"
    _show_processes(found)
    grpc = next(each["grpc"] for each in found["processes"] if each["service"] == "api")
    say(f"\nWindlass is up; Ctrl-C stops it. In another terminal:\n\n  {as_typed('windlass list', home.root)}")
    # It is a program of others, and docs/grpcurl.md says how to get it.
    say(f"  grpcurl -plaintext {grpc} list\n" if shutil.which("grpcurl") else "")


def _show_processes(found: dict[str, Any]) -> None:
    rows = [_postgres_row(found["postgres"])]
    for each in found["processes"]:
        since = each["start_time"] if each["ready"] else "starting"
        process = f"{each['service']}-{each['replica']}"
        rows.append((process, str(each["pid"]), each["grpc"], each["metrics"], since))
    grid(("process", "pid", "gRPC", "metrics", "since"), rows)


def _postgres_row(entry: dict[str, Any]) -> tuple[str, ...]:
    """The row of the database server. A server that the stack did not start has no start_time."""
    is_own = "start_time" in entry
    pid = str(entry["pid"] or ("" if is_own else "elsewhere"))
    host = f"[{entry['host']}]" if ":" in entry["host"] else entry["host"]
    since = "" if not is_own else entry["start_time"] if entry["pid"] else "starting"
    return "postgres", pid, f"{host}:{entry['port']}", "", since
