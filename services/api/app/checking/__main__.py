"""`python -m services.api.app.checking`: checks one input for an api, and ends; not for people to start.

On its input the length of the schema, the schema, and the input; on its output the first misfit as JSON, or null. It
dies of its limits rather than be asked to obey: the library at work hears nothing.
"""

import signal
import sys
from typing import Final

import orjson

from services.api.app.checking.engine import LENGTH_BYTES, first_misfit
from services.chassis.process.child_limits import limit_memory, settle
from windlass.definition.input_schemas import compiled

# While its caller waits. The dearest input that means no harm (256 KiB of fractions against an enum of integers) was
# seen to take half a second.
CPU_SECONDS_MAX: Final = 0.8
MEMORY_BYTES_MAX: Final = 1 << 30


def main() -> None:
    settle()
    limit_memory(MEMORY_BYTES_MAX)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS_MAX)
    given = sys.stdin.buffer.read()
    end = LENGTH_BYTES + int.from_bytes(given[:LENGTH_BYTES], "big")
    found = first_misfit(compiled(orjson.loads(given[LENGTH_BYTES:end])), orjson.loads(given[end:]))
    sys.stdout.buffer.write(orjson.dumps(None if found is None else list(found)))


if __name__ == "__main__":
    main()
