"""`python -m services.api.checking`: checks one input for an api, and ends; not for people to start.

On its input the length of the schema, the schema, and the input; on its output the first misfit as JSON, or null. It
dies of its limits rather than be asked to obey: the library at work hears nothing.
"""

import resource
import sys
from typing import Final

import orjson

from services.api.checking.engine import LENGTH_BYTES, compiled, first_misfit

CPU_SECONDS_MAX: Final = 3
MEMORY_BYTES_MAX: Final = 1 << 30


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    given = sys.stdin.buffer.read()
    end = LENGTH_BYTES + int.from_bytes(given[:LENGTH_BYTES], "big")
    found = first_misfit(compiled(orjson.loads(given[LENGTH_BYTES:end])), orjson.loads(given[end:]))
    sys.stdout.buffer.write(orjson.dumps(None if found is None else list(found)))


if __name__ == "__main__":
    main()
