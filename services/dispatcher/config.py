"""The dispatcher's settings, each with its reason."""

from typing import Final

from services.chassis.process.config import Field, StoringSettings

SERVICE: Final = "dispatcher"
VERSION: Final = "0.1.0"
# Behind every wake-up; the longest that anything waits when every notification is lost. Times the lease scale.
POLL_SECONDS: Final = 2.0
# After which a committed grant that nobody acknowledged is asked about. Times the lease scale.
ASTRAY_SECONDS: Final = 1.0
# After which a message that its holder has not acknowledged is said again. Times the lease scale.
REDELIVER_SECONDS: Final = 1.0


class DispatcherSettings(StoringSettings):
    grpc_address: str = "127.0.0.1:7402"
    metrics_address: str = "127.0.0.1:7602"
    # Beside the one of the turns. Everything else is short and rare.
    database_connections: int = Field(default=4, ge=1)
    # How long the answer to a repeated request_id is known: the 30 days that the public contract promises.
    request_key_seconds: float = Field(default=30 * 86_400.0, gt=0)
