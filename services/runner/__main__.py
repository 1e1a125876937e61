"""`python -m services.runner`: one runner, configured by its environment."""

import sys

from services.chassis.lifecycle import Process
from services.runner.config import Settings
from services.runner.wiring import wire

settings = Settings()
sys.exit(Process("runner", drain_seconds=settings.drain_seconds).main(wire(settings)))
