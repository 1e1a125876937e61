"""Resolves the templates of a node: plain ones in the runner itself, all others in a child process. Another child reads
large responses. A coordinator renders once more, always in a child, for people who ask what a run worked on.

A template can make the engine ask for more memory than there is, in one step that no fuel counts, and the process ends.
`services/runner/core/plain.py` tells which templates cannot: the memory that they need is proportional to their data.
"""

from services.rendering.children import RenderingChildren
from services.rendering.engine import Renderer
from services.rendering.queue import RenderingQueue, WaitedTooLong
from services.rendering.renderer_process import RendererProcess
from services.rendering.requests import with_parts


class Rendering:
    """Both ways to render. They give the same results, but a hostile template can only end a child process."""

    def __init__(self) -> None:
        self.renderer = Renderer()
        self.children = RenderingChildren()
        # It reads large responses: whoever sends these keeps no template waiting. It is started at the first one.
        self.reader_process = RendererProcess()
        # Runs wait here for a child.
        self.queue = RenderingQueue(self.children)

    def close(self) -> None:
        """End the children and let nothing more wait for them."""
        self.children.close()
        self.reader_process.close()


__all__ = ["Renderer", "RendererProcess", "Rendering", "WaitedTooLong", "with_parts"]
