"""The memory of large values is kept for the next ones."""

import subprocess
import sys

# Some values of 2 MB are made and dropped, in a thread, as a runner does with answers.
PROGRAM = """
import resource, sys, threading
from services.chassis.process.memory import keep_freed_memory

def copy_often(times):
    for _ in range(times):
        values = [b"x" * 2_000_000 for _ in range(4)]
        del values

def count():
    copy_often(5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    copy_often(20)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

if sys.argv[1] == "keep":
    keep_freed_memory()
thread = threading.Thread(target=count)
thread.start()
thread.join()
"""


def faults(how: str) -> int:
    """The pages that the kernel had to provide."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True)
    return int(done.stdout)


def test_memory_of_large_values_is_used_again() -> None:
    assert faults("keep") < 1_000 < 10_000 < faults("give back")
