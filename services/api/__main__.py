"""The api process: `python -m services.api`, configured by the environment alone."""

import sys

from services.api.config import ApiSettings
from services.api.wiring import main

if __name__ == "__main__":
    sys.exit(main(ApiSettings()))
