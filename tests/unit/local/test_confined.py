"""A confined program, like a runner of `windlass up`, cannot look into other processes, and can do everything else."""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.launch import CONFINED, LANDLOCK_VERSION_MIN, landlock_version, launcher

pytestmark = pytest.mark.skipif(
    landlock_version(ctypes.CDLL(None)) < LANDLOCK_VERSION_MIN, reason="this kernel has no Landlock"
)
DENIED = (1, 13)  # EPERM and EACCES


def outcome(code: str, *rights: str, folder: Path) -> int:
    """The errno with which the code ended in such a program; 0: it ended well."""
    guarded = f"import os, subprocess, sys\ntry:\n    {code}\nexcept OSError as error:\n    sys.exit(error.errno)"
    command = [*launcher(signal.SIGKILL.name, *rights), sys.executable, "-c", guarded, str(os.getpid())]
    return subprocess.run(command, cwd=folder, timeout=30, check=False).returncode


@pytest.mark.parametrize("name", ["environ", "maps", "mem", "fd/0"])
def test_other_processes_cannot_be_looked_into(name: str, tmp_path: Path) -> None:
    read = f"os.open('/proc/' + sys.argv[1] + '/{name}', os.O_RDONLY)"
    assert outcome(read, *CONFINED, folder=tmp_path) in DENIED
    its_own = read.replace("' + sys.argv[1] + '", "self")
    assert outcome(its_own, *CONFINED, folder=tmp_path) == 0


@pytest.mark.parametrize(
    "code",
    [
        "os.mkdir('a'); os.mkdir('b'); open('a/x', 'w').close(); os.rename('a/x', 'b/x')",
        "os.mkdir('a'); open('x', 'w').close(); os.link('x', 'a/x')",
        "subprocess.run([sys.executable, '-c', '0'], check=True)",
        "subprocess.Popen(['sleep', '60']).kill()",
    ],
)
def test_it_does_what_its_user_may_do(code: str, tmp_path: Path) -> None:
    assert outcome(code, *CONFINED, folder=tmp_path) == 0
