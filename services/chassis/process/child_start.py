"""Starts a child process (child_limits.py) beside the service whose work it does.

Hazards: a child is started whenever another one has ended by its limits, so a stranger decides how often. A fork would
copy the tables of all memory of the service, and every page that it writes afterwards; an event loop of uvloop starts
its subprocesses in this way, and api stood still for 9 ms each time. So children are started by `subprocess`, which
copies nothing. And a child takes a tenth of a second of CPU time before any code of ours runs in it, so the service
gives it its priority.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
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
        [sys.executable, "-P", "-m", module], stdin=stdin, stdout=stdout, env=environment(), bufsize=0
    )
    # It may have ended already, and a sandbox may forbid this.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, child.pid, min(os.nice(0) + _NICE, _NICE_MAX))
    return child
