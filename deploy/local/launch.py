"""Become another program: own process group, fewer rights, and a death tied to the parent's.

Run as `python -I -S launch.py OPTIONS -- PROGRAM ARG…`: a program of its own and not a `preexec_fn`, because
code between fork and exec in a process with threads (gRPC, psycopg) may hang on a lock that a vanished thread
holds.

Hazards: the order below matters. The kernel forgets the death signal when the user id changes, so it is asked
for last; and a parent that died before that is only seen by comparing its pid. The signal comes when the
*thread* that forked ends: start children from the main thread.
"""

import argparse
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def launcher(death_signal: str, *rights: str) -> tuple[str, ...]:
    """The command line that comes before a program's own; `rights` are further options."""
    parent = ("--parent", str(os.getpid()), "--death-signal", death_signal)
    return (sys.executable, "-I", "-S", os.path.abspath(__file__), *parent, *rights, "--")  # noqa: PTH100


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True, help="pid whose death is to be followed")
    parser.add_argument(
        "--death-signal", required=True, help="name of the signal that the parent's death sends"
    )
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("program", nargs="+")
    args = parser.parse_args()

    os.setpgid(0, 0)  # a Ctrl-C at the terminal is the supervisor's to pass on, in its order
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
