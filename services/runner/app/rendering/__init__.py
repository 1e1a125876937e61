"""Resolves the templates of a node: plain ones in the runner itself, all others in a child of it.

An engine of templates can be made to ask for more memory than there is, in one step that no fuel counts, and the
process ends with that. `core/plain.py` tells which templates cannot; what they need is in the order of their data.
"""

from services.runner.app.rendering.engine import Renderer
from services.runner.app.rendering.queue import RenderingQueue, WaitedTooLong
from services.runner.app.rendering.renderer_process import RendererProcess


class Rendering:
    """The two that render, with one meaning: what differs is what a hostile template can end."""

    def __init__(self) -> None:
        self.renderer = Renderer()
        self.renderer_process = RendererProcess()
        # For the latter.
        self.queue = RenderingQueue()

    def close(self) -> None:
        """End the child, and the wait for it."""
        self.queue.close()
        self.renderer_process.close()


__all__ = ["Renderer", "RendererProcess", "Rendering", "WaitedTooLong"]
