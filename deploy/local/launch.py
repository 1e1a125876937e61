"""Become another program with its own process group, fewer rights, and a death signal when the parent dies.

It runs as `python -I -S launch.py OPTIONS -- PROGRAM ARG…`. A `preexec_fn` would run between fork and exec; in a
process with threads (gRPC, psycopg) it may hang on a lock of a thread that does not exist there.

Hazards: the order below matters. The kernel forgets the death signal when the user id changes, so it is set last. A
parent that died before that is only noticed by its pid. The signal is sent when the *thread* that forked ends, so start
children from the main thread.
"""

import argparse
import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def launcher(death_signal: str, *rights: str) -> tuple[str, ...]:
    """The command line that precedes a program's own; `rights` are further options."""
    parent = ("--parent", str(os.getpid()), "--death-signal", death_signal)
    return (sys.executable, "-I", "-S", os.path.abspath(__file__), *parent, *rights, "--")  # noqa: PTH100


def tell(pid: int, number: signal.Signals) -> None:
    """Send a signal to a child that asyncio watches, unless it has ended.

    Hazard: `Process.send_signal`, `terminate` and `kill` ask for the exit code first. When the child ends at that
    moment, they take the code away from asyncio's watcher, which then reports 255 for a clean end."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True, help="pid of the parent")
    parser.add_argument("--death-signal", required=True, help="name of the signal sent when the parent dies")
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("program", nargs="+")
    args = parser.parse_args()

    os.setpgid(0, 0)  # the supervisor passes on a Ctrl-C at the terminal, in its own order
    os.umask(0o077)
    if args.uid is not None:
        os.setgroups([])
        os.setresgid(args.gid, args.gid, args.gid)
        os.setresuid(args.uid, args.uid, args.uid)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.Signals[args.death_signal]), 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != args.parent:
        sys.exit("the parent is gone")
    os.execv(args.program[0], args.program)


if __name__ == "__main__":
    main()
