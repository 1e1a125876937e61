"""What follows a turn of a loop: its `until` is evaluated here, so that a turn costs one run.

The expression sees what the templates of the turn see, and the output of the turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from services.rendering import Rendering, with_parts
from services.rendering.scope import data_of, scope_of
from services.runner.app.attempt import bytes_of_data
from services.runner.core.job import Job, Succeeded
from services.runner.core.plain import are_plain_conditions, without_braces

_BRANCHES = {True: "true", False: "false"}


async def decided(job: Job, turn: Succeeded, rendering: Rendering, loaded: Mapping[str, bytes]) -> Succeeded:
    """The outcome of the turn, with the branch that its `until` takes. Raises ModuleError if it cannot be evaluated.

    An expression that could grow is evaluated in a child. It waits for its turn however long that takes, because the
    work is done already."""
    assert isinstance(turn.output, bytes), "it is moved to the store later"
    expression, output = without_braces(job.until), turn.output
    data = {**data_of(job, loaded), ("output",): output}
    if are_plain_conditions(expression, bytes_of_data(job) + len(output)):
        value = rendering.renderer.evaluate(expression, with_parts(scope_of(job), data))
    else:
        children = rendering.children
        value = await asyncio.wrap_future(
            children.submit(job.workspace, lambda: children.of(job.workspace).evaluate(expression, scope_of(job), data))
        )
    return Succeeded(output, _BRANCHES[bool(value)])
