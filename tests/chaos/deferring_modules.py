"""A module that leaves its work to the test."""

import asyncio
from pathlib import Path
from typing import Any

from windlass.sdk import Context, module


@module("test.defers@1", idempotent=True)
async def defers(ctx: Context, inputs: Any, _config: Any) -> None:
    """Write the completion token to the file that the inputs name."""
    await asyncio.to_thread(_write, Path(inputs["file"]), ctx.defer())


def _write(file: Path, token: str) -> None:
    """Whoever reads the file finds a whole token."""
    part = file.with_suffix(".part")
    part.write_text(token)
    part.rename(file)
