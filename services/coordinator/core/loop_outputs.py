"""The output of a loop: the outputs of its items as one JSON value, put together once, when all have their outcome.

Payloads are never parsed here; the value is put together from their bytes. Outputs that are kept outside are fetched by
whoever puts the whole into the output store.
"""

from collections.abc import Iterator

import orjson

from services.coordinator.core.loops import has_turns
from services.coordinator.core.state import Execution, Work, WorkLoop, WorkState
from services.coordinator.core.values import INLINE_BYTES_MAX, OutputRef, Value


def inline_output(execution: Execution, loop: WorkLoop) -> bytes | None:
    """None: it is too large to be inline, or a part of it is kept outside."""
    parts: list[bytes] = []
    size = 0
    for part in output_parts(execution, loop):
        if isinstance(part, OutputRef):
            return None
        size += len(part)
        if size > INLINE_BYTES_MAX:
            return None
        parts.append(part)
    return b"".join(parts)


def output_parts(execution: Execution, loop: WorkLoop) -> Iterator[Value]:
    """The parts of the output, in their order."""
    if has_turns(loop):
        yield b'{"output":'
        yield last_turn(execution, loop).output or b"null"
        yield b',"iterations":%d}' % loop.begun
        return
    for iteration in range(1, loop.count + 1):
        yield b"[" if iteration == 1 else b","
        yield _result(execution.work[loop.key_of(iteration)])
    yield b"]"


def last_turn(execution: Execution, loop: WorkLoop) -> Work:
    return execution.work[loop.key_of(loop.begun)]


def _result(item: Work) -> Value:
    if item.state is WorkState.SUCCEEDED:
        return item.output or b"null"
    assert item.run is not None
    error = item.run.error
    assert error is not None
    return orjson.dumps({"error": {"type": error.type, "message": error.message}})
