"""`python -m services.dispatcher`: one dispatcher process, configured by its environment."""

import sys

from services.chassis.process.config import read_or_exit
from services.dispatcher.config import DispatcherSettings
from services.dispatcher.wiring import main

if __name__ == "__main__":
    sys.exit(main(read_or_exit(DispatcherSettings)))
