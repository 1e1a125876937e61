"""Starts a child process (child_limits.py) beside the service whose work it does.

Hazards: a child is started whenever another one has ended by its limits, so a stranger decides how often. A fork would
copy the tables of all memory of the service, and every page that it writes afterwards; an event loop of uvloop starts
its subprocesses in this way, and api stood still for 9 ms each time. So children are started by `subprocess`, which
copies nothing. And a child takes a tenth of a second of CPU time before any code of ours runs in it, so the service
gives it its priority.

Linux may share CPU time among sessions first (autogroup), and by priority only within each. A session that keeps one
core busy counts for little on the others, so all services would wait there while one child works. So each child has a
session of its own, which has the priority too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from services.chassis.process.child_limits import environment

# Where CPU is scarce, the service goes before its children.
_NICE: Final = 5
_NICE_MAX: Final = 19


def start_child(
    module: str, stdin: int | IO[bytes] = subprocess.PIPE, stdout: int | IO[bytes] = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    """The child runs `python -m module`."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=stdin,
        stdout=stdout,
        env=environment(),
        bufsize=0,
        start_new_session=True,
    )
    nice = min(os.nice(0) + _NICE, _NICE_MAX)
    # It may have ended already.
    with suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, child.pid, nice)
    # The file is there only if sessions share CPU time. Without privileges it takes ten changes per second.
    with suppress(OSError):
        Path(f"/proc/{child.pid}/autogroup").write_text(str(nice), encoding="ascii")
    return child
