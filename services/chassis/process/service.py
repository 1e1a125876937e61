"""How a service starts and ends. Its wiring joins the parts and says what differs; this file does the rest.

    parts joined ──► prepare ──► server and loops run ──SIGTERM──► drain steps ──► close steps ──► exit

Hazard: the order of the end. While the drain steps run, the server and all loops still go. After a loop has died, no
drain step runs. Once all loops have ended, the metrics page closes, and then the server, so that no call meets a closed
connection. The close steps follow. Spans are flushed last, because all of this may record some.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from importlib.metadata import version
from typing import Final, Protocol

from services.chassis.grpc.server import GrpcServer
from services.chassis.process import open_files
from services.chassis.process.config import Settings
from services.chassis.process.lifecycle import Loops, Process, Steps
from services.chassis.process.naming import PRODUCT
from services.chassis.telemetry.logs import logger, setup_logging
from services.chassis.telemetry.metrics import serve_metrics
from services.chassis.telemetry.tracing import flush_tracing, setup_tracing

log = logger(__name__)

VERSION: Final = version(PRODUCT)
# For the calls that still run when the process closes.
_GRACE_SECONDS: Final = 0.5


class Service(Protocol):
    """The joined parts of one service. Nothing runs when it is made.

    Every wiring joins them in one order: connections and stores first, then peers and use cases, each after those that
    it needs, and last what is served.
    """

    # The replica's name in spans.
    name: str
    server: GrpcServer

    async def prepare(self) -> None:
        """Everything that has to be done, or to hold, before the service runs."""
        ...

    def loops(self) -> Loops:
        """The background work. A loop that dies takes the process with it."""
        ...

    def drain_steps(self) -> Steps:
        """They run in this order when the process is asked to stop."""
        ...

    def close_steps(self) -> Steps:
        """They run in this order at the end, also when `prepare` failed."""
        ...


def run_service(
    service: str,
    settings: Settings,
    join: Callable[[Settings], Service],
    *,
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    collects_rarely: bool = False,
) -> int:
    """Run until the process is asked to stop or a loop dies, and return the exit code.

    `collects_rarely`: the work leaves no cycles, so the garbage collector can run rarely.
    """
    setup_logging(service=service, replica=settings.replica, level=settings.log_level)
    open_files.allow_all()

    async def wire(process: Process) -> None:
        await start(process, settings, join)
        # The objects made so far live as long as the process, so the collector need not look at them again.
        gc.collect()
        gc.freeze()
        if collects_rarely:
            gc.set_threshold(50_000, 20, 50)

    return Process(service, drain_seconds=settings.drain_seconds).main(wire, new_loop=new_loop)


async def start(process: Process, settings: Settings, join: Callable[[Settings], Service]) -> int:
    """Returns the gRPC port that was bound. The loops begin when this has returned."""
    process.on_close("spans", flush_tracing)
    service = join(settings)
    setup_tracing(service=process.name, version=VERSION, instance=service.name, endpoint=settings.otlp_endpoint)
    plug_in(process, service)
    await service.prepare()
    await serve_metrics(process, settings.metrics_address)
    port = await service.server.start()
    log.info("serving", grpc_port=port, lease_scale=settings.lease_scale)
    return port


def plug_in(process: Process, service: Service) -> None:
    """Hand the loops and the steps of the service to its process."""
    # Close hooks run in the reverse order of their registration.
    for name, step in reversed(service.close_steps()):
        process.on_close(name, step)
    process.on_close("server", lambda: service.server.stop(_GRACE_SECONDS))
    for name, step in service.drain_steps():
        process.on_drain(name, step)
    for name, run in service.loops():
        process.loop(name, run)
