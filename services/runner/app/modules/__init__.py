"""The modules of a runner: those that every runner has, and those in Python files that are named at its start."""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from services.rendering import Rendering
from services.runner.app.modules import flow, http_request
from services.runner.core.egress import Egress
from windlass.sdk import Module


def built_in(egress: Egress, rendering: Rendering) -> list[Module]:
    """The modules of every runner. Those that open connections call only what `egress` permits."""
    return [*flow.BUILT_IN.modules(), http_request.module(egress, rendering.reader_process.body_as_json)]


def import_files(files: Sequence[Path]) -> None:
    """Import each file, which registers what it declares with `@module`. A failing import fails the start."""
    for number, file in enumerate(files):
        name = f"windlass_user_modules_{number}_{file.stem}"
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(f"{file} is not a Python file")
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[name] = loaded
        spec.loader.exec_module(loaded)
