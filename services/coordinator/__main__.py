"""`python -m services.coordinator`: one coordinator process, configured by its environment."""

import sys

from services.chassis.process.config import read_or_exit
from services.coordinator.config import CoordinatorSettings
from services.coordinator.wiring import main

if __name__ == "__main__":
    sys.exit(main(read_or_exit(CoordinatorSettings)))
