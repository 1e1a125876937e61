"""Resolves the templates of a node: plain ones in the runner itself, all others in a child of it.

An engine of templates can be made to ask for more memory than there is, in one step that no fuel counts, and the
process ends with that. `core/plain.py` tells which templates cannot; what they need is in the order of their data.
"""

from services.runner.rendering.aside import RendererAside
from services.runner.rendering.engine import Renderer
from services.runner.rendering.line import Line, WaitedTooLong


class Rendering:
    """The two that render, with one meaning: what differs is what a hostile template can end."""

    def __init__(self) -> None:
        self.here = Renderer()
        self.aside = RendererAside()
        # For the latter.
        self.line = Line()

    def close(self) -> None:
        """End the child, and the wait for it."""
        self.line.close()
        self.aside.close()


__all__ = ["Renderer", "RendererAside", "Rendering", "WaitedTooLong"]
