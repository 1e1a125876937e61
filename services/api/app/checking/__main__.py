"""`python -m services.api.app.checking`: the child that checks inputs for an api, which starts it.

`services/chassis/process/child_limits.py` describes the pipes. A request is a head, the schema and the input, both as
JSON; the answer is the misfits as JSON, or the fault of the schema as text.
"""

import os
from functools import lru_cache
from typing import Any, Final

import orjson

from services.api.app.checking.engine import misfits
from services.api.app.checking.request import CheckRequest
from services.chassis.process.child_limits import ChildLimits, serve
from windlass.definition.input_schemas import SchemaFault, compiled

MEMORY_BYTES_MAX: Final = 512 * 1024 * 1024
# Compiled schemas in the cache; the memory that a child may keep bounds them too.
SCHEMAS_KEPT_MAX: Final = 64


@lru_cache(SCHEMAS_KEPT_MAX)
def validator(schema: bytes) -> Any:
    return compiled(orjson.loads(schema))


def answered(frame: bytes) -> tuple[bool, bytes]:
    asked = CheckRequest.decoded(frame)
    try:
        found = misfits(validator(asked.schema), orjson.loads(asked.document), asked.most)
    except SchemaFault as fault:
        return False, str(fault).encode()
    except MemoryError:
        # The parent takes this as the end by the limit of memory.
        os.abort()
    return True, orjson.dumps([tuple(misfit) for misfit in found])


def limits(frame: bytes) -> ChildLimits:
    return ChildLimits(CheckRequest.decoded(frame).cpu_seconds, MEMORY_BYTES_MAX)


if __name__ == "__main__":
    serve(answered, limits)
