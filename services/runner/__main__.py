"""`python -m services.runner`: one runner, configured by its environment."""

import sys

from services.chassis.process.config import read_or_exit
from services.chassis.process.lifecycle import Process
from services.runner.config import RunnerSettings
from services.runner.wiring import wire

if __name__ == "__main__":
    settings = read_or_exit(RunnerSettings)
    sys.exit(Process("runner", drain_seconds=settings.drain_seconds).main(wire(settings)))
