"""The home of one stack: its files, who may read them, and the lock of the `up` that uses it.

Layout:
    up.lock  up.json  admin.key  system.key  runner.key
    credentials/<owner>.password  credentials/<service>.url  credentials/database
    credentials/operator.url    address of the database server, while a stack runs on it
    peers/<service>s        addresses of the replicas, one a line; services read them again when they change
    postgres/  logs/<service>-<replica>.log  outputs/

Hazards: everything secret is 0600 and is handed to children by path only, never on a command line. The service secret
is in no folder (secret.py), because modules can read this one. A killed stack leaves up.json behind: only the lock,
which the kernel releases, tells whether a stack runs.
"""

import fcntl
import json
import os
import secrets
from pathlib import Path
from typing import Any

from deploy.local.files import try_lock, write_private, write_whole

KEYS = ("admin", "system", "runner")
# The states of the process that holds the lock.
STARTING, RUNNING, STOPPING, MIGRATING = "starting", "running", "stopping", "migrating"
_DOING_CHARACTERS = 9


class HomeTaken(Exception):
    """Process `pid` uses this home."""

    def __init__(self, root: Path, pid: int) -> None:
        super().__init__(f"{root} is in use by process {pid}")
        self.pid = pid


class Home:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.postgres = self.root / "postgres"
        self.logs = self.root / "logs"
        self.outputs = self.root / "outputs"
        self.up_file = self.root / "up.json"
        self.credentials = self.root / "credentials"
        # The hash by which services without a table of keys know the system key.
        self.system_key_hash_file = self.credentials / "system.key.sha256"
        # Names the database to which the keys belong. Another database needs other keys.
        self.database_file = self.credentials / "database"
        # The operator's address of the database. `windlass admin verify` needs it to read all schemas.
        self.operator_url_file = self.credentials / "operator.url"
        self._lock_file = self.root / "up.lock"
        self._lock: int | None = None

    def take(self, doing: str = STARTING) -> None:
        """Make the folders and hold the lock until the process ends. Raises HomeTaken."""
        self.root.mkdir(parents=True, exist_ok=True)
        for folder in (self.logs, self.outputs, self.root / "peers", self.credentials):
            folder.mkdir(mode=0o700, exist_ok=True)
        # The unprivileged owner of postgres/ must pass through, but need not read.
        self.root.chmod(0o711)
        lock = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o644)
        if not try_lock(lock):
            os.close(lock)
            raise HomeTaken(self.root, self._pid_in_lock())
        os.ftruncate(lock, 0)
        self._lock = lock
        self.tell(doing)
        self.forget_up()

    def tell(self, doing: str) -> None:
        """Write the state of this process to the lock file. All texts have one length, so nobody reads half of one."""
        assert self._lock is not None, "not taken"
        os.pwrite(self._lock, f"{os.getpid()}\n{doing:<{_DOING_CHARACTERS}}\n".encode(), 0)

    def doing(self) -> str:
        """The last state that a holder of the lock has written. It means nothing when nobody holds the lock."""
        return "".join(self._lock_file.read_text().split()[1:2]) or STARTING

    def holder(self) -> int | None:
        """The pid of the process that has this home now."""
        try:
            lock = os.open(self._lock_file, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return None if try_lock(lock, fcntl.LOCK_SH) else self._pid_in_lock()
        finally:
            os.close(lock)

    def _pid_in_lock(self) -> int:
        text = "".join(self._lock_file.read_text().split()[:1])
        return int(text) if text.isdigit() else 0  # the lock was taken a moment ago, and the pid is not written yet

    def read_up(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self.up_file.read_text())
        except FileNotFoundError:
            return None
        return found

    def write_up(self, content: dict[str, Any]) -> None:
        write_whole(self.up_file, json.dumps(content, indent=1) + "\n")

    def forget_up(self) -> None:
        """Remove what only a running stack has."""
        for path in (self.up_file, self.operator_url_file):
            path.unlink(missing_ok=True)

    def key_file(self, name: str) -> Path:
        return self.root / f"{name}.key"

    def password_file(self, owner: str) -> Path:
        return self.credentials / f"{owner}.password"

    def url_file(self, service: str) -> Path:
        return self.credentials / f"{service}.url"

    def peers_file(self, service: str) -> Path:
        return self.root / "peers" / f"{service}s"

    def log_file(self, service: str, replica: int) -> Path:
        return self.logs / f"{service}-{replica}.log"

    def password(self, owner: str) -> str:
        """The password of this role, made at the first call."""
        path = self.password_file(owner)
        if not path.exists():
            write_private(path, secrets.token_urlsafe(24))
        return path.read_text().strip()
