"""The dispatcher's settings, each with its reason."""

from services.chassis.process.config import DAY_SECONDS, Field, StoringSettings, variable


class DispatcherSettings(StoringSettings):
    grpc_address: str = "127.0.0.1:7402"
    metrics_address: str = "127.0.0.1:7602"
    # These come in addition to the connection of the admission loop. All other work is short and rare.
    database_connections: int = Field(default=4, ge=1)
    # How long a request_id is remembered. The public contract promises 30 days.
    request_key_seconds: float = Field(default=30 * DAY_SECONDS, gt=0)
    # How long a dead letter (an execution that no coordinator could begin or continue) can be read.
    dead_letter_seconds: float = Field(default=30 * DAY_SECONDS, gt=0)

    def faults(self) -> list[str]:
        if self.dead_letter_seconds >= self.request_key_seconds:
            return super().faults()
        # A repeated start is answered with the execution of the first, which must still be there.
        dead_letter, request_key = variable("dead_letter_seconds"), variable("request_key_seconds")
        return [f"{dead_letter} must not be less than {request_key}", *super().faults()]
