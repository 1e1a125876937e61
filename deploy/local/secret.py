"""The service secret of one `windlass up`, by which its services know each other.

It is made anew at every start, and is in memory only. Each service inherits it as an open file, which it may read
again and again. A runner does not, and the kernel keeps it from reading the memory and the open files of others
(launch.py). So modules, which can read the home, cannot read the secret.

Hazard: a core dump would have the secret too, and a module may kill a service in a way that writes one. So no process
that is started from here on writes any.
"""

import contextlib
import os
import resource
import secrets

SETTING = "WINDLASS_SERVICE_SECRET_FILE"
# The kernel gives a core to a program (systemd-coredump) whatever its size may be, unless that is 1.
CORE_BYTES_MAX = 1


class ServiceSecret:
    def __init__(self) -> None:
        with contextlib.suppress(ValueError):  # it is 0 already, and we may not raise it
            resource.setrlimit(resource.RLIMIT_CORE, (CORE_BYTES_MAX, CORE_BYTES_MAX))
        self.descriptor = os.memfd_create("windlass-service-secret")
        os.fchmod(self.descriptor, 0o400)
        os.write(self.descriptor, f"{secrets.token_hex(32)}\n".encode())

    @property
    def path(self) -> str:
        """Where a process that has inherited the descriptor reads it."""
        return f"/dev/fd/{self.descriptor}"

    def close(self) -> None:
        os.close(self.descriptor)
