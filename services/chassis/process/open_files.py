"""The files that the process may have open: its connections are files too, and strangers can open any number of those.

A process that has no file left can neither accept a connection nor open one to its database, nor start a child. So some
files are kept for its own work, and its server accepts only as many connections as leave them.
"""

from __future__ import annotations

import resource
from typing import Final

# Connections to databases and peers, pipes of children, and files; the most that a service has had under load was 150.
_OWN_FILES: Final = 500


def allow_all() -> None:
    """Raise the soft limit, which is often 1,024, to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_that_fit(wanted: int, addresses: int) -> int:
    """So many connections, or fewer if the limit of the process asks for it, may be open at each listening address."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    # A process with a very low limit shares what it has with its callers.
    left = max(soft - _OWN_FILES, soft // 2)
    return max(1, min(wanted, left // addresses))
