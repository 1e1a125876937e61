"""Imports the Python files that are named at start. Each registers what it declares with `@module`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path


def import_files(files: Sequence[Path]) -> None:
    """Import each file. A failing import fails the start."""
    for number, file in enumerate(files):
        name = f"windlass_user_modules_{number}_{file.stem}"
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(f"{file} is no Python file")
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[name] = loaded
        spec.loader.exec_module(loaded)
