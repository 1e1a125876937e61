"""`python -m services.coordinator`."""

import sys

from services.coordinator.wiring import main

sys.exit(main())
