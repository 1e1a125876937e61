"""Become another program with its own process group, fewer rights, and a death signal when the parent dies.

A program that is `--confined` cannot read or change the memory, the environment and the open files of processes that
it has not started itself, although they have its user. The kernel sees to this (Landlock, from Linux 5.19 on), also for
root, and for all that the program starts. The program can read and write all files that its user may.

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
import struct
import sys

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
CONFINED = ("--confined",)

# Rights of root that would lead around the confinement: to the kernel, to devices, and to the network of others. They
# are, by linux/capability.h: net_admin, net_raw, sys_module, sys_rawio, sys_ptrace, sys_admin, sys_boot, mknod,
# mac_override, mac_admin, perfmon, bpf, checkpoint_restore.
CAPABILITIES = (12, 13, 16, 17, 19, 21, 22, 27, 32, 33, 38, 39, 40)
# Of linux/landlock.h. The numbers of the calls are the same on all machines.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
CREATE_RULESET_VERSION, RULE_PATH_BENEATH = 1, 1
# To move files between folders. A confined program may not do this unless a rule says so.
ACCESS_FS_REFER = 1 << 13
LANDLOCK_VERSION_MIN = 2


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


def landlock_version(libc: ctypes.CDLL) -> int:
    """Negative: this kernel has none, or it is off."""
    return int(libc.syscall(CREATE_RULESET, None, 0, CREATE_RULESET_VERSION))


def confine(libc: ctypes.CDLL) -> None:
    """Does nothing but say so, if the kernel cannot do it. An error is fatal."""
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in CAPABILITIES:
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # whoever may not drop it does not have it
    if landlock_version(libc) < LANDLOCK_VERSION_MIN:
        print("this kernel has no Landlock, so modules can read the memory of other processes", file=sys.stderr)
        return
    handled = ctypes.c_uint64(ACCESS_FS_REFER)
    ruleset = _checked(libc.syscall(CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0))
    root = os.open("/", os.O_PATH)
    # struct landlock_path_beneath_attr, which is packed: the access, and the folder below which it is allowed.
    everywhere = struct.pack("=Qi", ACCESS_FS_REFER, root)
    _checked(libc.syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, everywhere, 0))
    _checked(libc.syscall(RESTRICT_SELF, ruleset, 0))
    os.close(root)
    os.close(ruleset)


def _checked(result: int) -> int:
    if result < 0:
        sys.exit(f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True, help="pid of the parent")
    parser.add_argument("--death-signal", required=True, help="name of the signal sent when the parent dies")
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("--confined", action="store_true")
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
    if args.confined:
        confine(libc)
    os.execv(args.program[0], args.program)


if __name__ == "__main__":
    main()
