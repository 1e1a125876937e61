"""`python -m services.api`: one api process, configured by its environment."""

import sys

from services.api.config import ApiSettings
from services.api.wiring import main
from services.chassis.process.config import read_or_exit

if __name__ == "__main__":
    sys.exit(main(read_or_exit(ApiSettings)))
