"""The names of the product that the chassis uses. Another product would edit only this file of the chassis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PRODUCT: Final = "windlass"
ENVIRONMENT_PREFIX: Final = "WINDLASS_"
ERROR_DOMAIN: Final = PRODUCT
# The form of a key tells people and scanners for leaked secrets what it is: <prefix>_<kind>_<64 hexadecimal digits>.
KEY_PREFIX: Final = "wl"
# It is in lower case, because gRPC refuses other metadata keys.
SERVICE_CREDENTIAL_KEY: Final = f"x-{PRODUCT}-service"
_DESCRIBE: Final = "grpcurl -plaintext HOST:PORT describe METHOD"
# The command that inspects or solves the problem, by the reason of a refusal. METHOD stands for the method called.
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
