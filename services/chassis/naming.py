"""The product's own names, for every place where the chassis must say one.

This is the only file of the chassis that another product would edit: everything else here is
about processes, calls, connections and time, and knows nothing of what is served with them.
"""

from __future__ import annotations

from typing import Final

PRODUCT: Final = "windlass"
ENVIRONMENT_PREFIX: Final = "WINDLASS_"
ERROR_DOMAIN: Final = PRODUCT
# Lower case: gRPC refuses metadata keys in any other.
SERVICE_CREDENTIAL_KEY: Final = f"x-{PRODUCT}-service"
