"""`python -m services.runner`: one runner process, configured by its environment."""

import sys

from services.chassis.process.config import read_or_exit
from services.runner.config import RunnerSettings
from services.runner.wiring import main

if __name__ == "__main__":
    sys.exit(main(read_or_exit(RunnerSettings)))
