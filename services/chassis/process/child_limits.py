"""A child process that does what could take all memory or time, and dies of its limits rather than be asked to obey:
what is at work in it is inside a library, where nothing of Python's is heard.

Loads next to nothing, as each such child pays for it at its start.
"""

import os
import resource
import signal
import sys
from contextlib import suppress


def environment() -> dict[str, str]:
    """Of such a child: it can load what this process can, and nothing of the settings is its business."""
    paths = [path or os.getcwd() for path in sys.path]  # noqa: PTH109 - a text for another's sys.path
    return {"PYTHONPATH": os.pathsep.join(paths)}


def settle() -> None:
    """At its start. Told to end by its group, it goes on: it ends with its input, when its service has drained."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # When the machine has no more memory, this process goes before any other.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:  # noqa: PTH123
        score.write("1000")


def limit_memory(limit: int) -> None:
    """Of address space; as far as whoever started the service allows it."""
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    if most != resource.RLIM_INFINITY:
        limit = most if limit == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))
