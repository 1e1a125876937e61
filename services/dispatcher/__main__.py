"""`python -m services.dispatcher`: one dispatcher process, configured by its environment."""

import sys

import uvloop

from services.chassis.process.config import read_or_exit
from services.chassis.process.lifecycle import Process
from services.dispatcher.config import SERVICE, DispatcherSettings
from services.dispatcher.wiring import wiring

if __name__ == "__main__":
    settings = read_or_exit(DispatcherSettings)
    sys.exit(
        Process(SERVICE, drain_seconds=settings.drain_seconds).main(
            wiring(settings), new_loop=uvloop.new_event_loop
        )
    )
