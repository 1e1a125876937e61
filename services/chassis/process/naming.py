"""The product's own names, for every place where the chassis must say one.

This is the only file of the chassis that another product would edit: everything else here is
about processes, calls, connections and time, and knows nothing of what is served with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PRODUCT: Final = "windlass"
ENVIRONMENT_PREFIX: Final = "WINDLASS_"
ERROR_DOMAIN: Final = PRODUCT
# Tells people, and scanners for leaked secrets, what they have in hand: <prefix>_<kind>_<64 hexadecimal digits>.
KEY_PREFIX: Final = "wl"
# Lower case: gRPC refuses metadata keys in any other.
SERVICE_CREDENTIAL_KEY: Final = f"x-{PRODUCT}-service"
_DESCRIBE: Final = "grpcurl -plaintext HOST:PORT describe METHOD"
# What inspects or fixes the matter, by the reason of a refusal that does not say so itself. METHOD: the one called.
COMMANDS: Final[Mapping[str, str]] = {
    "KEY_MISSING": "windlass keys create WORKFLOW",
    "KEY_INVALID": "windlass keys list",
    "KEY_EXPIRED": "windlass keys create WORKFLOW",
    "ROLE_REQUIRED": "windlass keys list",
    "INVALID_REQUEST": _DESCRIBE,
    "MESSAGE_TOO_LARGE": _DESCRIBE,
    "UNIMPLEMENTED": "grpcurl -plaintext HOST:PORT list",
    "DEPENDENCY_UNAVAILABLE": "windlass status",
    "DRAINING": "windlass status",
    "DEADLINE_PASSED": "windlass status",
}
